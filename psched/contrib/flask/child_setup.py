"""Loads the Flask application in a worker. Each handler runs in an application context, so `current_app` works.

The functions of `teardown_appcontext` are called at the end of each run, as at the end of a request.
"""

from __future__ import annotations

import threading
from typing import Any

from psched.contrib.flask.print_configuration import loaded_app
from psched.telemetry import Event, attach

_app = loaded_app()
_of_thread = threading.local()


def _run_begins(event: Event, fields: dict[str, Any]) -> None:
    _of_thread.context = _app.app_context()
    _of_thread.context.push()


def _run_ends(event: Event, fields: dict[str, Any]) -> None:
    _of_thread.context.pop()


attach(_run_begins, "run_start")
attach(_run_ends, "run_end")
