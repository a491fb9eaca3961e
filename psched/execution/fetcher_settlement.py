"""Lets the fetching child settle the finished runs of all handler children together, by one statement.

A handler child sends the claims of its runs, and waits for the answer. It uses a socket for this alone. If no answer
comes within a second, the child settles the runs itself. If the answer says that some runs were not finished, the child
settles only those. If both children settle the same run, only the first write changes the row, because every write
compares the fence of the lease.
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Collection, Mapping, Sequence
from itertools import islice
from typing import NamedTuple

from psched.acquisition.task_source import TaskSource
from psched.clock import Clock, boottime
from psched.error_messages import one_line
from psched.errors import ScheduleError
from psched.execution.stop_event import StopEvent
from psched.model import Claim, Row, TaskRow
from psched.process.dispatch_socket import Connection, ConnectionSocket, decode_claims, encode_claims
from psched.quick_replace import quick_replace
from psched.task import Task

log = logging.getLogger(__name__)

_ANSWER = 1.0
"""How many seconds a handler child waits for the answer. Then it settles its runs itself."""
_LEASE = 3.0
"""If the lease of one run ends within this many seconds, a handler child settles its runs itself."""
_PAUSE = 5.0
"""After a missing answer, a handler child settles its runs itself for this many seconds."""
_LARGEST = 100
"""The maximum number of runs in a request. A handler child settles a larger group of runs itself, because a larger
statement would hardly be cheaper per run.
"""
_BATCH = 500
"""The maximum number of runs that the fetching child settles by one statement."""
_GAP = 0.025
"""The minimum number of seconds between two settlements of the fetching child. Meanwhile more runs are collected."""
_UNTIL = 0.5
"""The maximum number of seconds for which the fetching child repeats a failed statement."""
_RESTART = 1.0
"""Seconds for which the fetching child settles no runs after an unexpected error."""
_UNSENT = 0.005
"""Seconds between two attempts to send to a full socket."""
_LONGEST_PAUSE = 60.0


class GroupAnswer(NamedTuple):
    """The answer to a request. `seconds`: how long the fetching child's statement took.

    `are_finished`: for each run, whether it is finished, or None if that is unknown.
    """

    seconds: float
    are_finished: Sequence[bool | None]


class SettlementConnection:
    """A handler child's connection for settlements, to the current fetching child. Safe to use from several threads."""

    def __init__(self, socket: ConnectionSocket, child: str, stopping: StopEvent, clock: Clock = boottime) -> None:
        """`child`: the name of this child.

        `stopping`: set when this child stops. From then on, this child settles its runs itself, because the fetching
        child may stop, too.
        """
        self._socket = socket
        self._child = child
        self._stopping = stopping
        self._clock = clock
        self._connection: Connection | None = None
        self._retry_at = -math.inf
        self._lock = threading.Lock()

    def finish_many(self, section: str, claims: Sequence[Claim]) -> GroupAnswer | None:
        """Let the fetching child finish the runs, and return its answer.

        Return None if the fetching child was not asked. It is not asked while another thread waits for an answer, and
        for some seconds after a request without an answer.
        """
        if self._stopping.is_set() or not self._lock.acquire(blocking=False):
            return None
        try:
            return self._ask(section, claims)
        finally:
            self._lock.release()

    def _ask(self, section: str, claims: Sequence[Claim]) -> GroupAnswer | None:
        if self._clock() < self._retry_at:
            return None
        if self._connection is None:
            try:
                self._connection = self._socket.connect(self._child)
            except OSError:  # many children wait to be accepted, so there is no fetching child
                self._retry_at = self._clock() + _PAUSE
                return None
        connection, end = self._connection, self._clock() + _ANSWER
        connection.send(("finish", section, encode_claims(claims), end))
        while connection.is_open and not self._stopping.is_set() and (left := end - self._clock()) > 0:
            connection.flush()
            for seconds, are_finished in connection.receive():
                return GroupAnswer(seconds, are_finished)
            if connection.is_open:
                pause = min(left, _UNSENT) if connection.has_unsent else left
                self._stopping.wait_for([connection.fileno()], pause)
        connection.close()  # a late answer must not be taken for the answer to the next request
        self._connection = None
        self._retry_at = self._clock() + _PAUSE
        return GroupAnswer(0.0, [None] * len(claims))


class GroupSettlement:
    """Finishes runs of one section. The fetching child finishes them if it can; otherwise this child does."""

    def __init__(
        self, section: str, source: TaskSource, connection: SettlementConnection, clock: Clock = boottime
    ) -> None:
        self._section = section
        self._settlement = source.settlement
        self._connection = connection
        self._clock = clock
        self.seconds = 0.0
        """How many seconds the statement took that settled the most recent runs."""
        self.own_seconds = 0.0
        """Like `seconds`, but 0 if the fetching child executed the statement."""

    def accepts(self, tasks: Sequence[Task], now: float) -> bool:
        """Return whether the fetching child should finish these runs. `now`: boottime seconds."""
        is_cheaper = self._settlement.finishes_together and len(tasks) <= _LARGEST
        return is_cheaper and min(task.deadline for task in tasks) > now + _LEASE

    def finish_many(self, claims: Sequence[Claim], until: float) -> list[ScheduleError | None]:
        """Finish runs; see `Settlement.finish_many`."""
        answer = self._connection.finish_many(self._section, [_without_data(claim) for claim in claims])
        left = claims if answer is None else _left(claims, answer.are_finished)
        if answer is not None and not left:
            self.seconds, self.own_seconds = answer.seconds, 0.0
            return [None] * len(claims)
        begun = self._clock()
        errors = self._settlement.finish_many(left, until)
        self.seconds = self.own_seconds = self._clock() - begun
        if answer is None:
            return errors
        rest = iter(errors)
        return [None if is_finished else next(rest) for is_finished in answer.are_finished]


def _left(claims: Sequence[Claim], are_finished: Sequence[bool | None]) -> list[Claim]:
    """Return the claims of the runs that are not known to be finished."""
    return [
        claim._replace(lease=claim.lease._replace(unanswered=True)) if is_finished is None else claim
        for claim, is_finished in zip(claims, are_finished, strict=True)
        if not is_finished
    ]


def _without_data(claim: Claim) -> Claim:
    """Remove the data of the row. Data may be large, and finishing a run does not need it."""
    row = claim.row
    small: Row = row._replace(data={}) if isinstance(row, TaskRow) else quick_replace(row, data={})
    return claim._replace(row=small)


class _Request(NamedTuple):
    connection: Connection
    section: str
    claims: list[Claim]
    end: float
    """When the handler child stops waiting for the answer, in boottime seconds."""


class GroupSettlementThread(threading.Thread):
    """In the fetching child: finishes the runs that the handler children send."""

    def __init__(
        self, sources: Mapping[str, TaskSource], socket: ConnectionSocket, stopping: StopEvent, clock: Clock = boottime
    ) -> None:
        """`sources`: one per section. `socket`: where the handler children connect. `stopping`: ends the thread."""
        super().__init__(name="group settlement", daemon=True)
        self._sources = sources
        self._socket = socket
        self._stopping = stopping
        self._clock = clock
        self._connections: list[Connection] = []
        self._requests: list[_Request] = []
        self._settle_at = -math.inf

    def run(self) -> None:
        while not self._stopping.is_set():
            try:
                self.work(self._wait())
            except Exception:
                log.exception("group settlement failed; handler children settle their runs themselves for some seconds")
                self._close()
                self._stopping.wait(_RESTART)
        self._close()

    def _close(self) -> None:
        """Close all connections, so that no handler child waits for an answer."""
        for connection in self._connections:
            connection.close()
        self._connections, self._requests = [], []

    def work(self, ready: Collection[int]) -> None:
        """Receive requests. If the last settlement began at least `_GAP` seconds ago, settle them all.

        `ready`: the descriptors that are readable.
        """
        if self._socket.fileno() in ready:
            self._connections += [connection for _, connection in self._socket.accept()]
        for connection in self._connections:
            if connection.fileno() in ready:
                for _, section, encoded, end in connection.receive():
                    self._requests.append(_Request(connection, section, decode_claims(encoded), end))
            if connection.has_unsent:
                connection.flush()
            if not connection.is_open:
                connection.close()
        self._connections = [connection for connection in self._connections if connection.is_open]
        begun = self._clock()
        if self._requests and begun >= self._settle_at:
            requests, self._requests = self._requests, []
            for section in dict.fromkeys(request.section for request in requests):
                self._settle(section, [request for request in requests if request.section == section])
            self._settle_at = begun + _GAP

    def _settle(self, section: str, requests: Sequence[_Request]) -> None:
        begun = self._clock()
        requests = [request for request in requests if begun < request.end]  # the other children settle themselves
        claims = [claim for request in requests for claim in request.claims]
        are_finished: list[bool | None] = []
        for start in range(0, len(claims), _BATCH):
            are_finished += self._finish(section, claims[start : start + _BATCH])
        seconds, rest = self._clock() - begun, iter(are_finished)
        for request in requests:
            request.connection.send((seconds, list(islice(rest, len(request.claims)))))

    def _finish(self, section: str, claims: Sequence[Claim]) -> Sequence[bool | None]:
        """Finish the runs by one statement. Return for each run whether it is finished, or None if that is unknown."""
        try:
            answers = self._sources[section].settlement.finish_many(claims, self._clock() + _UNTIL)
        except Exception as error:  # noqa: BLE001 – whatever a driver raises: each child settles its runs itself
            log.debug("section=%s %d runs were not settled together: %s", section, len(claims), one_line(error))
            return [None] * len(claims)
        return [answer is None for answer in answers]

    def _wait(self) -> Collection[int]:
        """Wait for a request, or until the next settlement is due. Return the readable descriptors."""
        pause = max(0.0, self._settle_at - self._clock()) if self._requests else _LONGEST_PAUSE
        if any(connection.has_unsent for connection in self._connections):
            pause = min(pause, _UNSENT)
        return self._stopping.wait_for([self._socket.fileno(), *[one.fileno() for one in self._connections]], pause)
