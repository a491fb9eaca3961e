"""Logs for programs: records as JSON, with the run to which each record belongs.

`log_format: json` uses this module. A program with its own logging setup can use the parts: add `JSONFormatter` and
`RunContextFilter` to handlers of `logging`, or `add_run_context` to the processors of structlog. Importing the module
attaches a telemetry listener that remembers the current run of each thread and coroutine.
"""

from __future__ import annotations

import json
import logging
import socket
from collections.abc import MutableMapping
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Any

from psched.error_messages import ESCAPES
from psched.model import ScheduleRow
from psched.stored_error_summary import error_summary
from psched.task import Task
from psched.telemetry import Event, attach

__all__ = ["JSONFormatter", "RunContextFilter", "add_run_context", "run_context"]

_current: ContextVar[Task | None] = ContextVar("psched_current_task", default=None)
_STANDARD = frozenset(logging.LogRecord("", 0, "", 0, "", (), None).__dict__) | {"message", "asctime", "taskName"}
_OWN = "psched_"
"""The prefix of the attributes that psched itself adds to a record."""
_JSON_ESCAPES = {code: f"\\u{code:04x}" for code in ESCAPES if code >= 0x7F}
"""Escapes for characters that the JSON encoder leaves unescaped."""
_NO_JSON = (TypeError, ValueError, RecursionError)
"""The errors of the encoder for NaN, for names that are not text, and for an object that contains itself."""
_RUN_FIELDS = ("section", "key", "type", "attempt", "fence", "scheduled_time", "trace_id")
_RESERVED = frozenset({
    *("ts", "level", "event", "message", "logger", "node", "pid", "duration_ms", "error", "traceback", "stack"),
    *_RUN_FIELDS,
    "backfill",
})  # fmt: skip


def _keep_current(event: Event, fields: dict[str, Any]) -> None:
    _current.set(fields["task"] if event == "run_start" else None)


attach(_keep_current, "run_start", "run_end")


def run_context() -> dict[str, Any]:
    """Return log fields that describe the run of the calling thread or coroutine; empty outside of a run.

    The fields are section, key, backfill, type, attempt, fence, scheduled_time (ISO 8601) and trace_id. Unknown fields
    are left out. A thread that a handler starts has the fields only if it runs under a copy of the handler's context:
    start it by `asyncio.to_thread`, or with the `run` method of `contextvars.copy_context()` as its target.
    """
    task = _current.get()
    return {} if task is None else _fields_of(task)


def add_run_context(logger: object, method: str, event_dict: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """A processor for structlog: add `run_context()` to an event. Existing fields of the event are kept."""
    for name, value in run_context().items():
        event_dict.setdefault(name, value)
    return event_dict


class RunContextFilter(logging.Filter):
    """Adds `run_context()` to each record as attributes, for formats such as `%(psched_key)s`. It drops no record.

    The attributes are psched_section, psched_key, psched_type, psched_attempt, psched_fence, psched_scheduled_time and
    psched_trace_id; an unknown value is "-". Add the filter to a handler, not to a logger.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        known = run_context()
        for name in _RUN_FIELDS:
            setattr(record, f"psched_{name}", known.get(name, "-"))
        return True


class JSONFormatter(logging.Formatter):
    """Formats a record as one JSON object on one line, including the traceback.

    If the record is about an event of psched, the field `event` is the name of the event, such as `run_finished`, and
    the field `message` is the text. In all other records, the field `event` is the text. Fields that a caller passes as
    `extra` keep their names, but `_` is appended to a name that psched itself uses.
    """

    def __init__(self) -> None:
        super().__init__()
        self._node = socket.gethostname()

    def format(self, record: logging.LogRecord) -> str:
        """Return the JSON without a line feed at its end. Control characters are escaped."""
        extra = {
            name: value for name, value in vars(record).items() if name not in _STANDARD and not name.startswith(_OWN)
        }
        known = self._known(record)
        try:
            text = _encode(known | _renamed(extra))
        except _NO_JSON:
            text = _encode(known | _renamed({name: _storable(value) for name, value in extra.items()}))
        return text.translate(_JSON_ESCAPES)

    def _known(self, record: logging.LogRecord) -> dict[str, Any]:
        said = vars(record)
        message, act = record.getMessage(), said.get("psched_event")
        known: dict[str, Any] = {
            "ts": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "event": message if act is None else act,
            **({} if act is None else {"message": message}),
            "logger": record.name,
            "node": self._node,
            "pid": record.process,
        }
        task = said.get("psched_task")
        known |= run_context() if task is None else _fields_of(task)
        known |= said.get("psched_fields", {})
        error = said.get("psched_error")
        if record.exc_info:
            record.exc_text = record.exc_text or self.formatException(record.exc_info)
        if record.exc_text:
            error = error_summary(record.exc_text) if error is None else error
            known["traceback"] = record.exc_text
        if error is not None:
            known["error"] = error
        if record.stack_info:
            known["stack"] = self.formatStack(record.stack_info)
        return known


def _fields_of(task: Task) -> dict[str, Any]:
    known = {
        "section": "schedules" if isinstance(task.row, ScheduleRow) else "queue",
        "key": task.key,
        "backfill": task.backfill,
        "type": task.type,
        "attempt": task.attempts,
        "fence": task.fence,
        "scheduled_time": datetime.fromtimestamp(task.scheduled_time, UTC).isoformat().replace("+00:00", "Z"),
        "trace_id": task.trace_id,
    }
    return {name: value for name, value in known.items() if value is not None}


def _renamed(extra: dict[str, Any]) -> dict[str, Any]:
    return {f"{name}_" if name in _RESERVED else name: value for name, value in extra.items()}


def _storable(value: object) -> object:
    try:
        _encode({"value": value})
    except _NO_JSON:
        return repr(value)
    return value


def _encode(known: dict[str, Any]) -> str:
    return json.dumps(known, ensure_ascii=False, allow_nan=False, default=repr)
