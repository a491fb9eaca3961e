"""`python -m psched.contrib.flask …`: the program behind `flask psched run`.

The master imports no application.
"""

from __future__ import annotations

import sys
from pathlib import Path

from attrs import evolve

from psched.cli.errors import run_command
from psched.cli.main import psched
from psched.cli.options import Chosen
from psched.config import SectionName, Settings, from_mapping, load
from psched.contrib.configuration_subprocess import printed_configuration
from psched.contrib.flask import is_named

_CHILD_SETUP = "psched.contrib.flask.child_setup"


def _load(file: Path, environment: str | None, reader: SectionName) -> Settings:
    """Return the configuration. At each start and reload, a new process reads it from the application."""
    settings = load(file, environment, reader) if is_named(file) else _load_in_new_process(environment, reader)
    return settings.with_application((), (), (_CHILD_SETUP,))


def _load_in_new_process(environment: str | None, reader: SectionName) -> Settings:
    given, root_path = printed_configuration("psched.contrib.flask.print_configuration", "the Flask application")
    if isinstance(given, str):
        return load(given, environment, reader)
    return evolve(from_mapping(given, Path(root_path), environment, reader), path=Path(root_path))


if __name__ == "__main__":
    sys.exit(run_command(psched, chosen=Chosen(load=_load)))
