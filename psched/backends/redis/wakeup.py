"""A bell on a table's wake list: scripts that make rows due push onto it, and who waits is blocked on it (BLPOP).

The list carries no tasks. Each push wakes one of those who wait, which is enough: whoever waits there takes rows of any
type. A worker that takes some types only waits on a list of each of them, as far as the table has had rows of it, and
on one that tells of new types, whose rings are numbered and passed on, so that all these workers get each of them. What
is pushed while nobody waits is forgotten after a second. Used in children.
"""

from __future__ import annotations

import math
from typing import Any

from psched.backends.redis.client import DriverError, RedisServer
from psched.backends.redis.schema import Table
from psched.clock import Clock, monotonic
from psched.store import Accepts

Connection = Any
"""One of redis-py, of whatever class the URL asks for."""

_SHORTEST = 0.001
"""Seconds; Redis takes 0 for ever."""
_OVERDUE = 5.0
"""Seconds by which an answer may be late; then its connection is gone, without a word on the way to here."""
_TRIAL = 0.05
"""Seconds of the first wait on a connection: what is in between may know nothing of commands that wait."""


class WakeList:
    """`Bell` of one waiting thread. It is proven when the server has answered a wait on its connection."""

    def __init__(
        self, server: RedisServer, table: Table, accepts: Accepts | None = None, clock: Clock = monotonic
    ) -> None:
        """Connects to nothing yet. `accepts`: tells which types are taken; None: all."""
        self.proven = False
        self._server = server
        self._table = table
        self._bell = f"{table.prefix}bell"
        self._keys: list[str] = [self._bell]
        self._popped: tuple[bytes, bytes] = (self._bell.encode(), b"1")
        self._new = f"{self._bell}:new".encode()
        self._last_new = 0
        self._owed = 0
        self._accepts = accepts
        self._clock = clock
        self._connection: Connection | None = None
        self._waits = False
        self._until = self._answer_at = 0.0

    def arm(self, seconds: float) -> None:
        """Wait in the list for `seconds`, or so much longer. Raises redis-py's errors."""
        self._until = self._clock() + seconds
        keys = self._keys if self._accepts is None else self._keys_of(self._accepts)
        if self._waits and not self._is_overdue() and keys == self._keys:
            return  # when the server ends that, `rang` goes on
        if self._connection is not None and not self._waits:
            self._read_owed(self._connection)
        if self._connection is not None and (self._waits or not self._is_open(self._connection)):
            self.close()
        if self._connection is None:
            self._connection = self._server.new_connection(self._bell)
        self._keys = keys
        self._wait(self._connection)

    def fileno(self) -> int:
        """Return the descriptor of the connection."""
        if self._connection is None or self._connection._sock is None:
            raise ValueError("the bell is not armed")
        return int(self._connection._sock.fileno())

    def rang(self) -> bool:
        """Tell whether something was pushed; one who was called waits no more, until armed again.

        Whoever is called has something to do now: to wait in the list meanwhile would take rings away from others, and
        can be ended only with the connection. Raises redis-py's errors, closed then.
        """
        connection = self._connection
        if connection is None:
            return False
        try:
            if not connection.can_read(0):
                return False
            if not self._waits:
                self._read_owed(connection)
                return False
            pushed = self._answer(connection) and self._is_news(connection)
            if not pushed and self._clock() < self._until:
                self._wait(connection)
        except DriverError:
            self.close()
            raise
        return pushed

    def disarm(self) -> None:
        """Wait no more: a ring that has come meanwhile goes back to the list, for another one."""
        connection = self._connection
        if connection is None or not self._waits:
            return
        try:
            if connection.can_read(0) and self._answer(connection):
                connection.send_command("RPUSH", *self._popped, check_health=False)
        except DriverError:
            pass  # it is gone, and with it whoever waited in the list
        self.close()

    def close(self) -> None:
        """Close the connection; the server then passes it over. Idempotent."""
        self._waits = self.proven = False
        self._owed = 0
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.disconnect()

    def _is_open(self, connection: Connection) -> bool:
        """Tell whether nothing has come on a connection, not even its end."""
        try:
            return not connection.can_read(0)
        except DriverError:
            return False

    def _is_overdue(self) -> bool:
        """Tell whether the server has not answered although it should have long ago."""
        return self._clock() > self._answer_at + _OVERDUE and self._is_open(self._connection)

    def _wait(self, connection: Connection) -> None:
        # Trying the connection first would mean to wait for an answer.
        longest = math.inf if self.proven else _TRIAL
        seconds = min(max(self._until - self._clock(), _SHORTEST), longest)
        connection.send_command("BLPOP", *self._keys, seconds, check_health=False)
        self._answer_at = self._clock() + seconds
        self._waits = True

    def _answer(self, connection: Connection) -> bool:
        self._waits = False
        pushed = connection.read_response()
        self.proven = True
        if pushed is not None:
            self._popped = (pushed[0], pushed[1])
        return pushed is not None

    def _is_news(self, connection: Connection) -> bool:
        """Tell whether what was popped calls this waiter; what tells of a new type is passed on the first time.

        Numbers of such rings grow, so each ring ends with the first waiter that has had it, or a later one.
        """
        wakeup, number = self._popped
        if wakeup != self._new or not number.isdigit():
            return True
        if int(number) <= self._last_new:
            return False
        self._last_new = int(number)
        connection.send_command("RPUSH", wakeup, number, check_health=False)
        self._owed += 1
        return True

    def _read_owed(self, connection: Connection) -> None:
        """Read the answers to rings that were passed on; a connection that is gone is closed."""
        try:
            while self._owed:
                connection.read_response()
                self._owed -= 1
        except DriverError:
            self.close()

    def _keys_of(self, accepts: Accepts) -> list[str]:
        """Return the lists of the types that are taken, of those the table knows, and the one of new types."""
        # Each time, as somebody may have emptied the database.
        self._server.call_on(self._table.meta, "HSET", self._table.meta, "selective", "1")
        known: list[bytes] = self._server.call_on(self._table.meta, "ZRANGE", f"{self._table.prefix}types", 0, -1)
        taken = [type_ for type_ in (name.decode(errors="replace") for name in known) if accepts(type_)]
        return [self._new.decode(), *(f"{self._bell}:of:{type_}" for type_ in taken)]
