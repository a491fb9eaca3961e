"""How a worker waits for work on a table's wake list (BLPOP). Scripts push onto this list when rows become due.

The list holds no tasks. Each element wakes one waiting worker, which then acquires rows of any type. An element that no
worker pops expires after a second.

A worker that takes only some types waits on one list for each of these types, and on a list of new types. A script that
adds the first row of a type pushes a number onto the list of new types, each time a higher number. A worker that pops a
higher number than it has popped before wakes, and pushes the number back for the other workers. A worker that pops any
other number drops it. So each number wakes each of these workers at most once.
"""

from __future__ import annotations

import math
from typing import Any

from psched.backends.redis.client import DriverError, RedisServer
from psched.backends.redis.table_setup import RedisTable
from psched.clock import Clock, monotonic
from psched.store import Accepts

Connection = Any
"""A connection of redis-py. The URL decides its class."""

_SHORTEST = 0.001
"""The shortest wait in seconds, because Redis takes 0 as for ever."""
_OVERDUE = 5.0
"""Seconds by which an answer may be late before the connection counts as lost."""
_LOOK_UP = 60.0
"""Seconds after which a worker reads the known types again, because the database may have been emptied."""
_TRIAL = 0.05
"""Seconds of the first wait on a connection. It is short, because a proxy may not support blocking commands."""


class WakeList:
    """A `Wakeup` for one waiting thread. `proven`: whether the server has answered a wait on the connection."""

    covers_all_hosts = True

    def __init__(
        self, server: RedisServer, table: RedisTable, accepts: Accepts | None, clock: Clock = monotonic
    ) -> None:
        """Opens no connection. `accepts`: the types that this worker takes; None: all types."""
        self.proven = False
        self._server = server
        self._table = table
        self._list = f"{table.prefix}wake"
        self._keys = [self._list]
        self._popped: tuple[bytes, bytes] = (self._list.encode(), b"1")
        self._new = f"{self._list}:new".encode()
        self._last_new = 0
        self._unread = 0
        self._accepts = accepts
        self._clock = clock
        self._connection: Connection | None = None
        self._waits = False
        self._until = self._answer_at = self._look_up_at = 0.0

    def listen(self, seconds: float) -> None:
        """Start or prolong a wait of `seconds`. Raises redis-py's errors."""
        now = self._clock()
        self._until = now + seconds
        is_waiting = self._waits and not self._is_overdue()
        keys = self._keys
        if self._accepts is not None and now >= self._look_up_at:
            keys = self._keys_of(self._accepts)
            self._look_up_at = now + _LOOK_UP
        if is_waiting and keys == self._keys:
            return  # `is_notified` sends the wait again when the server ends it
        if self._waits:
            self.close()  # only closing the connection ends a wait
        self._read_answers()
        if self._connection is None or not self._is_open(self._connection):
            self.close()
            self._connection = self._server.new_connection(self._list)
        self._keys = keys
        self._wait(self._connection)

    def fileno(self) -> int:
        if self._connection is None or self._connection._sock is None:
            raise ValueError("this WakeList has no connection; call listen() first")
        return int(self._connection._sock.fileno())

    def is_notified(self) -> bool:
        """Return whether an element has woken this worker. Pops no other element until the next `listen`.

        So a busy worker takes no element from an idle worker. If the server ends a wait without an element, the wait is
        sent again until the time of `listen` is over. On an error of redis-py, closes the connection and raises the
        error.
        """
        connection = self._connection
        if connection is None:
            return False
        try:
            if not connection.can_read(0):
                return False
            if not self._waits:
                self._read_answers()
                return False
            pushed = self._answer(connection) and self._wakes_us(connection)
            if not pushed and self._clock() < self._until:
                self._wait(connection)
        except DriverError:
            self.close()
            raise
        return pushed

    def stop_listening(self) -> None:
        """End the wait. If an element was popped meanwhile, push it back for another worker."""
        connection = self._connection
        if connection is None or not self._waits:
            return
        try:
            if connection.can_read(0) and self._answer(connection):
                connection.send_command("RPUSH", *self._popped, check_health=False)
        except DriverError:
            pass  # losing the connection also ends the wait
        self.close()

    def close(self) -> None:
        self._waits = self.proven = False
        self._unread = 0
        self._look_up_at = 0.0
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.disconnect()

    def _is_open(self, connection: Connection) -> bool:
        try:
            return not connection.can_read(0)
        except DriverError:
            return False

    def _is_overdue(self) -> bool:
        return self._clock() > self._answer_at + _OVERDUE and self._is_open(self._connection)

    def _wait(self, connection: Connection) -> None:
        """Send BLPOP without redis-py's health check, because that check would wait for an answer."""
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

    def _wakes_us(self, connection: Connection) -> bool:
        """Return whether the popped element wakes this worker.

        The elements of the list of new types are numbers; each new type has a higher number. A number wakes this worker
        if it is higher than the last number that woke this worker. Such a number is pushed back for other workers. Any
        other number is dropped.
        """
        name, number = self._popped
        if name != self._new or not number.isdigit():
            return True
        if int(number) <= self._last_new:
            return False
        self._last_new = int(number)
        self._look_up_at = 0.0
        connection.send_command("RPUSH", name, number, check_health=False)
        self._unread += 1
        return True

    def _read_answers(self) -> None:
        """Read the server's answers to the RPUSH commands of `_wakes_us`. Closes the connection if it is lost."""
        try:
            while self._connection is not None and self._unread:
                self._connection.read_response()
                self._unread -= 1
        except DriverError:
            self.close()

    def _keys_of(self, accepts: Accepts) -> list[str]:
        """Return the list of new types, and the lists of the known types that this worker takes."""
        node = self._server.node(self._table.meta)
        node.hset(self._table.meta, "selective", "1")
        known: list[bytes] = node.zrange(f"{self._table.prefix}types", 0, -1)
        taken = [type_ for type_ in (name.decode(errors="replace") for name in known) if accepts(type_)]
        return [self._new.decode(), *(f"{self._list}:of:{type_}" for type_ in taken)]
