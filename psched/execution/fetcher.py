"""Acquires rows for all handler children of a master, and sends each row to a child that is free to run it.

The fetcher and the handler children share one holder of leases. The child that gets a row runs it, renews its lease and
settles it over a database connection of the child. Running tasks therefore do not depend on the fetcher. It can be
replaced at any time.
"""

from __future__ import annotations

import logging
import math
from collections import defaultdict, deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from operator import attrgetter
from typing import Any, NamedTuple

from psched.acquisition.task_source import TaskSource
from psched.acquisition.types_with_rows import TypesWithRows
from psched.clock import Clock, monotonic
from psched.error_messages import one_line
from psched.execution.batch_size import MOST_TYPES, BatchSizer
from psched.execution.opened_stores import OpenSection
from psched.execution.poll_timer import PollTimer
from psched.execution.poller import RowPoller
from psched.execution.run_stats import Counted
from psched.execution.stop_event import StopEvent
from psched.model import Claim
from psched.process.dead_child import DeadChild
from psched.process.dispatch_socket import Connection, DispatchSocket, Encoded, decode_claims, encode_claims
from psched.store import Accepts
from psched.store.node_registry import NodeProcess, NodeRun

log = logging.getLogger(__name__)

_MOMENT = 0.02
"""How many seconds of work a child gets at a time."""
_AHEAD = 0.04
"""How many seconds of work are acquired in advance for each child, so that rows are waiting when the child becomes
free."""
_LARGEST = 500
_SOON = 0.01
"""If a run is expected to end within this many seconds, its child gets the next row in advance. So the next run does
not wait for a message. The median pause between two runs of a busy child is then 0.4 instead of 1.2 ms (29 November
2026)."""
_LARGEST_MESSAGE = 1 << 20
"""The approximate maximum number of bytes of a batch that has more than one row. If the first run of a batch takes
long, the child returns the other rows, and a small batch is returned quickly. Rows of 100 kB waited up to 110 ms for an
idle child without this limit, and wait up to 40 ms with it (29 November 2026)."""
_FITS = 1 << 16
"""Bytes. If rows are larger than this on average, no row is sent in advance. Such a row does not fit into the buffer of
a socket, so a busy child would read it in pieces."""
_DEVIATIONS = 4
"""A run is expected to end within the average duration of its type plus this many average deviations."""
_PATIENCE = 0.25
"""If a row waits this many seconds for a free child, all waiting rows are released. A worker of another host may be
idle."""
_UNKNOWN = 0.2
"""How many seconds a run of an unknown type is expected to take."""
_WEIGHT = 0.1
"""The weight of a new value in three moving averages: how long a run of any type takes, how much the durations of one
type deviate, and how many bytes a row has."""
_LONGEST_COUNTED = 1.0
"""The maximum number of seconds that one run contributes to the average duration of runs of all types."""
_RETRY = 0.25
"""Seconds between two attempts to release the leases of dead children."""
_SECOND_SWEEP = 5.0
"""Seconds from the first to the second release of leases that no process knows. During the first release, a statement
of the dead fetcher may still have been in progress."""
_UNSENT = 0.005
"""Seconds between two attempts to send messages to a full socket."""
_LONGEST_PAUSE = 60.0


class FetchedRow(NamedTuple):
    section: str
    claim: Claim
    deadline: float
    """The earliest end of the row's lease, in boottime seconds."""
    fetched_at: float
    """When the row was acquired, in monotonic seconds."""


@dataclass(eq=False)
class ConnectedChild:
    """A handler child as the fetcher knows it."""

    connection: Connection
    rows: defaultdict[str, dict[str, int]] = field(default_factory=partial(defaultdict, dict))
    """The unsettled rows of the child: `Lease.claim` by section and key. The claim is needed because a key may be
    acquired again."""
    runs: int = 0
    """The number of sent rows whose runs have not ended."""

    began_at: float = -math.inf
    """When the last run began, in monotonic seconds. Known from the child's reports only."""
    longest: float = math.inf
    """The row that was sent last is expected to run for at most this many seconds."""
    has_reported: bool = False
    """Whether the child has sent the message "hello". This message replaces `rows` and `runs`."""
    pid: int = 0
    running: tuple[NodeRun, ...] = ()
    """The runs in progress, as the child last reported them."""

    def forget(self, section: str, key: str, claim: int) -> bool:
        """Remove a row. Return False if the child does not have the row.

        A row that the child does not have was released by `Fetcher._sweep`, or will be.
        """
        rows = self.rows[section]
        is_here = rows.get(key) == claim
        if is_here:
            del rows[key]
        return is_here

    @property
    def is_free(self) -> bool:
        return self.connection.is_open and self.has_reported and self.runs == 0

    @property
    def ends_by(self) -> float:
        """When the child's only run is expected to have ended, in monotonic seconds. Infinite if that is unknown."""
        is_one = self.connection.is_open and self.has_reported and self.runs == 1
        return self.began_at + self.longest if is_one else math.inf


class FetchLimit(BatchSizer):
    """A batch sizer whose limit the fetcher sets. Averages durations of runs and their deviations, for each type."""

    def __init__(self) -> None:
        super().__init__(1)
        self.wanted = 1
        self._deviations: dict[str, float] = {}

    def limit(self) -> int:
        return self.wanted

    def observe_run(self, type: str, seconds: float, count: int = 1) -> None:
        known, deviation = self.expected(type), self._deviations.pop(type, 0.0)
        super().observe_run(type, seconds, count)
        if known is not None:
            self._deviations[type] = deviation + _WEIGHT * (abs(seconds - known) - deviation)
        if len(self._deviations) > MOST_TYPES:
            del self._deviations[next(iter(self._deviations))]

    def longest(self, type: str) -> float:
        """Return how many seconds a run of this type is expected to take at most; infinity if that is unknown."""
        known, deviation = self.expected(type), self._deviations.get(type)
        return math.inf if known is None or deviation is None else known + _DEVIATIONS * deviation


class FetchSource:
    """Acquires rows without creating tasks. The child that runs a row creates the task."""

    def __init__(self, section: str, source: TaskSource, clock: Clock) -> None:
        self.store = source.store
        self.maintain = source.maintain
        self._section = section
        self._source = source
        self._clock = clock

    def poll_multi(
        self, limit: int, types: Collection[str] | None, ahead: bool, accepts: Accepts | None
    ) -> list[FetchedRow]:
        claims, deadline = self._source.fetch_multi(limit, types, accepts=accepts)
        now = self._clock()
        return [FetchedRow(self._section, claim, deadline, now) for claim in claims]


class Fetcher:
    """The main loop of the fetching child, in its main thread."""

    def __init__(
        self,
        sections: Sequence[OpenSection],
        types: Mapping[str, TypesWithRows],
        dispatch: DispatchSocket,
        stopping: StopEvent,
        dead: Sequence[DeadChild],
        siblings: Collection[str],
        name: str,
        recovered: Callable[[], None],
        clock: Clock = monotonic,
        count: Callable[[str, Counted, float], None] = lambda section, counted, offset: None,
    ) -> None:
        """`dead`: children whose leases must be released. `recovered`: called after the release.

        `siblings`: living handler children. They may have rows of an earlier fetcher. `name`: the name of this child.
        `count`: called with the statistics of runs that a child reports.
        """
        self._name = name
        self._sections = {opened.name: opened for opened in sections}
        self._dispatch = dispatch
        self._stopping = stopping
        self._recovered = recovered
        self._count = count
        self._clock = clock
        self._children: dict[str, ConnectedChild] = {}
        self._unheard = set(siblings) - {each.child for each in dead}
        """Children that have not reported their rows yet."""
        self._fetched: deque[FetchedRow] = deque()
        """Rows that wait for a free child."""
        self._dead: deque[tuple[DeadChild, ConnectedChild | None]] = deque((each, None) for each in dead)
        """Dead children, each with the child that reported its death, if any."""
        self._recover_at = -math.inf
        self._sweep_at = math.inf
        self._typical = _UNKNOWN
        self._row_size = 0.0
        """The average number of bytes that a row adds to a message."""
        prefetched = {opened.name: opened.section.task_prefetch for opened in sections}
        self._fixed = {name: 1 + number for name, number in prefetched.items() if isinstance(number, int)}
        """How many rows a child gets at a time, for sections whose `task_prefetch` is a number."""
        self._limits = {opened.name: FetchLimit() for opened in sections}
        self.pollers = {opened.name: self._poller(opened, types[opened.name]) for opened in sections}
        self._order = deque(self.pollers)
        self.has_worked = False
        """Whether rows were acquired since this flag was last set to False."""

    def _poller(self, opened: OpenSection, types: TypesWithRows) -> RowPoller[FetchedRow]:
        source = FetchSource(opened.name, opened.source, self._clock)
        timer = PollTimer(opened.section.poll_interval, self._clock)
        return RowPoller(opened.name, source, self._limits[opened.name], timer, types)

    def run(self) -> None:
        try:
            ready: Collection[int] = (self._dispatch.fileno(),)
            while not self._stopping.is_set():
                self._receive(ready)
                self._hand_out()
                self._recover()
                self._poll()
                self._hand_out()
                self._release_old()
                ready = self._wait()
        finally:
            for name, child in list(self._children.items()):
                for message in child.connection.receive_last():
                    self._obey(name, child, message)
            self._release(self._fetched)
            for poller in self.pollers.values():
                poller.close()
            for child in self._children.values():
                child.connection.close()

    def processes(self) -> list[NodeProcess]:
        """Return the handler children and the runs that they reported. Callable from any thread."""
        children = list(self._children.items())
        return [NodeProcess(name, child.pid, child.running) for name, child in children if child.has_reported]

    def _receive(self, ready: Collection[int]) -> None:
        """Accept connections, and handle messages. `ready`: the descriptors that are readable."""
        accepted = set()
        for name, connection in self._dispatch.accept() if self._dispatch.fileno() in ready else ():
            before = self._children.get(name)
            if before is not None:
                for message in before.connection.receive_last():
                    self._obey(name, before, message)
                self._take_back(before)
            self._children[name] = ConnectedChild(connection)
            accepted.add(name)
        for name, child in list(self._children.items()):
            if child.connection.fileno() in ready or name in accepted:
                for message in child.connection.receive():
                    self._obey(name, child, message)
            if child.connection.has_unsent:
                child.connection.flush()

    def _obey(self, name: str, child: ConnectedChild, message: list[Any]) -> None:
        match message:
            case ("ended", section, ended, durations):
                child.runs -= ended
                child.began_at = self._clock()
                for type_, (count, seconds) in durations.items():
                    mean = seconds / count
                    self._limits[section].observe_run(type_, mean, count)
                    counted = min(mean, _LONGEST_COUNTED)
                    self._typical = counted + (1 - _WEIGHT) ** count * (self._typical - counted)
            case ("settled", section, claims, may_be_due):
                for key, claim in claims:
                    child.forget(section, key, claim)
                if may_be_due:
                    self.pollers[section].check_soon()
            case ("returned", section, encoded, deadlines):
                self._return(child, section, encoded, deadlines)
            case ("running", runs):
                child.running = tuple(NodeRun(*run) for run in runs)
            case ("hello", held, runs, dead, pid, siblings):
                child.has_reported, child.runs, child.pid, child.longest = True, runs, pid, math.inf
                reported = [
                    DeadChild(holder, tuple(running), error, name_of_dead, tuple(claims), *rest)
                    for holder, running, error, name_of_dead, claims, *rest in dead
                ]
                self._unheard -= {name, *(each.child for each in reported)}
                if self._name in siblings:  # forked after this fetcher, when children not in `siblings` had ended
                    self._unheard &= set(siblings)
                child.rows.clear()
                child.rows.update({section: dict(claims) for section, claims in held.items()})
                self._dead.extend((each, child) for each in reported)
            case ("counted", section, counted, offset):
                self._count(section, counted, offset)
            case ("left",):
                child.connection.close()
                self._take_back(child)
                del self._children[name]
            case _:
                raise ValueError(f"not a message of a handler child: {message!r:.100}")

    def _return(self, child: ConnectedChild, section: str, encoded: Encoded, deadlines: Sequence[float]) -> None:
        """Take rows back from `child`. Put them before all other waiting rows, so that other children run them."""
        now, claims, child.longest = self._clock(), decode_claims(encoded), math.inf
        for claim, deadline in zip(reversed(claims), reversed(deadlines), strict=True):
            if child.forget(section, claim.row.key, claim.lease.claim):
                self._fetched.appendleft(FetchedRow(section, claim, deadline, now))

    def _take_back(self, child: ConnectedChild) -> None:
        """Take back the rows that a child had not received completely when it left, so that other children run them."""
        for message in reversed(child.connection.unsent):
            match message:
                case ("run", section, encoded, deadline):
                    self._return(child, section, encoded, [deadline] * len(decode_claims(encoded)))

    def _recover(self) -> None:
        """Release the leases of dead children. Report this to the master, or to the child that reported the deaths."""
        now = self._clock()
        if now < self._recover_at:
            return
        try:
            # fetchers last: their sweep also releases the runs of dead handler children, but without error and wait
            for dead, reporter in sorted(self._dead, key=lambda entry: entry[0].is_fetcher):
                if not self._give_back(dead):
                    continue
                self._dead.remove((dead, reporter))
                child = self._children.pop(dead.child, None)
                if child is not None:
                    child.connection.close()
                if all(other is not reporter for _, other in self._dead):
                    self._report_recovered(reporter)
            if now >= self._sweep_at and not self._awaits_report:
                self._sweep(DeadChild(self._dispatch.holder))
                self._sweep_at = math.inf
        except Exception as error:  # noqa: BLE001 – whatever a driver raises, the database may answer later
            log.warning("releasing the leases of dead children failed: %s; retrying", one_line(error))
            self._recover_at = now + _RETRY

    def _give_back(self, dead: DeadChild) -> bool:
        """Release the leases of a dead child. Return False if the fetcher does not know these leases yet."""
        child = self._children.get(dead.child)
        if child is None and dead.holder == self._dispatch.holder:
            if self._unheard or self._awaits_report:
                return False
            self._sweep(dead)
            self._sweep_at = self._clock() + _SECOND_SWEEP
            return True
        for name, opened in self._sections.items():
            opened.give_back(dead, dead.own_claims(name) if child is None else dict(child.rows[name]))
        return True

    @property
    def _awaits_report(self) -> bool:
        """Whether a connected child has not reported its rows yet.

        Even a known child reports again, if a handler has closed the child's connection and the child has connected
        again.
        """
        return any(child.connection.is_open and not child.has_reported for child in self._children.values())

    def _sweep(self, dead: DeadChild) -> None:
        """Release the leases of the common holder that are unknown to all handler children and to this fetcher.

        An earlier fetcher acquired these leases.
        """
        known = {
            (section, *row)
            for child in self._children.values()
            for section, rows in child.rows.items()
            for row in rows.items()
        }
        known |= {(row.section, row.claim.row.key, row.claim.lease.claim) for row in self._fetched}
        for name, opened in self._sections.items():
            leased = opened.source.store.held_claims(self._dispatch.holder)
            unknown = {key: claim for key, claim in leased.items() if (name, key, claim) not in known}
            opened.give_back(dead, unknown)

    def _report_recovered(self, reporter: ConnectedChild | None) -> None:
        if reporter is None:
            self._recovered()
        else:
            reporter.connection.send(("recovered",))

    def _wanted(self) -> int:
        """Return how many rows to acquire: a short batch per free child, and some rows in advance for all children."""
        open_children = [child for child in self._children.values() if child.connection.is_open]
        free = sum(child.is_free for child in open_children)
        typical = max(self._typical, 1e-6)
        ahead = min(_LARGEST, int(_AHEAD * len(open_children) / typical), 2 * len(open_children) * self._fitting)
        if not free and len(self._fetched) > ahead / 2:
            return 0
        moment = max(1, min(_LARGEST, int(_MOMENT / typical), self._fitting))
        return min(_LARGEST, free * moment + ahead - len(self._fetched))

    def _poll(self) -> None:
        """Poll the sections. The order rotates, because the first section may have enough due rows for all children."""
        self._order.rotate()
        for name in self._order:
            self._limits[name].wanted = self._wanted()
            if self._limits[name].wanted > 0:
                rows: Sequence[Any] = self.pollers[name].poll()
                self._fetched.extend(rows)
                self.has_worked = self.has_worked or bool(rows)

    def _hand_out(self) -> None:
        """Send rows to the free children, and one row in advance to each child whose run ends soon."""
        self._send_to_free_children()
        if self._fetched:
            self._send_ahead()

    def _send_to_free_children(self) -> None:
        """Send each free child a short batch of rows, at least one row."""
        free = [child for child in self._children.values() if child.is_free]
        while self._fetched and free:
            child = free.pop()
            batches: dict[str, list[FetchedRow]] = {}
            seconds = 0.0
            for _ in range(math.ceil(len(self._fetched) / (len(free) + 1))):
                row = self._fetched[0]
                seconds += self._expected(row)
                if batches and self._is_enough(len(batches.get(row.section, ())), seconds, row.section):
                    break
                batches.setdefault(row.section, []).append(self._fetched.popleft())
            child.began_at = self._clock()
            for section, rows in batches.items():
                self._send(child, section, rows)

    def _send_ahead(self) -> None:
        """Send the next rows to the children whose runs are expected to end soon, the earliest end first."""
        now = self._clock()
        soon = [child for child in self._children.values() if now <= child.ends_by < now + _SOON]
        for child in sorted(soon, key=attrgetter("ends_by")):
            if not self._fetched or self._row_size > _FITS or self._fixed.get(self._fetched[0].section) == 1:
                break
            row = self._fetched.popleft()
            self._send(child, row.section, [row])

    def _send(self, child: ConnectedChild, section: str, rows: Sequence[FetchedRow]) -> None:
        claims = [row.claim for row in rows]
        encoded = encode_claims(claims)
        size = len(encoded) / len(rows)
        self._row_size += _WEIGHT * (size - self._row_size)
        if len(rows) > 1 and len(encoded) > _LARGEST_MESSAGE and section not in self._fixed:
            fitting = max(1, int(_LARGEST_MESSAGE / size))
            self._fetched.extendleft(reversed(rows[fitting:]))
            rows, claims = rows[:fitting], claims[:fitting]
            encoded = encode_claims(claims)
        child.runs += len(rows)
        child.rows[section].update([(claim.row.key, claim.lease.claim) for claim in claims])
        child.longest = self._limits[section].longest(claims[-1].row.type)
        child.connection.send(("run", section, encoded, min([row.deadline for row in rows])))
        if not child.connection.is_open:  # the child is leaving or dead, and has not received these rows
            for row in reversed(rows):
                del child.rows[section][row.claim.row.key]
                self._fetched.appendleft(row)

    def _is_enough(self, count: int, seconds: float, section: str) -> bool:
        """Return whether a batch that has `count` rows of a section gets no further row.

        `seconds`: the expected duration of all runs sent with the batch, including the run of the further row.
        """
        fixed = self._fixed.get(section)
        if fixed is not None:
            return count >= fixed
        return seconds > _MOMENT or count >= self._fitting

    @property
    def _fitting(self) -> int:
        """How many rows of average size fit into a message."""
        return max(1, int(_LARGEST_MESSAGE / max(self._row_size, 1.0)))

    def _expected(self, row: FetchedRow) -> float:
        known = self._limits[row.section].expected(row.claim.row.type)
        return _UNKNOWN if known is None else known

    def _release_old(self) -> None:
        """Release all rows that wait for a free child, if one of them has waited too long.

        Newer rows are released, too. Otherwise they would run before the older rows if this fetcher acquires those
        again.
        """
        end = self._clock() - _PATIENCE
        if any(row.fetched_at < end for row in self._fetched):
            self._release(self._fetched)
            self._fetched.clear()

    def _release(self, rows: Iterable[FetchedRow]) -> None:
        of_sections: dict[str, list[FetchedRow]] = {}
        for row in rows:
            of_sections.setdefault(row.section, []).append(row)
        for section, own in of_sections.items():
            self._sections[section].source.release([row.claim for row in own], min(row.deadline for row in own))

    def _wait(self) -> Collection[int]:
        """Wait until a section must be polled, a wake-up comes, or a child reports. Return the readable descriptors."""
        pause = _LONGEST_PAUSE
        wakeups: dict[int, RowPoller[FetchedRow]] = {}
        if self._wanted() > 0:
            for poller in self.pollers.values():
                poller.rest()
                wakeups.update(dict.fromkeys(poller.descriptors, poller))
            pause = min(pause, *(poller.pause() for poller in self.pollers.values()))
        else:
            for poller in self.pollers.values():
                poller.ignore_wakeups()
        if self._fetched or self._dead or self._sweep_at < math.inf:
            pause = min(pause, _PATIENCE)
        connections = [child.connection for child in self._children.values() if child.connection.may_receive]
        if any(connection.has_unsent for connection in connections):
            pause = min(pause, _UNSENT)
        others = [self._dispatch.fileno(), *(connection.fileno() for connection in connections)]
        ready = self._stopping.wait_for([*wakeups, *others], pause)
        for descriptor in ready:
            if descriptor in wakeups:
                wakeups[descriptor].wake()
        return ready
