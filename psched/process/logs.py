"""The log of master and children. Each record is appended by one write.

A systemd service without a log file writes each record as one entry of the journal, with its priority. USR2 reopens the
log file. No locks are used, so no thread waits for the record of another, and no lock is held at a fork.
"""

from __future__ import annotations

import errno
import io
import logging
import os
import sys
import time
from contextlib import suppress
from pathlib import Path

from psched.error_messages import ESCAPES
from psched.errors import ConfigError
from psched.process import journal
from psched.process.owned_descriptor import OwnedDescriptor

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
        """Handle a record without a lock. A write is atomic, and a stuck thread would hold the lock for ever."""
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

    If `log` has no path and a program has set up log handlers of its own, change nothing.
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
    """Open the file for appending. Never waits, not even for the reader of a named pipe. Raises ConfigError."""
    try:
        descriptor = os.open(path, _FLAGS | os.O_NONBLOCK, _MODE)
    except OSError as error:
        problem = f"{error.strerror};"
        if error.errno == errno.ENXIO:
            problem = "no program reads this pipe; start its reader,"
        raise ConfigError(
            f"log: cannot write {path}: {problem} name another file, or remove `log` to write to stderr"
        ) from error
    os.set_blocking(descriptor, True)
    return descriptor
