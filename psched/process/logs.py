"""The log of master and children, and the log lines of runs. Each record is appended by one write.

A systemd service without a log file writes each record as one entry of the journal, with its priority. USR2 reopens the
log file. No locks are used, so no thread waits for the record of another, and no lock is held at a fork.
"""

from __future__ import annotations

import io
import logging
import os
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from psched import telemetry
from psched.backends import is_driver_error
from psched.error_messages import ESCAPES, one_line
from psched.errors import (
    ArgumentsError,
    ConfigError,
    IdempotentAlreadyFinishedError,
    OutcomeUnknownError,
    PreemptedError,
    ScheduleError,
    UnstorableResultError,
)
from psched.process import journal
from psched.process.child_protocol import OwnedDescriptor
from psched.task import Task

_STDERR = 2
_FLAGS = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NOCTTY
_MODE = 0o640
_INDENT = "\n    "
_ESCAPED = {code: text for code, text in ESCAPES.items() if chr(code) not in "\n\t"}


class Log:
    """The log file, or stderr if `path` is None. `capture`: redirect the output of the process to the log file, too.

    Reopening keeps the number of the descriptor, so any thread may reopen the file at any time.
    """

    def __init__(self, path: Path | None, capture: bool = False, json: bool = False) -> None:
        """`json`: whether to write records as JSON. Raises ConfigError if the file cannot be opened."""
        self.path = path
        self.json = json
        self._capture = capture
        self._stderr_is_journal = journal.has_stderr()
        self._target = OwnedDescriptor(_STDERR if path is None else _open(path))
        self._redirect()

    @property
    def has_stderr(self) -> bool:
        """Whether log and stderr are the same file."""
        return self._capture or self.path is None

    @property
    def is_journal(self) -> bool:
        return self.path is None and self._stderr_is_journal

    def collect_output(self) -> None:
        """Write the output of this child line by line. In a systemd service, write it to the log's destination.

        Only children call this. The master still writes its standard error to the journal, so that the journal shows
        why a service does not start.
        """
        if isinstance(sys.stdout, io.TextIOWrapper):
            sys.stdout.reconfigure(line_buffering=True)
        self._capture = self._capture or self._stderr_is_journal
        self._redirect()

    def write(self, line: str) -> None:
        """Append one record. The record is lost if the disk is full or gone.

        If a handler has closed the descriptor or reused its number, open the file again.
        """
        with suppress(OSError, ConfigError):
            if not self._target.is_ours() and self.path is not None:
                self._target = OwnedDescriptor(_open(self.path))
            if self._target.is_ours():
                os.write(self._target.descriptor, line.encode("utf-8", "backslashreplace"))

    def reopen(self) -> None:
        """Continue in a new file of the same name, or in the old file if the new one cannot be opened."""
        try:
            self.move(self.path)
        except ConfigError as error:
            logging.getLogger(__name__).error("%s; continuing in the old file", error)

    def move(self, path: Path | None) -> None:
        """Continue in another file, or on stderr. If that fails, change nothing and raise ConfigError."""
        old = self._target
        if path is None:
            self._target = OwnedDescriptor(_STDERR)
            if self.path is not None:
                old.close()
        elif self.path is None or not old.is_ours():
            self._target = OwnedDescriptor(_open(path))
        else:
            new = _open(path)
            os.dup2(new, old.descriptor, inheritable=False)
            os.close(new)
            self._target = OwnedDescriptor(old.descriptor)
        self.path = path
        self._redirect()

    def _redirect(self) -> None:
        if self._capture and self.path is not None:
            os.dup2(self._target.descriptor, 1)
            os.dup2(self._target.descriptor, 2)


class LogHandler(logging.Handler):
    """Writes each record to a `Log` immediately.

    All lines but the first are indented, so that no key can forge a record. The journal has its own time, level and
    process for each entry, so a message in the journal does not repeat them. JSON records always contain them.
    """

    def __init__(self, log: Log) -> None:
        super().__init__()
        self.setFormatter(_Formatter("%(asctime)s %(levelname)s [%(process)d] %(name)s: %(message)s"))
        self._log = log
        self._json: logging.Formatter | None = None

    def handle(self, record: logging.LogRecord) -> bool:
        """Handle a record without a lock: a write is atomic, and a stuck thread would hold the lock for ever."""
        wanted = bool(self.filter(record))
        if wanted:
            self.emit(record)
        return wanted

    def emit(self, record: logging.LogRecord) -> None:
        try:
            if self._log.json:
                self._emit_json(record)
            elif self._log.is_journal:
                self._send(record.levelno, _ENTRY.format(record).translate(_ESCAPED))
            else:
                self._log.write(self.format(record).translate(_ESCAPED).replace("\n", _INDENT) + "\n")
        except Exception:  # noqa: BLE001 – as every logging.Handler does
            self.handleError(record)

    def _emit_json(self, record: logging.LogRecord) -> None:
        if self._json is None:
            from psched.structured_logging import JSONFormatter  # noqa: PLC0415 – imported only if it is configured

            self._json = JSONFormatter()
        line = self._json.format(record)
        if self._log.is_journal:
            self._send(record.levelno, line)
        else:
            self._log.write(line + "\n")

    def _send(self, level: int, message: str) -> None:
        try:
            journal.send(level, message)
        except OSError:  # a service with a root folder of its own may not see the journal's socket
            self._log.write(journal.lines(level, message))


_ENTRY = logging.Formatter("%(name)s: %(message)s")


class _Formatter(logging.Formatter):
    """Formats local time with milliseconds and UTC offset, because hosts and readers are in different time zones."""

    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:  # noqa: N802 – logging's name
        moment = time.localtime(record.created)
        return f"{time.strftime('%Y-%m-%d %H:%M:%S', moment)}.{int(record.msecs):03d} {time.strftime('%z', moment)}"


def begin_logging(log: Log) -> None:
    """Send the log records of this process, psched's and the application's, to `log`.

    If a program has set up logging itself and configures no `log`, its own handlers are kept.
    """
    root = logging.getLogger()
    if root.handlers and log.path is None:
        return
    for handler in list(root.handlers):
        root.removeHandler(handler)
    root.addHandler(LogHandler(log))
    root.setLevel(logging.INFO)
    logging.captureWarnings(True)


def _open(path: Path) -> int:
    try:
        return os.open(path, _FLAGS, _MODE)
    except OSError as error:
        raise ConfigError(
            f"log: cannot write {path}: {error.strerror}; name another file, or remove `log` to write to stderr"
        ) from error


_runs_log = logging.getLogger("psched.runs")
_LONGEST_NAME = 200
"""The maximum number of characters of an error in the log line of its run. The traceback follows in full."""


def log_runs(json: bool = False) -> None:
    """From now on, log the end of each run. A telemetry listener does so. Idempotent.

    `json`: also log, one by one, the runs that are settled together, and let each record of a handler name its run.
    """
    if json:
        import psched.structured_logging  # noqa: F401, PLC0415 – attaches the listener for run contexts
    telemetry.attach(_log_each_run if json else _log_run, "run_skip", "run_error", "settle", "lease_lost")


def _log_each_run(event: telemetry.Event, fields: dict[str, Any]) -> None:
    if event == "settle" and fields["error"] is None:
        for task in fields["tasks"]:
            _log_settled_run(task, logging.DEBUG if task.outcome == "released" else logging.INFO)
    else:
        _log_run(event, fields)


def _log_run(event: telemetry.Event, fields: dict[str, Any]) -> None:
    if event == "settle" and fields["error"] is None:
        _log_settled(fields["section"], fields["tasks"])
    elif event == "settle":
        for task in fields["tasks"]:
            _log_unsettled(task, fields["error"])
    elif event == "run_error":
        _log_error(fields["task"], fields["error"])
    elif event == "run_skip":
        task, reason = fields["task"], fields["reason"]
        said = _said("run_skipped", task, reason)
        _runs_log.error("key=%s type=%s %s", task.key, task.type, reason, extra=said)
    else:
        task = fields["task"]
        said = _said("lease_lost", task)
        _runs_log.info("key=%s preempted: this worker has lost its lease", task.key, extra=said)


def _said(event: str, task: Task, error: str | None = None, **fields: Any) -> dict[str, Any]:
    """Return the fields for `JSONFormatter` that describe a run, as the `extra` of a record."""
    return {"psched_event": event, "psched_task": task, "psched_error": error, "psched_fields": fields}


def _log_settled(section: str, tasks: Sequence[Task]) -> None:
    """Log a single run with its outcome, or the number of several runs. Several runs have all finished."""
    if len(tasks) == 1 or _runs_log.isEnabledFor(logging.DEBUG):
        for task in tasks:
            _log_settled_run(task, logging.DEBUG if len(tasks) > 1 or task.outcome == "released" else logging.INFO)
    if len(tasks) > 1:
        _runs_log.info("section=%s %d runs finished, the last one key=%s", section, len(tasks), tasks[-1].key)


def _log_settled_run(task: Task, level: int) -> None:
    said = _said(f"run_{task.outcome}", task, duration_ms=round(task.duration * 1000, 3))
    _runs_log.log(level, "key=%s type=%s %s", task.key, task.type, task.describe_outcome(), extra=said)


def _log_unsettled(task: Task, error: Exception | str) -> None:
    said = _said("run_unsettled", task, error if isinstance(error, str) else one_line(error))
    if isinstance(error, str):
        _runs_log.warning("key=%s %s", task.key, error, extra=said)
    elif isinstance(error, OutcomeUnknownError):
        _runs_log.warning("key=%s type=%s outcome unknown: %s", task.key, task.type, error, extra=said)
    elif isinstance(error, PreemptedError):
        _runs_log.info("key=%s preempted: %s", task.key, error, extra=said)
    elif isinstance(error, IdempotentAlreadyFinishedError):
        _runs_log.debug("key=%s %s", task.key, error, extra=said)  # settled by this worker; the answer was lost
    elif isinstance(error, ScheduleError):
        _runs_log.info("key=%s the outcome of this run was not stored: %s", task.key, error, extra=said)
    else:
        words = "key=%s type=%s could not be settled: %s; it runs again when its lease ends"
        trace = None if is_driver_error(error) else error
        _runs_log.error(words, task.key, task.type, one_line(error), exc_info=trace, extra=said)


def _log_error(task: Task, error: BaseException) -> None:
    says_all = isinstance(error, ArgumentsError | UnstorableResultError)  # raised by psched's own checks
    trace = None if says_all else error
    name = (repr(error).splitlines() or [""])[0][: None if says_all else _LONGEST_NAME]
    said = _said("run_error", task, name)
    if task.settled:
        words = "key=%s type=%s handler raised after the run was %s"
        _runs_log.error(words, task.key, task.type, task.outcome, exc_info=error, extra=said)
    elif task.stop_reason is not None:
        _runs_log.info("key=%s type=%s handler raised when asked to stop: %r", task.key, task.type, error, extra=said)
    else:
        good = " for good, as this was its last attempt" if task.last_attempt else ""
        _runs_log.error("key=%s type=%s failed%s: %s", task.key, task.type, good, name, exc_info=trace, extra=said)
