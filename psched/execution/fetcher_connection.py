"""The connection of a handler child to the fetching child.

It receives tasks and reports ended runs and settled rows.
"""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import astuple
from typing import Any, Protocol

from psched.acquisition.task_source import TaskSource
from psched.clock import monotonic
from psched.execution.stop_event import StopEvent
from psched.model import Claim
from psched.process.dead_child import DeadChild
from psched.process.dispatch_socket import Connection, DispatchSocket, decode_claims
from psched.store.node_registry import NodeRun

_RUNNING = 2.0
"""Seconds between two reports of the runs in progress."""
_RECONNECT = 0.05
"""Seconds between two attempts to connect to a fetching child."""
UNSENT = 0.005
"""Seconds between two attempts to send messages to a full socket."""
_LONGEST_PAUSE = 60.0


class TaskReceiver(Protocol):
    name: str
    source: TaskSource

    def take(self, claims: Sequence[Claim], deadline: float) -> None:
        """Take rows whose leases last at least until `deadline` (boottime seconds)."""


class FetcherConnection:
    """A handler child's connection to the fetching child.

    If the fetching child dies, this object connects to the next fetching child, even during a long run. Safe to use
    from several threads.
    """

    def __init__(
        self,
        dispatch: DispatchSocket,
        child: str,
        dead: Sequence[DeadChild],
        recovered: Callable[[], None],
        siblings: Sequence[str] = (),
    ) -> None:
        """`child`: the name of this child. `dead`: the children whose leases the fetching child must release.

        `recovered`: called when the fetching child has released these leases. `siblings`: the other children that were
        living when this child was forked.
        """
        self._dispatch = dispatch
        self._child = child
        self._dead = dead
        self._recovered = recovered
        self._siblings = siblings
        self._pollers: dict[str, TaskReceiver] = {}
        self._connection: Connection | None = None
        self._is_awaited = self._is_closed = False
        self._has_left = False
        """Whether "left" was sent. The fetching child reads no message after it."""
        self._is_heard = False
        """Whether the fetching child has sent anything over this connection, and so has accepted it."""
        self._runs = 0
        """The number of received tasks whose runs are not yet reported as ended."""
        self._running: Sequence[NodeRun] = ()
        """The runs in progress, as last reported to the fetching child."""
        self._running_at = -math.inf
        self.before_leaving: Callable[[], None] = lambda: None
        """Called to send the last messages before the connection is closed."""
        self._receiving = threading.Lock()
        self._sending = threading.Lock()
        """Held while a message is sent. Also guards `_runs`, `_running` and `_has_left`. A thread that needs
        `_receiving`, too, acquires `_receiving` first."""

    def add(self, poller: TaskReceiver) -> None:
        self._pollers[poller.name] = poller

    @property
    def is_open(self) -> bool:
        return self._connection is not None and self._connection.is_open

    def wait_for_tasks(self, stopping: StopEvent) -> None:
        """Wait until the fetching child has sent something, or `stopping` is set. Callable before pollers exist.

        If the fetching child ends, connect to the next one.
        """
        while not stopping.is_set():
            with self._receiving:
                if self._connection is None or self._connection.has_ended:
                    self._connect()
                connection = self._connection
            if connection is None or not connection.is_open:
                stopping.wait(_RECONNECT)
            elif stopping.wait_for([connection.fileno()], _LONGEST_PAUSE) and not connection.has_ended:
                return

    def descriptor(self) -> int | None:
        """Return a descriptor that is readable when tasks arrive. It stays valid until the next `receive`."""
        with self._receiving:
            self._is_awaited = True
            return self._connection.fileno() if self._connection is not None and self._connection.is_open else None

    @property
    def has_unsent(self) -> bool:
        """Whether messages did not fit into the socket. `receive` and `renew` send the rest."""
        return self._connection is not None and self._connection.has_unsent

    def pause(self) -> float:
        """Return the seconds until the next `receive` if no tasks arrive."""
        if not self.is_open:
            return _RECONNECT
        return UNSENT if self.has_unsent else _LONGEST_PAUSE

    def receive(self) -> None:
        """Pass the received tasks to their pollers."""
        self._flush()
        with self._receiving:
            self._is_awaited = False
            if not self.is_open:
                self._take_last()
                self._connect()
            if self._connection is not None:
                self._take(self._connection.receive())

    def renew(self) -> None:
        """During a run, receive tasks. If the fetching child has ended, connect to the next one, and report to it."""
        self._flush()
        with self._receiving:
            if self._is_awaited or self._is_closed or self._connection is None:
                return
            self._take(self._connection.receive())
            if not self._connection.is_open:
                self._take_last()
                self._connect()

    def report_ended(self, section: str, ended: int, durations: Mapping[str, Sequence[float]]) -> None:
        """Report how many runs have ended, and how long they took.

        `durations`: for each type, how many runs have begun and ended, and their total seconds.
        """
        with self._sending:
            self._runs -= ended
            self._send("ended", section, ended, durations)

    def report_running(self, running: Sequence[NodeRun]) -> bool:
        """Report the runs in progress if they have changed.

        If the last report is less than `_RUNNING` seconds old, report nothing and return False.
        """
        with self._sending:
            if running == self._running:
                return True
            now = monotonic()
            if now < self._running_at + _RUNNING:
                return False
            self._running_at, self._running = now, running
            self._send("running", running)
            return True

    def send(self, *message: Any) -> bool:
        """Send a message. Return False if there is no fetching child."""
        with self._sending:
            return self._send(*message)

    def send_if_heard(self, *message: Any) -> bool:
        """Send a message if the fetching child has accepted this connection. Return whether the message was sent.

        A sent message is lost if the fetching child dies before it reads the message.
        """
        with self._sending:
            return self._is_heard and self._send(*message)

    def _send(self, *message: Any) -> bool:
        if self._connection is not None and not self._has_left:
            self._connection.send(message)
        return self.is_open and not self._has_left

    def _flush(self) -> None:
        if self.has_unsent:
            with self._sending:
                if self._connection is not None:
                    self._connection.flush()

    def close(self) -> None:
        """Close the connection, once. Received messages are handled first.

        Without a connection, connect first: a new fetching child waits for a report of each sibling, even of a sibling
        that is exiting.
        """
        with self._receiving:
            if self._is_closed:
                return
            self._is_closed = True
            if not self.is_open:
                self._take_last()
                self._connect()
            if self._connection is not None:
                self.before_leaving()
                with self._sending:
                    self._send("left")
                    self._has_left = True
                self._take_last()
                self._release_unsent(self._connection)

    def _take_last(self) -> None:
        """Receive the last messages of a fetching child that has ended."""
        if self._connection is not None:
            self._take(self._connection.receive_last())

    def _take(self, messages: Iterable[tuple[Any, ...]]) -> None:
        for kind, *content in messages:
            self._is_heard = True
            if kind == "run":
                section, encoded, deadline = content
                claims = decode_claims(encoded)
                with self._sending:
                    self._runs += len(claims)
                self._pollers[section].take(claims, deadline)
            else:
                self._dead = ()
                self._recovered()

    def _release_unsent(self, ended: Connection) -> None:
        """Release the returned tasks that the connection `ended` has not sent, or has sent only in part."""
        for message in ended.unsent:
            match message:
                case ("returned", section, encoded, deadlines):
                    self._pollers[section].source.release(decode_claims(encoded), min(deadlines))

    def _connect(self) -> None:
        before = self._connection
        with self._sending:
            if before is not None:
                before.close()
            try:
                self._is_heard = False
                self._connection = self._dispatch.connect(self._child)
            except OSError:  # the socket's queue of waiting children is full; the next call tries again
                return
            held = {
                name: [(task.row.key, task.lease.claim) for task in poller.source.held]
                for name, poller in self._pollers.items()
            }
            dead = [astuple(dead) for dead in self._dead]
            self._send("hello", held, self._runs, dead, os.getpid(), self._siblings)
            self._running, self._running_at = (), -math.inf
        if before is not None:
            self._release_unsent(before)
