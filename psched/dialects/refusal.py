"""Why a PostgreSQL turned a client away, as its SQLSTATE says: libpq tells of a refusal in the server's language only.

So who was refused tries once more and has libpq write down what it hears. Used in children and clients.
"""

from __future__ import annotations

import os
import re
import selectors
import tempfile
import time
from contextlib import suppress
from typing import Any

_STATE = re.compile(rb'^B\t\d+\tErrorResponse\t.*? C "([0-9A-Z]{5})" ', re.MULTILINE)


def refusal(error: Any, seconds: float) -> str | None:
    """Return the SQLSTATE of what psycopg's `error` in connecting is about; None when that is not to be had.

    Asks a server that has asked for a password, and no other: one that is away, starting or full does not. Takes
    `seconds` at the most, but for the resolving of names, and never raises what the driver does.
    """
    attempt = error.pgconn
    if attempt is None or not (attempt.used_password or attempt.needs_password):
        return None
    from psycopg import Error  # noqa: PLC0415 – another driver may be installed instead

    with _unseen() as record:
        with suppress(Error):  # of a libpq that writes nothing down; what was asked first has its own
            _try_again(_conninfo(attempt), record.fileno(), time.monotonic() + seconds)
        record.seek(0)
        states = _STATE.findall(record.read())
    return states[-1].decode() if states else None


def _unseen() -> Any:
    """Return a file that nobody else can open; what stands in it may be a password."""
    if hasattr(os, "memfd_create"):
        return os.fdopen(os.memfd_create("psched"), "r+b")
    return tempfile.TemporaryFile()


def _conninfo(attempt: Any) -> bytes:
    from psycopg.conninfo import make_conninfo  # noqa: PLC0415 – another driver may be installed instead

    given = {option.keyword.decode(): option.val.decode() for option in attempt.info if option.val}
    return make_conninfo("", **given).encode()


def _try_again(conninfo: bytes, record: int, end: float) -> None:
    from psycopg import pq  # noqa: PLC0415 – another driver may be installed instead

    connection = pq.PGconn.connect_start(conninfo)
    try:
        connection.trace(record)
        connection.set_trace_flags(pq.Trace.SUPPRESS_TIMESTAMPS)
        while (step := connection.connect_poll()) in (pq.PollingStatus.READING, pq.PollingStatus.WRITING):
            reading = step == pq.PollingStatus.READING
            if not _is_ready(connection.socket, selectors.EVENT_READ if reading else selectors.EVENT_WRITE, end):
                return
    finally:
        connection.untrace()  # which writes out the rest
        connection.finish()


def _is_ready(socket: int, event: int, end: float) -> bool:
    with selectors.DefaultSelector() as selector:
        selector.register(socket, event)
        return bool(selector.select(max(0.0, end - time.monotonic())))
