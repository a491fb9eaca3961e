"""Lets the fetching child settle the finished runs of all handler children together, by one statement.

A handler child sends the claims of its finished runs over a socket of its own, and waits for the answer. If the answer
does not come soon, or if a run could not be finished, the child settles its runs itself. That does no harm if the
fetching child has settled them, too: every write compares the fence of the lease.
"""

from __future__ import annotations

import logging
import math
import select
import threading
from collections.abc import Collection, Mapping, Sequence
from itertools import islice
from typing import NamedTuple

from psched.acquisition.task_source import Source
from psched.clock import Clock, boottime, monotonic
from psched.error_messages import one_line
from psched.errors import ScheduleError
from psched.execution.stop_event import StopEvent
from psched.model import Claim, Row, TaskRow
from psched.process.dispatch_socket import Connection, ConnectionSocket, Encoded, decode_claims, encode_claims
from psched.quick_replace import quick_replace
from psched.task import Task

log = logging.getLogger(__name__)

_ANSWER = 1.0
"""How many seconds a handler child waits for the answer. Then it settles its runs itself."""
_LEASE = 3.0
"""A handler child settles a run itself if the lease of the run ends within this many seconds."""
_PAUSE = 5.0
"""After a missing answer, a handler child settles its runs itself for this many seconds."""
_LARGEST = 100
"""A handler child settles more runs than this itself: together with others, they would hardly be cheaper."""
_BATCH = 500
"""The maximum number of runs that the fetching child settles by one statement."""
_GAP = 0.025
"""The minimum number of seconds between two settlements of the fetching child. Meanwhile more runs are collected."""
_UNTIL = 0.5
"""For how many seconds the fetching child repeats a statement that has failed."""
_UNSENT = 0.005
"""Seconds between two attempts to send answers to a full socket."""
_LONGEST_PAUSE = 60.0


class SettlementConnection:
    """A handler child's connection for settlements, to the current fetching child. Safe to use from several threads."""

    def __init__(self, socket: ConnectionSocket, child: str, clock: Clock = monotonic) -> None:
        """`child`: the name of this child."""
        self._socket = socket
        self._child = child
        self._clock = clock
        self._connection: Connection | None = None
        self._retry_at = -math.inf
        self._lock = threading.Lock()

    def finish_many(self, section: str, claims: Sequence[Claim]) -> tuple[float, list[bool]] | None:
        """Let the fetching child finish the runs. Return how many seconds that took, and whether each run is finished.

        Return None if the fetching child does not answer in time, or if another thread is waiting for an answer.
        """
        if not self._lock.acquire(blocking=False):
            return None
        try:
            return self._ask(("finish", section, encode_claims(claims)))
        finally:
            self._lock.release()

    def _ask(self, request: tuple[str, str, Encoded]) -> tuple[float, list[bool]] | None:
        if self._clock() < self._retry_at:
            return None
        if self._connection is None:
            try:
                self._connection = self._socket.connect(self._child)
            except OSError:  # many children wait to be accepted, so there is no fetching child
                self._retry_at = max(self._retry_at, self._clock() + _PAUSE)
                return None
        connection, end = self._connection, self._clock() + _ANSWER
        connection.send(request)
        poll = select.poll()
        while connection.is_open and (left := end - self._clock()) > 0:
            connection.flush()
            for seconds, are_finished in connection.receive():
                return seconds, are_finished
            if connection.is_open:
                poll.register(connection.fileno(), select.POLLIN | (select.POLLOUT if connection.has_unsent else 0))
                poll.poll(left * 1000)
        connection.close()  # a late answer must not be taken for the answer to the next request
        self._connection = None
        self._retry_at = max(self._retry_at, self._clock() + _PAUSE)
        return None

    def stop(self) -> None:
        """From now on, let this child settle its runs itself, because the fetching child stops, too."""
        self._retry_at = math.inf


class GroupSettlement:
    """Finishes runs of one section through the fetching child, or else by statements of this child."""

    def __init__(self, section: str, source: Source, connection: SettlementConnection) -> None:
        self._section = section
        self._settlement = source.settlement
        self._connection = connection
        self.seconds: float | None = None
        """How long the fetching child's statement took at the last `finish_many`. None: this child settled the runs."""

    def accepts(self, tasks: Sequence[Task], now: float) -> bool:
        """Return whether the fetching child should finish these runs. `now`: boottime seconds."""
        return len(tasks) <= _LARGEST and min(task.deadline for task in tasks) > now + _LEASE

    def finish_many(self, claims: Sequence[Claim], until: float) -> list[ScheduleError | None]:
        """Finish runs like `Settlement.finish_many`."""
        self.seconds, left = None, claims
        answer = self._connection.finish_many(self._section, [_without_data(claim) for claim in claims])
        if answer is not None:
            self.seconds, are_finished = answer
            left = [claim for claim, is_finished in zip(claims, are_finished, strict=True) if not is_finished]
            if not left:
                return [None] * len(claims)
        # the fetching child may have finished these runs, although it has not said so
        doubtful = [claim._replace(lease=claim.lease._replace(unanswered=True)) for claim in left]
        answers = dict(zip([claim.lease for claim in left], self._settlement.finish_many(doubtful, until), strict=True))
        return [answers.get(claim.lease) for claim in claims]


def _without_data(claim: Claim) -> Claim:
    """Remove the data of the row, which may be large. Finishing a run does not need it."""
    row = claim.row
    small: Row = row._replace(data={}) if isinstance(row, TaskRow) else quick_replace(row, data={})
    return claim._replace(row=small)


class _Request(NamedTuple):
    connection: Connection
    section: str
    claims: list[Claim]


class GroupSettlementThread(threading.Thread):
    """In the fetching child: finishes the runs that the handler children send."""

    def __init__(
        self, sources: Mapping[str, Source], socket: ConnectionSocket, stopping: StopEvent, clock: Clock = boottime
    ) -> None:
        """`sources`: by section. `socket`: where the handler children connect. `stopping`: ends the thread."""
        super().__init__(name="group settlement", daemon=True)
        self._sources = sources
        self._socket = socket
        self._stopping = stopping
        self._clock = clock
        self._connections: list[Connection] = []
        self._requests: list[_Request] = []
        self._settle_at = -math.inf

    def run(self) -> None:
        try:
            while not self._stopping.is_set():
                self.work(self._wait())
        finally:
            for connection in self._connections:
                connection.close()

    def work(self, ready: Collection[int]) -> None:
        """Receive requests. Settle all of them if the last settlement was long enough ago.

        `ready`: the descriptors that are readable.
        """
        if self._socket.fileno() in ready:
            self._connections += [connection for _, connection in self._socket.accept()]
        for connection in self._connections:
            if connection.fileno() in ready:
                for _, section, encoded in connection.receive():
                    self._requests.append(_Request(connection, section, decode_claims(encoded)))
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
        claims = [claim for request in requests for claim in request.claims]
        begun = self._clock()
        are_finished: list[bool] = []
        for start in range(0, len(claims), _BATCH):
            are_finished += self._finish(section, claims[start : start + _BATCH])
        seconds, rest = self._clock() - begun, iter(are_finished)
        for connection, _, own in requests:
            connection.send((seconds, list(islice(rest, len(own)))))

    def _finish(self, section: str, claims: Sequence[Claim]) -> list[bool]:
        """Finish the runs by one statement. Return whether each is finished; its child deals with the others."""
        try:
            answers = self._sources[section].settlement.finish_many(claims, self._clock() + _UNTIL)
        except Exception as error:  # noqa: BLE001 – whatever a driver raises: each child settles its runs itself
            log.debug("section=%s %d runs were not settled together: %s", section, len(claims), one_line(error))
            return [False] * len(claims)
        return [answer is None for answer in answers]

    def _wait(self) -> Collection[int]:
        """Wait for a request, or until the next settlement is due. Return the readable descriptors."""
        pause = max(0.0, self._settle_at - self._clock()) if self._requests else _LONGEST_PAUSE
        if any(connection.has_unsent for connection in self._connections):
            pause = min(pause, _UNSENT)
        return self._stopping.wait_for([self._socket.fileno(), *[one.fileno() for one in self._connections]], pause)
