"""Commands of manage.py that run psched's own programs. The program parses all arguments after the command's name."""

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
    """Passes its arguments unparsed to a program. The program's configuration comes from Django's settings."""

    def run_from_argv(self, argv: list[str]) -> None:
        """Run the command and exit.

        Leaves out `--settings` and `--pythonpath`, because manage.py has already handled them.
        """
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
        """Accept any arguments, for `call_command`."""
        parser.add_argument("words", nargs="*")

    def handle(self, *args: Any, **options: Any) -> None:
        """Run the command for `call_command`. Raises CommandError if it fails."""
        words = [*args, *options["words"]]
        code = self.run(words)
        if code:
            raise CommandError(f"psched {' '.join(words)} has failed; see the messages above", returncode=code)

    def run(self, words: Sequence[str]) -> int:
        raise NotImplementedError


def replace_process(module: str, words: Sequence[str]) -> NoReturn:
    """Replace this process by the program `module`, in a new interpreter that has not set up Django.

    The master must import none of the user's modules, so that children load new code after a reload. All connections of
    this process are closed.
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
"""The folders of the import path that belong to Python itself."""
