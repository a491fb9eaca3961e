"""One run of a schedule or a queue task, as its handler sees it. Used in children and in clients that poll themselves.

Settling and renewing share one lock per task, so that a renewal never crosses a finish. Times are boottime seconds.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping
from typing import Any, Protocol, TypeVar

from psched.backoff import Backoff, check_wait
from psched.clock import Clock, boottime
from psched.errors import (
    IdempotentAlreadyFinishedError,
    NotSupportedError,
    OutcomeUnknownError,
    PreemptedError,
    ScheduleError,
)
from psched.model import Claim, Lease, NewTask, Row, ScheduleRow
from psched.payload import byte_length, check_stored, encode, enqueued_key, object_of
from psched.suggest import shown


class Task:
    """A run that was acquired: run it, then settle it once with finish, retry or release.

    A task that nobody settles is due again when its lease ends. May be used from any thread of the process.
    """

    stop_reason: Exception | None = None
    """Why this run was asked to stop (what `kill` was given), or None."""
    max_attempts: int | None = None
    """After how many attempts tasks of this type have failed, unless the task says so itself; set by the daemon."""
    alive_time: float | None = None
    """For how many seconds each renewal makes its lease last from now on; None: as long as its source's do."""
    finished_later = False
    """Whether `conclude` leaves it to the daemon, which sets this, to finish the run, together with others."""

    def __init__(
        self,
        claim: Claim,
        source: Settler[Task],
        deadline: float,
        started: bool = True,
        clock: Clock = boottime,
        pid: int | None = None,
    ) -> None:
        """`deadline`: when the lease ends at the latest, on `clock`, counted from before it was asked for.

        `started` is False for a task taken ahead of its run, until `begin`. `pid`: this process.
        """
        self._row = claim.row
        self._lease = claim.lease
        self._records_begin = claim.records_begin
        self._begin_recorded = started
        self._source = source
        self._deadline = deadline
        self._clock = clock
        self._outcome: str | None = None
        self._started = started
        self.begun_at = clock() if started else deadline
        """When the run began, in boottime seconds; of no meaning while `started` is False."""
        self._lost = self._concluded = self._failed = False
        self._retry_wait: float | None = None
        self._data = self._saved = claim.row.data
        self._changing = threading.Lock()
        self._pid = os.getpid() if pid is None else pid
        self.lock = threading.RLock()

    def __repr__(self) -> str:
        return f"<Task key={self.key!r} type={self.type!r} scheduled_time={self.scheduled_time}>"

    @property
    def key(self) -> str:
        """The key of the schedule or queue task."""
        return self._row.key

    @property
    def type(self) -> str:
        """What the application routes by."""
        return self._row.type

    @property
    def data(self) -> dict[str, Any]:
        """The JSON object stored with it, and what `update_data` has merged into it."""
        return self._data

    @property
    def scheduled_time(self) -> int:
        """The occurrence this run is for, in unix seconds; the same at every attempt."""
        return self._row.scheduled_time

    @property
    def enqueued_key(self) -> str:
        """The key of the task that this occurrence of a schedule becomes, if its run is to submit one."""
        extra = isinstance(self._row, ScheduleRow) and self._row.is_extra
        return enqueued_key(self.key, self.scheduled_time, extra)

    @property
    def attempts(self) -> int:
        """How many times this occurrence was begun, this run included (1 where the store does not count)."""
        return max(self._row.attempts, 1)

    @property
    def row(self) -> Row:
        """The row as it was acquired."""
        return self._row

    @property
    def worn_out(self) -> bool:
        """Whether all attempts that are allowed were begun before this one, and none was settled."""
        if self._row.attempts <= 1:
            return False
        allowed = self._source.attempts_allowed(self._row, self.max_attempts)
        return allowed is not None and self._row.attempts > allowed

    @property
    def last_attempt(self) -> bool:
        """Whether it has failed for good if this attempt fails."""
        allowed = self._source.attempts_allowed(self._row, self.max_attempts)
        return allowed is not None and self._row.attempts >= allowed

    @property
    def cancel_requested(self) -> bool:
        """Whether somebody had asked for it to be cancelled when the lease was last written."""
        return self._lease.cancel_requested

    @property
    def is_to_begin(self) -> bool:
        """Whether nothing was found since it was taken ahead because of which its run is not to begin.

        That its cancellation was asked for, or its schedule paused, is found when its lease is renewed.
        """
        is_asked_for = isinstance(self._row, ScheduleRow) and self._row.is_asked_for
        return not self._lease.cancel_requested and (is_asked_for or not self._lease.paused)

    @property
    def fence(self) -> int | None:
        """A number that grows with every acquire of this key, to fence side effects by; None on `rdb_compat`."""
        return self._lease.fence if self._source.shows_fence else None

    @property
    def settled(self) -> bool:
        """Whether this run was finished, retried or released."""
        return self._outcome is not None

    @property
    def concluded(self) -> bool:
        """Whether `conclude` has left the run to be finished later."""
        return self._concluded

    @property
    def lease_lost(self) -> bool:
        """Whether this run's own lease is known not to be ours any more."""
        return self._lost

    @property
    def outcome(self) -> str | None:
        """How this run was settled: `finished`, `retried`, `released`, `failed`, `cancelled`, or None."""
        return self._outcome

    def account(self, seconds: float) -> str:
        """Say how a run of so many `seconds` that was settled ended, and when it is tried again; for the log."""
        if self._outcome != "retried":
            return f"{self._outcome} after {seconds:.3f} s"
        ended = f"{'failed' if self._failed else 'given up'} after {seconds:.3f} s"
        if self._retry_wait is None:
            return f"{ended}; tried again later"
        attempt = f" (attempt {self.attempts + 1})" if self._source.shows_fence else ""  # else none are counted
        return f"{ended}; next attempt in {f'{self._retry_wait:.1f}'.removesuffix('.0')} s{attempt}"

    @property
    def deadline(self) -> float:
        """When the lease ends unless it is renewed, in boottime seconds."""
        return self._deadline

    @property
    def started(self) -> bool:
        """Whether the run was begun, or its holder means to begin it at once."""
        return self._started

    @property
    def lease(self) -> Lease:
        """The lease as last written."""
        return self._lease

    @property
    def claim(self) -> Claim:
        """The row and the lease as last written, and when the run began."""
        if not self._started:
            return Claim(self._row, self._lease)
        # The database's time, as the lease tells it: late by a round trip at the most.
        return Claim(self._row, self._lease, self._lease.expires_at + self.begun_at - self._deadline)

    def begin(self, margin: float = 0) -> bool:
        """Mark the run as begun.

        False when it was given back, its lease was found lost or has less than `margin` seconds left.
        """
        with self.lock:
            now = self._clock()
            if self._outcome is not None or self._lost or now + margin >= self._deadline:
                return False
            self._started, self.begun_at = True, now
            return True

    def record_begin(self) -> None:
        """Record that the run has begun, where that cannot wait for the next renewal.

        It cannot for the last attempt, which is not to begin twice; nor when the row's last lease ended by itself:
        else a run that ends its host within moments would never count as an attempt. Raises PreemptedError when the
        lease is lost.
        """
        with self.lock:
            if not self._begin_recorded and (self._records_begin or self.last_attempt):
                self.heartbeat()

    def finish(self) -> None:
        """Settle the run as done: a schedule moves on to its next occurrence.

        Raises:
            PreemptedError: the lease is not ours any more; nothing was changed.
            OutcomeUnknownError: the lease is not ours any more, and an answer was lost: it may be settled as asked.
            AlreadyFinishedError: this lease was settled before in another way.
            IdempotentAlreadyFinishedError: this task object was settled before, perhaps with an answer that was lost.
            IdempotentNotFoundError: the row is gone.
        """
        self._settle("finished", lambda claim: self._source.finish(claim, self._deadline))

    def conclude(self) -> None:
        """Finish the run; under a daemon within moments, together with others, so that it may be run again until then.

        Raises like `finish` when it is finished at once.
        """
        self._refuse_elsewhere()
        if self.finished_later and self._data is self._saved:
            self._concluded = True
        else:
            self.finish()

    def finish_by_submitting(self, task: NewTask) -> None:
        """Settle the run as done by submitting `task` to the queue; one that is there already is as good.

        Both are one transaction where the tables are in one database. Raises NotSupportedError without a queue.
        """
        self._settle("finished", lambda claim: self._source.finish_by(claim, task, self._deadline))

    def retry(self, retry_wait: float | Backoff | None = None, error: str | None = None) -> None:
        """Give the run up and try it again `retry_wait` seconds from now (default: the configured one).

        A run whose attempts are used up has failed for good instead: a queue task becomes `failed`, a schedule moves
        on. A queue task that was to be cancelled becomes `cancelled`.
        `error` is kept with the row for those who look. Raises like `finish`, and ValueError for an error that is no
        text, or a wait that is no number of seconds from 0 to 1,000,000,000.
        """
        wait = retry_wait.seconds(self.attempts) if isinstance(retry_wait, Backoff) else retry_wait
        if wait is not None:
            check_wait("retry_wait", wait)
        else:
            wait = self._source.retry_seconds(self._row.attempts)
        if error is not None and not isinstance(error, str):
            raise ValueError(f"error must be text, such as str(error), got {shown(error)}")
        self._retry_wait, self._failed = wait, error is not None
        self._settle("retried", lambda claim: self._source.retry(claim, wait, error, self._deadline, self.max_attempts))

    def defer(self, error: str) -> None:
        """Give up a run that could not begin here until the longest `retry_wait` is over; it counts as no attempt."""
        self._settle("retried", lambda claim: self._source.defer(claim, error, self._deadline))

    def release(self) -> None:
        """Give the run back, due at once for anybody, as if it had not been begun. Raises like `finish`."""
        self._settle("released", lambda claim: self._source.release(claim, self._deadline))

    def cancel(self) -> None:
        """Retire a queue task as cancelled. Raises like `finish`, and NotSupportedError for a schedule."""
        self._settle("cancelled", lambda claim: self._source.cancel(claim, self._deadline))

    def update_data(self, changes: Mapping[str, Any]) -> None:
        """Merge `changes` into `data`: written with the next heartbeat, and in any case before the run is settled.

        Raises ValueError for what is no JSON or too large (`max_data_size`), NotSupportedError for a schedule.
        """
        self._refuse_elsewhere()
        if not self._source.keeps_data:
            raise NotSupportedError(f"{self.key!r} is a schedule, whose data its runs cannot change; queue tasks can")
        wanted = object_of(changes)
        with self._changing:
            merged = {**self._data, **wanted}
            text = encode(merged, self._source.max_data_size)
            if getattr(self._row, "compression", None) is None:
                check_stored(byte_length(text))
            self._data = merged

    def heartbeat(self) -> None:
        """Renew the lease, and write what `update_data` changed; the daemon does so by itself.

        Raises PreemptedError when the lease is not ours any more.
        """
        self._refuse_elsewhere()
        with self.lock:
            self._refuse_if_settled("renewed")
            if self._source.extend([self]):
                self._lost = True
                raise PreemptedError(f"{self.key!r}: the lease of this run is lost; another worker may be running it")

    def save(self, until: float) -> None:
        """Write the data if `update_data` changed it, trying until `until`. The caller holds `lock`."""
        data = self._data
        if data is not self._saved:
            self._source.save(Claim(self._row, self._lease), data, until)
            self._saved = data

    def forget(self) -> None:
        """Let go of the run as it is: unless it was settled, it is due again when its lease ends."""
        self._source.forget(self)

    def renewed(self, lease: Lease, deadline: float) -> None:
        """Take over a lease that was written anew. Called by the source, which holds `lock`."""
        self._lease = lease._replace(unanswered=True) if self._lease.unanswered else lease
        self._deadline = deadline
        self._begin_recorded = self._started

    def settled_as(self, outcome: str) -> None:
        """Know how the run was settled. Called like `renewed`."""
        self._outcome = outcome

    def settling_unanswered(self) -> None:
        """Know that a call that was to settle the run had no answer. Called like `renewed`."""
        self._lease = self._lease._replace(unanswered=True)

    def lost(self) -> None:
        """Know that the lease is not ours any more: a run that has not begun does not. Called like `renewed`."""
        self._lost = True

    def _settle(self, wanted: str, verb: Callable[[Claim], str]) -> None:
        self._refuse_elsewhere()
        with self.lock:
            self._refuse_if_settled(wanted)
            try:
                self.save(self._deadline)
                self._outcome = verb(self.claim)
            except (PreemptedError, OutcomeUnknownError):
                self._lost = True
                raise
            except ScheduleError:
                raise
            except BaseException:
                self.settling_unanswered()
                raise
            self.forget()

    def _refuse_elsewhere(self) -> None:
        """Refuse a process that was forked: it has our connection, and perhaps our lock, for good."""
        if os.getpid() != self._pid:
            raise NotSupportedError(
                f"{self.key!r}: taken by process {self._pid}, which alone may settle it; this is {os.getpid()}"
            )

    def _refuse_if_settled(self, wanted: str) -> None:
        if self._outcome is not None:
            message = f"{self.key!r}: this run was {self._outcome} before; it cannot be {wanted} now"
            raise IdempotentAlreadyFinishedError(message)


T = TypeVar("T")
"""What is settled: a `psched.task.Task`."""


class Settler(Protocol[T]):
    """Where a task's verbs go: the source that acquired it. Each raises PreemptedError or NotFoundError.

    Those that settle return how the run was settled in the end, such as `failed` for what was not to be retried again.
    """

    shows_fence: bool
    max_data_size: int
    keeps_data: bool
    """Whether `save` can write data."""

    def finish(self, claim: Claim, until: float) -> str:
        """Finish the claimed run for good."""
        ...

    def finish_by(self, claim: Claim, task: NewTask, until: float) -> str:
        """Finish the claimed run by submitting `task` to the queue."""
        ...

    def retry(
        self, claim: Claim, wait: float | None, error: str | None, until: float, max_attempts: int | None = None
    ) -> str:
        """Make it due again `wait` seconds from now; None takes the configured `retry_wait`."""
        ...

    def defer(self, claim: Claim, error: str, until: float) -> str:
        """Make it due again after the longest `retry_wait`, the attempt not counted."""
        ...

    def release(self, claim: Claim, until: float) -> str:
        """Make it due now, as if it had not been acquired."""
        ...

    def cancel(self, claim: Claim, until: float) -> str:
        """Retire it as cancelled."""
        ...

    def save(self, claim: Claim, data: Mapping[str, Any], until: float) -> None:
        """Write its data."""
        ...

    def retry_seconds(self, attempts: int) -> float | None:
        """Return how long `retry` is to wait after so many attempts; None leaves that to `retry`."""
        ...

    def attempts_allowed(self, row: Row, max_attempts: int | None) -> int | None:
        """Return after how many attempts it has failed, `max_attempts` being its type's; None: never."""
        ...

    def extend(self, tasks: list[T]) -> list[T]:
        """Renew the leases of `tasks` and return those whose lease is lost."""
        ...

    def forget(self, task: T) -> None:
        """Stop counting the run among those held."""
        ...
