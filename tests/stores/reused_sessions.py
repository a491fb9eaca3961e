"""Sessions of PostgreSQL that one test after another uses.

A new session takes the server 9 ms of processor time until its first answer (2026-11-29), and each test opens some. A
closed connection leaves its session to the next one, which finds it like a new one, by `DISCARD ALL`.
"""

from __future__ import annotations

import os
import select
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar, cast

import psycopg
import pytest
from psycopg import pq

from psched.backends.sql.postgresql import PostgreSQLDialect

_MOST = 8
"""The maximum number of sessions that are kept while no test uses them."""

Key = tuple[str, ...]
"""The arguments of a connection."""


class ReusedSessions:
    """Keeps sessions of one server while `lent` is active, and reuses them. Close it after the last test."""

    def __init__(self, kept: set[int]) -> None:
        """`kept`: file descriptors that may stay open between tests. Those of kept sessions are added."""
        self.port = 0
        """The port of the server, once it is known; 0 before."""
        self._kept = kept
        self._lock = threading.Lock()
        self._idle: list[tuple[Key, pq.PGconn]] = []
        self._parents: list[object] = []
        os.register_at_fork(after_in_child=self._leave_to_parent)

    @contextmanager
    def lent(self) -> Iterator[None]:
        """Let psched's new connections to the server use kept sessions, and keep the sessions of closed connections."""
        connect = PostgreSQLDialect.connect

        def reconnect(
            dialect: PostgreSQLDialect, driver: Any, arguments: Sequence[Any], options: Mapping[str, Any]
        ) -> Any:
            if options.get("port") != self.port or dialect.url.get_driver_name() != "psycopg":
                return connect(dialect, driver, arguments, options)
            key = (*map(str, arguments), *(f"{name}={value}" for name, value in sorted(options.items())))
            session = self._take(key)
            if session is None:
                connection = connect(dialect, driver, arguments, options)
                connection.__class__ = _Connection
            else:
                connection = _Connection(session)
            connection.on_close = lambda ended: self._keep(key, ended)
            return connection

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(PostgreSQLDialect, "connect", reconnect)
            yield

    def close(self) -> None:
        """End the kept sessions."""
        while self._idle:
            self._end(self._idle.pop()[1])

    def _take(self, key: Key) -> pq.PGconn | None:
        with self._lock:
            fitting = [pair for pair in self._idle if pair[0] == key]
            for pair in reversed(fitting):
                self._idle.remove(pair)
                _, session = pair
                if not select.select([session.socket], [], [], 0)[0]:  # else the server has ended the session
                    self._kept.discard(session.socket)
                    return session
                self._end(session)
        return None

    def _keep(self, key: Key, session: pq.PGconn) -> None:
        if session.transaction_status in (pq.TransactionStatus.INTRANS, pq.TransactionStatus.INERROR):
            session.exec_(b"ROLLBACK")
        is_usable = session.transaction_status == pq.TransactionStatus.IDLE
        if not is_usable or session.exec_(b"DISCARD ALL").status != pq.ExecStatus.COMMAND_OK:
            session.finish()
            return
        while session.notifies():
            pass
        with self._lock:
            self._kept.add(session.socket)
            self._idle.append((key, session))
            if len(self._idle) > _MOST:
                self._end(self._idle.pop(0)[1])

    def _end(self, session: pq.PGconn) -> None:
        self._kept.discard(session.socket)
        session.finish()

    def _leave_to_parent(self) -> None:
        """In a forked process: forget the sessions, but free nothing, because that would end the parent's sessions."""
        self._parents.append(self._idle)
        self._idle = []
        self._lock = threading.Lock()


class _Connection(psycopg.Connection[Any]):
    """A connection that passes its session on when it is closed."""

    on_close: Any
    _ended: ClassVar[pq.PGconn | None] = None

    def close(self) -> None:
        if self.closed:
            return
        session, self.pgconn = self.pgconn, self._nothing()
        self._closed = True
        self.on_close(session)

    @classmethod
    def _nothing(cls) -> pq.PGconn:
        """Return a libpq connection that has ended."""
        if cls._ended is None:
            cls._ended = cast("pq.PGconn", pq.PGconn.connect_start(b"host=/nowhere"))
            cls._ended.finish()
        return cls._ended
