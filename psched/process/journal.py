"""Finds out whether standard error goes to systemd's journal, and writes entries and lines with a priority."""

from __future__ import annotations

import logging
import os
import sys
from pathlib import Path

_STDERR = 2
_PRIORITIES = {logging.DEBUG: 7, logging.INFO: 6, logging.WARNING: 4, logging.ERROR: 3, logging.CRITICAL: 2}
"""The priorities of syslog(3), by level."""


def has_stderr() -> bool:
    """Return whether systemd has connected standard error to the journal ($JOURNAL_STREAM)."""
    stream = os.environ.get("JOURNAL_STREAM")
    try:
        found = os.fstat(_STDERR)
    except OSError:
        return False
    return stream == f"{found.st_dev}:{found.st_ino}"


def send(level: int, message: str) -> None:
    """Write one entry. The message may have several lines. Raises OSError if the journal has no socket.

    Each entry opens its own socket: handlers may close any descriptor, and a shared socket would be used across forks.
    """
    from logging_journald import JournaldTransport  # noqa: PLC0415 – only services need it

    transport = JournaldTransport(connected=False)
    with transport.socket:
        text = message.encode("utf-8", "backslashreplace")
        fields = [("MESSAGE", text), ("PRIORITY", _priority(level)), ("SYSLOG_IDENTIFIER", Path(sys.argv[0]).name)]
        transport.send(fields)


def lines(level: int, message: str) -> str:
    """Return the message as lines for a stream to the journal. Each line becomes an entry with this level."""
    return "".join(f"<{_priority(level)}>{line}\n" for line in message.splitlines())


def write_error(message: str) -> None:
    """Write each line of the message to standard error.

    If standard error goes to the journal, give the lines the priority of errors.
    """
    sys.stderr.write(lines(logging.ERROR, message) if has_stderr() else f"{message}\n")
    sys.stderr.flush()


def _priority(level: int) -> int:
    return min((priority for lowest, priority in _PRIORITIES.items() if level >= lowest), default=7)
