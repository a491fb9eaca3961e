"""`python -m psched.contrib.flask.print_configuration` prints the psched configuration of a Flask application."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path

from flask import Flask
from flask.cli import NoAppException, ScriptInfo

from psched.config import default_file
from psched.contrib.flask import KEY, settings_of
from psched.errors import ConfigError


def loaded_app() -> Flask:
    """Return the application that $FLASK_APP names, or the one in the working directory. Raises ConfigError."""
    try:
        return ScriptInfo(os.environ.get("FLASK_APP")).load_app()
    except NoAppException as error:
        raise ConfigError(error.format_message()) from error


def main() -> int:
    """Print two JSON values: first the configuration or the path of its file, then the folder for relative paths."""
    try:
        app = loaded_app()
        settings_of(app, "queue")
        given = app.config.get(KEY, default_file().absolute())
        content = dict(given) if isinstance(given, Mapping) else str(Path(app.root_path) / given)
        text = json.dumps([content, app.root_path], default=str)
    except Exception as error:  # noqa: BLE001 – the process that waits for it reports it
        print(error if isinstance(error, ConfigError) else f"{type(error).__name__}: {error}", file=sys.stderr)  # noqa: T201
        return 1
    print(text)  # noqa: T201
    return 0


if __name__ == "__main__":
    sys.exit(main())
