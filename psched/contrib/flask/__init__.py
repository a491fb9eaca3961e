"""psched in a Flask application: a queue, and the commands `flask psched …`.

app = Flask(__name__)
app.config["PSCHED"] = "etc/psched.yml"
jobs = Psched(app)
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click
from attrs import evolve
from flask.cli import ScriptInfo

import psched as library
from psched.application.default_queue import default_queue
from psched.config import SectionName, Settings, default_file, from_mapping, load
from psched.errors import ConfigError
from psched.queue.queue import Queue

if TYPE_CHECKING:
    from flask import Flask

    from psched.cli.options import Chosen

__all__ = ["Psched"]

KEY = "PSCHED"


class Psched:
    """psched for one Flask application: `Psched(app)`, or `jobs = Psched()` and later `jobs.init_app(app)`.

    The configuration is `app.config["PSCHED"]`: the path of a YAML file, or one environment of such a file as a dict.
    Without this key, $PSCHED_CONFIG names the file. Relative paths refer to the folder of the application. Like
    `psched.configure`, this sets the default queue of the process.
    """

    def __init__(self, app: Flask | None = None) -> None:
        """Calls `init_app` if `app` is given. Raises ConfigError."""
        if app is not None:
            self.init_app(app)

    def init_app(self, app: Flask) -> None:
        """Add psched to `app`. Opens no connection. Raises ConfigError if the configuration cannot be used."""
        app.extensions["psched"] = self
        app.cli.add_command(_command)
        if KEY in app.config:
            library.configure(settings_of(app, "queue"))

    @property
    def queue(self) -> Queue:
        """The queue. It is opened at the first use, also in each process that a server forks.

        Raises:
            ConfigError: the table is missing, or no queue is configured.
        """
        return default_queue.get()


def settings_of(app: Flask, reader: SectionName, environment: str | None = None) -> Settings:
    """Return psched's configuration.

    `reader`: the section that a configuration without sections configures. Raises ConfigError.
    """
    given = app.config.get(KEY, default_file().absolute())
    folder = Path(app.root_path)
    if isinstance(given, str | os.PathLike):
        return load(folder / given, environment, reader)
    if isinstance(given, Mapping):
        return evolve(from_mapping(given, folder, environment, reader), path=folder)
    raise ConfigError(f"{KEY}: expected a dict or the path of a YAML file, got {type(given).__name__}")


@click.command(
    "psched",
    add_help_option=False,
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
    short_help="Commands on schedules and tasks; `run` runs due occurrences and tasks (flask psched --help).",
)
@click.argument("words", nargs=-1, type=click.UNPROCESSED)
@click.pass_obj
def _command(info: ScriptInfo, words: tuple[str, ...]) -> None:
    """Run a command of psched with the configuration of the application."""
    from psched.cli.errors import run_command  # noqa: PLC0415 – web servers need no commands
    from psched.cli.main import commands_with  # noqa: PLC0415 – web servers need no commands

    commands = commands_with(run=lambda: _become_daemon(info, words))
    code = run_command(commands, words, _chosen(info.load_app()))
    if code:
        sys.exit(code)


def _chosen(app: Flask) -> Chosen:
    from psched.cli.options import Chosen  # noqa: PLC0415 – web servers need no commands

    def load_here(file: Path, environment: str | None, reader: SectionName) -> Settings:
        return load(file, environment, reader) if is_named(file) else settings_of(app, reader, environment)

    return Chosen(load=load_here)


def is_named(file: Path) -> bool:
    """Return whether `file`, the value of the option -c, differs from the default file."""
    return file.absolute() != default_file().absolute()


def _become_daemon(info: ScriptInfo, words: Sequence[str]) -> NoReturn:
    """Replace this process by a master of psched, in a new interpreter without the application.

    The master's children import the application. So they have new code after a reload, and no connection or thread of
    this process.
    """
    path = info.app_import_path
    if info.create_app is not None:
        raise ConfigError("flask psched run needs the name of the application: flask --app NAME psched run")
    environ: dict[str, Any] = {**os.environ, **({} if path is None else {"FLASK_APP": path})}
    sys.stdout.flush()
    sys.stderr.flush()
    os.execve(sys.executable, [sys.executable, "-m", __name__, *words], environ)  # noqa: S606 – no shell
