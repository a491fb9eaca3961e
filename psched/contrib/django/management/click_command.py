"""Commands of manage.py that are psched's own programs: all words after the name are theirs."""

from __future__ import annotations

import os
import sys
import sysconfig
from collections.abc import Sequence
from itertools import takewhile
from typing import Any, NoReturn

from django.core.management import BaseCommand, CommandParser
from django.core.management.base import CommandError
from django.db import connections

from psched.cli.errors import print_error
from psched.contrib.django import configuration
from psched.errors import ConfigError


class ClickCommand(BaseCommand):
    """Passes its words on unparsed, with Django's settings as the configuration."""

    program: str
    """The module that is the program in a process of its own."""

    def run_from_argv(self, argv: list[str]) -> None:
        """Run the command and exit. `--settings` and `--pythonpath` were used, and are left out."""
        parser = CommandParser(add_help=False, allow_abbrev=False)
        parser.add_argument("--settings")
        parser.add_argument("--pythonpath")
        _, words = parser.parse_known_args(argv[2:])
        try:
            sys.exit(self.run(words))
        except ConfigError as error:
            print_error(argv[1], str(error))
            sys.exit(1)

    def add_arguments(self, parser: CommandParser) -> None:
        """Take any words, for `call_command`."""
        parser.add_argument("words", nargs="*")

    def handle(self, *args: Any, **options: Any) -> None:
        """Run the command for `call_command`. Raises CommandError unless it succeeds."""
        words = [*args, *options["words"]]
        code = self.run(words)
        if code:
            raise CommandError(f"psched {' '.join(words)} has failed; see above", returncode=code)

    def run(self, words: Sequence[str]) -> int:
        """Return the exit code of the program."""
        raise NotImplementedError


def replace_process(module: str, words: Sequence[str]) -> NoReturn:
    """Become the program `module`, in a new interpreter that has not set up Django.

    The master must import none of the user's modules, so that a reload gets new code to the children. No connection of
    this process stays open.
    """
    connections.close_all()
    own = takewhile(lambda path: path not in _LIBRARY, sys.path)
    folders = [*own, *filter(None, [os.environ.get("PYTHONPATH")])]
    os.environ["PYTHONPATH"] = os.pathsep.join(os.path.abspath(folder) for folder in folders)  # noqa: PTH100
    located = ["-c", str(configuration.settings_file()), "-e", configuration.settings_module()]
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(sys.executable, [sys.executable, "-m", module, *located, *words])  # noqa: S606 – without a shell


_VERSION = f"python{sys.version_info[0]}{sys.version_info[1]}.zip"
_LIBRARY = {sysconfig.get_path("stdlib"), os.path.join(sys.base_prefix, sys.platlibdir, _VERSION)}  # noqa: PTH118
"""The folders of the import path that are Python's own."""
