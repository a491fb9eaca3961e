"""Polls the tasks that the fetching child has sent, and settles their runs in a thread of the handler child."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Sequence

from psched.acquisition.task_source import TaskSource
from psched.application import Application
from psched.clock import Clock, boottime, monotonic
from psched.execution.batch_size import BatchSizer
from psched.execution.fetcher_connection import UNSENT, FetcherConnection
from psched.execution.fetcher_settlement import GroupSettlement
from psched.execution.periodic_thread import PeriodicThread
from psched.execution.poller import Poller, give_up_leases
from psched.execution.settlement_buffer import LONGEST
from psched.model import Claim, ScheduleRow
from psched.process.dispatch_socket import encode_claims
from psched.task import Task, locked

_REPORT = 0.02
"""Seconds between two reports of ended runs while more runs are waiting in this child."""
_LINGER = 0.02
"""If no run has been in progress for this many seconds, the successful runs are settled."""
_PATIENCE = 0.03
"""Seconds. If a run takes longer, the tasks behind it are returned to the fetching child."""
_CHECK = 0.025
"""Seconds between two checks of the tasks that wait behind a run. A task that two checks have found waiting is returned
to the fetching child."""


class FetchedTaskPoller(Poller):
    """Polls the tasks of one section that the fetching child has sent."""

    patience = _PATIENCE

    def __init__(
        self,
        name: str,
        source: TaskSource,
        application: Application,
        task_timeout: float | None,
        margin: float,
        connection: FetcherConnection,
        group: GroupSettlement | None = None,
        clock: Clock = boottime,
    ) -> None:
        super().__init__(name, source, application, BatchSizer(1), task_timeout, margin, group)
        self._clock = clock
        self._connection = connection
        self._arrived: list[Task] = []
        """Received tasks that `poll` has not returned."""
        self._late = 0
        """How many tasks at the start of `_arrived` had arrived before the last `return_late`."""
        self._arrivals = threading.Lock()
        """Guards `_arrived` and `_late`."""
        self._held: dict[Task, None] = {}
        """The tasks that are not reported as settled, in the order in which they were received."""
        self._ended = 0
        self._durations: dict[str, list[float]] = {}
        """For each type: how many runs have begun and ended since the last report, and their total seconds."""
        self._idle_since = -math.inf
        """Since when no run has been in progress, in boottime seconds; infinite during runs."""
        self.wake_settlement: Callable[[], None] = lambda: None
        """Called when `settle` has something to do earlier than `next_settlement` said."""
        self._is_woken = False
        """Whether `wake_settlement` was called since the last run."""
        self._reports_soon = False
        """Whether the settlement thread will soon report runs that their handlers have settled."""
        self._reported_at = -math.inf
        connection.add(self)

    def take(self, claims: Sequence[Claim], deadline: float) -> None:
        tasks = self.source.adopt_many(claims, deadline, started=False)
        self._held.update(dict.fromkeys(tasks))
        with self._arrivals:
            self._arrived += tasks

    def poll(self, may_rest: bool = True) -> Sequence[Task]:
        if self.settlement_buffer.is_full:
            self.settlement_buffer.flush(self._clock())
        self._connection.receive()
        with self._arrivals:
            tasks, self._arrived, self._late = self._arrived, [], 0
        if tasks:
            self._idle_since, self._is_woken = math.inf, False
        return tasks

    def pause(self) -> float:
        if self._arrived:
            return 0.0
        if self._is_woken or self.settlement_buffer.is_empty:
            return self._connection.pause()
        return min(self._connection.pause(), max(0.0, self._idle_since + _LINGER - self._clock()))

    @property
    def has_unsent(self) -> bool:
        """Whether `settle` has messages to send that did not fit into the socket."""
        return self._connection.has_unsent

    @property
    def check_interval(self) -> float:
        return UNSENT if self.has_unsent else _CHECK

    @property
    def descriptors(self) -> Sequence[int]:
        descriptor = self._connection.descriptor()
        return () if descriptor is None else (descriptor,)

    def run_ended(self, task: Task, more: bool) -> None:
        if not task.in_flight and not self._reports_soon:  # settled by its handler: the fetching child must hear it
            self._reports_soon = True
            self.wake_settlement()
        self._ended += 1
        if task.duration:
            known = self._durations.get(task.row.type)
            if known is None:
                known = self._durations[task.row.type] = [0, 0.0]
            known[0] += 1
            known[1] += task.duration
        now = monotonic()
        if not more or now > self._reported_at + _REPORT:
            self._connection.report_ended(self.name, self._ended, self._durations)
            self._reported_at, self._ended, self._durations = now, 0, {}

    def give_up(self, tasks: Sequence[Task], now: float) -> None:
        """Return tasks to the fetching child, so that an idle sibling runs them.

        Without a fetching child, release the leases of the tasks.
        """
        if not self._connection.is_open:
            give_up_leases(tasks, now)
            return
        with locked(tasks) as free:
            returned = [task for task in free if task.in_flight and not task.started]
            if not returned:
                return
            for task in returned:
                self._held.pop(task, None)  # first, or `settle` would report the task as settled
                task.outcome = "released"
            claims, deadlines = [task.claim for task in returned], [task.deadline for task in returned]
            try:
                if not self._connection.send_if_heard("returned", self.name, encode_claims(claims), deadlines):
                    self.source.release(claims, min(deadlines))  # no fetching child, or perhaps none will follow
            finally:
                for task in returned:
                    task.in_flight = False  # last: an exit waits for the locks of the tasks in flight

    def settle_before(self, now: float, type: str) -> None:
        """Do nothing. The settlement thread settles runs, so that the handler thread does not wait for the database."""

    def settle_idle(self) -> None:
        """Let the settlement thread settle when no run has been in progress in this child for `_LINGER` seconds."""
        now = self._clock()
        self._idle_since = min(self._idle_since, now)
        if now >= self._idle_since + _LINGER and not self._is_woken and not self.settlement_buffer.is_empty:
            self._is_woken = True
            self.wake_settlement()

    def next_settlement(self) -> float:
        """Return the seconds until `settle` must be called again. Callable from any thread."""
        if self._connection.has_unsent:
            return UNSENT
        if self._reports_soon:
            return _REPORT
        due_at = self.settlement_buffer.due_at
        if not self.settlement_buffer.is_empty:
            due_at = min(due_at, self._idle_since + _LINGER)
        return max(UNSENT, min(LONGEST, due_at - self._clock()))

    def settle(self) -> bool:
        """Settle the collected runs that have waited long enough. Return whether unsettled tasks are left.

        Callable from any thread.
        """
        if self._clock() >= self._idle_since + _LINGER:
            self.settlement_buffer.flush()
        else:
            self.settlement_buffer.flush_overdue()
        held = self._held
        self._reports_soon = False  # before looking at the runs, so that a run which is settled meanwhile is reported
        settled = [task for task in list(held) if not task.in_flight and held.pop(task, self) is None]
        if settled:
            self._reports_soon = True  # more such runs may follow
            claims = [(task.row.key, task.lease.claim) for task in settled]
            may_be_due = any(task.outcome != "finished" or isinstance(task.row, ScheduleRow) for task in settled)
            self._connection.send("settled", self.name, claims, may_be_due)
        return bool(held)

    def return_late(self) -> bool:
        """Return tasks to the fetching child if they already waited behind a run at the last call."""
        self._connection.renew()
        with self._arrivals:
            late, self._arrived = self._arrived[: self._late], self._arrived[self._late :]
            self._late = len(self._arrived)
        if late:
            self.give_up(late, self._clock())
            kept = [task for task in late if task.in_flight]  # such as those whose leases are being renewed
            with self._arrivals:
                self._arrived[:0] = kept
                self._late += len(kept)
            if len(kept) < len(late):
                self._connection.report_ended(self.name, len(late) - len(kept), {})
        return bool(self._held)

    def close(self) -> None:
        """Release the tasks that were received but not returned by `poll`."""
        self._connection.close()
        give_up_leases(self._arrived, boottime())


class SettlementThread(PeriodicThread):
    """Settles runs while the handler runs, and reports the runs in progress to the fetching child."""

    def __init__(self, pollers: Sequence[FetchedTaskPoller], report_running: Callable[[], bool]) -> None:
        """`report_running`: returns False if it must be called again."""
        self._pollers = pollers
        self._report_running = report_running
        super().__init__("settlement", self.tick, LONGEST)
        for poller in pollers:
            poller.wake_settlement = self.wake

    def tick(self) -> bool:
        left = [poller.settle() for poller in self._pollers]
        is_reported = self._report_running()
        self.interval = min(poller.next_settlement() for poller in self._pollers)
        return any(left) or not is_reported
