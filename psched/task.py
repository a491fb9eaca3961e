"""One run of a schedule or a queue task, as its handler sees it.

A Task holds the state of its run and calls its `Settlement`, which writes to the store and never calls back.
Settling and renewing share one lock per task, so that they never overlap. Times are boottime seconds.
"""

from __future__ import annotations

import logging
import math
import os
import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from psched.base_settlement import Settlement
from psched.clock import Clock, boottime
from psched.error_messages import one_line, shown
from psched.errors import (
    RUN_IS_OVER,
    IdempotentAlreadyFinishedError,
    NotSupportedError,
    OutcomeUnknownError,
    PreemptedError,
    ScheduleError,
    UnstorableResultError,
)
from psched.keys import backfill_of, check_characters, enqueued_key
from psched.model import Backfill, Claim, Lease, LeaseTimes, NewTask, Progress, RunOutcome, RunResult, ScheduleRow
from psched.payload import byte_length, check_stored, encode, encode_result, object_of
from psched.retry_wait import Backoff, check_wait
from psched.store import LeaseStore
from psched.store.ledger import Output

log = logging.getLogger(__name__)

NO_RESULT: Any = object()
"""The argument of `finish` for a run without a result; None is a result, too."""
PROGRESS_INTERVAL = 1.0
"""Seconds between two writes of a run's progress; the first of these after its begin."""
MAX_PROGRESS_MESSAGE = 500
"""Characters that are kept of the message of `progress`."""
_TRACEPARENT = re.compile(r"[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-[0-9a-f]{16}-[0-9a-f]{2}(-.*)?")
"""The header of W3C Trace Context."""
MAX_OUTPUT = 8192
"""Bytes of UTF-8 that are kept of the end of a run's output."""


class Task:
    """An acquired run, to be settled once by `finish`, `retry` or `release`.

    A task that is never settled is due again when its lease ends. Safe to use from any thread of the process.
    """

    stop_reason: Exception | None = None
    """The argument of the handler's `kill`; None unless the run was asked to stop."""
    max_attempts: int | None = None
    """Attempts after which tasks of this type have failed; a bound in the row comes first. Set by the daemon."""
    timeout: float | None = None
    """Seconds after which the run is stopped, by its schedule or its type; None: as configured. Set by the daemon."""
    alive_time: float | None = None
    """Seconds that the lease lasts after each renewal; None: as configured."""
    error: str | None = None
    """The error with which this run was settled, perhaps to be tried again; None if it did not fail."""
    duration = 0.0
    """Seconds that the handler ran, 0 until it has returned."""
    _trace_id: str | None = None
    finished_later = False
    """Set by the daemon: `conclude` leaves the run to be finished together with others."""

    _left: RunResult | None = None
    """What the run leaves in its row so far. Most runs leave nothing."""
    _saved_progress: str | None = None
    _progress_written_at = -math.inf

    def __init__(
        self,
        claim: Claim,
        settlement: Settlement,
        times: LeaseTimes,
        deadline: float,
        started: bool = True,
        clock: Clock = boottime,
        pid: int | None = None,
    ) -> None:
        """`deadline`: the latest end of the lease on `clock`, counted from before the acquire.

        `started` is False for a prefetched task, until `begin`. `pid`: of this process.
        """
        self.row = claim.row
        self.lease = claim.lease
        """The lease as last written."""
        self.deadline = deadline
        """When the lease ends unless it is renewed, in boottime seconds."""
        self.started = started
        """Whether the run has begun, or begins at once."""
        self.begun_at = clock() if started else deadline
        """When the run began, in boottime seconds. Meaningless while `started` is False."""
        self.concluded = False
        """Whether `conclude` has left the run to be finished later."""
        self.outcome: RunOutcome | None = None
        """`finished`, `retried`, `released`, `failed`, `cancelled`, or None while not settled."""
        self.lease_lost = False
        """Whether the lease of this run is known to be lost."""
        self.in_flight = True
        """Whether the lease is renewed: the run is neither settled, nor known to be lost, nor forgotten."""
        self.lock = threading.RLock()
        self._begin_recorded = started
        self._records_begin = claim.records_begin
        self._settlement = settlement
        self._times = times
        self._clock = clock
        self._retry_wait: float | None = None
        self._data = self._saved = claim.row.data
        self._changing = threading.Lock()
        self._pid = os.getpid() if pid is None else pid

    def __repr__(self) -> str:
        return f"<Task key={self.key!r} type={self.type!r} scheduled_time={self.scheduled_time}>"

    @property
    def key(self) -> str:
        """The key of the schedule or queue task."""
        backfill = self._backfill
        return self.row.key if backfill is None else backfill.schedule

    @property
    def backfill(self) -> str | None:
        """Which backfill this run belongs to, such as `nightly:3`; None for a run that belongs to none."""
        return None if self._backfill is None else "{}:{}".format(*backfill_of(self.row.key))

    @property
    def _backfill(self) -> Backfill | None:
        row = self.row
        return row.rule.backfill if isinstance(row, ScheduleRow) else None

    @property
    def type(self) -> str:
        """The application chooses the handler by this type."""
        return self.row.type

    @property
    def data(self) -> dict[str, Any]:
        """The JSON object stored with the row, with the changes that `update_data` merged into it."""
        return self._data

    @property
    def headers(self) -> Mapping[str, Any]:
        """The headers that the task was submitted with; empty for a schedule."""
        return {} if isinstance(self.row, ScheduleRow) else self.row.headers

    @property
    def trace_id(self) -> str | None:
        """The id of the trace that this run belongs to, as 32 hexadecimal digits; None if it is not traced.

        It is that of the run's own span (`telemetry: otel`), or else the trace in which the task was submitted.
        """
        return _trace_id(self.headers.get("traceparent")) if self._trace_id is None else self._trace_id

    @trace_id.setter
    def trace_id(self, trace_id: str) -> None:
        self._trace_id = trace_id

    @property
    def scheduled_time(self) -> int:
        """The occurrence of this run in unix seconds, the same at every attempt."""
        return self.row.scheduled_time

    @property
    def enqueued_key(self) -> str:
        """The key of the queue task that a run of this occurrence submits."""
        extra = isinstance(self.row, ScheduleRow) and self.row.is_extra
        return enqueued_key(self.row.key, self.scheduled_time, extra)

    @property
    def attempts(self) -> int:
        """The number of begun runs of this occurrence, this run included (1 where the store does not count)."""
        return max(self.row.attempts, 1)

    @property
    def attempts_exhausted(self) -> bool:
        """Whether all allowed attempts were begun before this one, and none settled."""
        if self.row.attempts <= 1:
            return False
        allowed = self._settlement.attempts_allowed(self.row, self.max_attempts)
        return allowed is not None and self.row.attempts > allowed

    @property
    def last_attempt(self) -> bool:
        """Whether the task fails for good if this attempt fails."""
        allowed = self._settlement.attempts_allowed(self.row, self.max_attempts)
        return allowed is not None and self.row.attempts >= allowed

    @property
    def waited(self) -> float | None:
        """Seconds from when the run was to begin until it began, by the database's clock.

        None for later attempts, for a run that `run_now` or a backfill asked for, and where the store does not keep
        when a task was to run. Meaningless while `started` is False.
        """
        row = self.row
        if row.attempts > 1:
            return None
        if isinstance(row, ScheduleRow):
            due = None if row.is_asked_for or row.is_backfill else row.run_time(row.next_time)
        else:
            due = row.run_at
        # The lease ends on both clocks, see `claim`.
        return None if due is None else max(0.0, self.begun_at + self.lease.expires_at - self.deadline - due)

    @property
    def cancel_requested(self) -> bool:
        """Whether a cancel had been requested when the lease was last written."""
        return self.lease.cancel_requested

    @property
    def may_begin(self) -> bool:
        """Whether, at the last renewal, no cancel was requested and the schedule was not paused."""
        is_asked_for = isinstance(self.row, ScheduleRow) and self.row.is_asked_for
        return not self.lease.cancel_requested and (is_asked_for or not self.lease.paused)

    @property
    def fence(self) -> int | None:
        """A number that grows with every acquire of this key, to fence side effects; None on `rdb_compat`."""
        return self.lease.fence if self._settlement.store.shows_fence else None

    @property
    def settled(self) -> bool:
        """Whether this run was finished, retried or released."""
        return self.outcome is not None

    def describe_outcome(self) -> str:
        """Return the outcome, the duration and the time of the next attempt, for the log."""
        if self.outcome != "retried":
            return f"{self.outcome} after {self.duration:.3f} s"
        ended = f"{'given up' if self.error is None else 'failed'} after {self.duration:.3f} s"
        if self._retry_wait is None:
            return f"{ended}; tried again later"
        is_counted = self._settlement.store.shows_fence
        attempt = f" (attempt {self.attempts + 1})" if is_counted else ""
        return f"{ended}; next attempt in {f'{self._retry_wait:.1f}'.removesuffix('.0')} s{attempt}"

    @property
    def lease_time(self) -> float:
        """Seconds that a renewed lease lasts."""
        own = self.alive_time if self.started else None
        return self._times.lease_time(self.started) if own is None else own

    @property
    def claim(self) -> Claim:
        """The row, the lease as last written, when the run began, and what it leaves when it ends."""
        if not self.started:
            return Claim(self.row, self.lease, result=self._left)
        # The lease ends on both clocks. Their difference gives the begin, at most a round trip late.
        return Claim(self.row, self.lease, self.lease.expires_at + self.begun_at - self.deadline, False, self._left)

    def keep_for(self, finished: float | None, failed: float | None) -> None:
        """Keep this task for so many seconds once it is finished, or has failed; None: as configured.

        A daemon says here what the type of the task says.
        """
        self._leave(retention=finished, failed_retention=failed)

    def begin(self, margin: float = 0) -> bool:
        """Mark the run as begun.

        Return False if the task was released, or the lease is lost or has less than `margin` seconds left.
        """
        with self.lock:
            now = self._clock()
            if self.outcome is not None or self.lease_lost or now + margin >= self.deadline:
                return False
            self.started, self.begun_at = True, now
            return True

    def record_begin(self) -> None:
        """Record that the run has begun, where that cannot wait for the next renewal.

        The last attempt cannot wait, as it must not begin twice. Nor can a run after a lease that ended by itself: a
        run that kills its host within moments would never count as an attempt. Raises PreemptedError.
        """
        with self.lock:
            if not self._begin_recorded and (self._records_begin or self.last_attempt):
                self.heartbeat()

    def finish(self, result: Any = NO_RESULT) -> None:
        """Settle the run as done. A schedule moves on to its next occurrence.

        `result`: a JSON value of at most 65,536 bytes. It is stored by the statement that finishes the task, and
        `QueuedTask.result` returns it.

        Raises:
            UnstorableResultError: the result is no JSON value, or too large; nothing was changed.
            NotSupportedError: a result is given, and the store keeps none, or this is the run of a schedule.
            PreemptedError: the lease is lost; nothing was changed.
            OutcomeUnknownError: the lease is lost, and so was an answer: the run may be settled as asked.
            AlreadyFinishedError: this lease was settled before in another way.
            IdempotentAlreadyFinishedError: this task object was settled before, perhaps with an answer that was lost.
            IdempotentNotFoundError: the row is gone.
        """
        self._set_result(result)
        self._settle("finished", self._settlement.finish)

    def conclude(self, result: Any = NO_RESULT) -> None:
        """Finish the run. A daemon does so within moments, for many runs at once. Until then the task may run again.

        `result`: as for `finish`. Raises like `finish` if the run is finished at once.
        """
        self._refuse_elsewhere()
        self._set_result(result)
        if self.finished_later and self._data is self._saved:
            self.concluded = True
        else:
            self._settle("finished", self._settlement.finish)

    def finish_by_submitting(self, task: NewTask) -> None:
        """Settle the run as done by submitting `task` to the queue.

        If a task with its key already exists, that counts as submitted. This is one transaction where both tables are
        in one database. Raises NotSupportedError without a queue.
        """
        self._settle("finished", self._settlement.finish_by, task)

    def retry(self, retry_wait: float | Backoff | None = None, error: str | None = None) -> None:
        """Make the task due again `retry_wait` seconds from now (default: as its schedule says, or as configured).

        A run whose attempts are used up has failed for good instead: a queue task becomes `failed`, a schedule moves
        on. A queue task with a cancel request becomes `cancelled`. `error` is kept with the row. Raises like `finish`,
        and ValueError for an error that is not text, or a wait that is not from 0 to 1,000,000,000 seconds.
        """
        if retry_wait is None:
            own = self.own_retry_wait
            backoff = self._times.backoff if own is None else Backoff.of(own)
            wait = backoff.seconds(self.row.attempts)
        else:
            wait = retry_wait.seconds(self.attempts) if isinstance(retry_wait, Backoff) else retry_wait
            check_wait("retry_wait", wait)
        if error is not None and not isinstance(error, str):
            raise ValueError(f"error must be text, such as str(error), got {shown(error)}")
        self._retry_wait, self.error = wait, error
        self._settle("retried", self._settlement.retry, wait, error, self.max_attempts)

    @property
    def own_retry_wait(self) -> float | Backoff | None:
        """The `retry_wait` of its schedule, which overrides that of its type; None if the schedule has none."""
        return self.row.policy.retry_wait if isinstance(self.row, ScheduleRow) else None

    @property
    def own_timeout(self) -> float | None:
        """The `timeout` of its schedule, which overrides that of its type; None if the schedule has none."""
        return self.row.policy.timeout if isinstance(self.row, ScheduleRow) else None

    def fail(self, error: str) -> None:
        """Settle the run as failed for good, whatever attempts are left, and keep `error` with the row.

        A schedule moves on to its next occurrence. A queue task with a cancel request becomes `cancelled`. Raises like
        `finish`, and NotSupportedError for a queue task on `rdb_compat`, which keeps no failed tasks.
        """
        if not isinstance(error, str):
            raise ValueError(f"error must be text, such as str(error), got {shown(error)}")
        self.error = error
        self._settle("failed", self._settlement.give_up, error)

    def defer(self, error: str) -> None:
        """Make a task that cannot begin here due again after the longest `retry_wait`, without counting an attempt."""
        self._settle("retried", self._settlement.defer, self._times.backoff.limit, error)

    def release(self) -> None:
        """Make the task due at once for every worker, as if it had not begun. Raises like `finish`."""
        self._settle("released", self._settlement.release)

    def cancel(self) -> None:
        """Retire a queue task as cancelled. Raises like `finish`, and NotSupportedError for a schedule."""
        self._settle("cancelled", self._settlement.cancel)

    def update_data(self, changes: Mapping[str, Any]) -> None:
        """Merge `changes` into `data`, which is written with the next heartbeat, or when the run is settled.

        Raises ValueError for data that is not JSON or too large (`max_data_size`), NotSupportedError for a schedule.
        """
        self._refuse_elsewhere()
        if not self._settlement.keeps_data:
            raise NotSupportedError(f"{self.key!r} is a schedule, whose data its runs cannot change; queue tasks can")
        wanted = object_of(changes)
        with self._changing:
            merged = {**self._data, **wanted}
            text = encode(merged, self._settlement.store.max_data_size)
            if getattr(self.row, "compression", None) is None:
                check_stored(byte_length(text))
            self._data = merged

    @property
    def result_problem(self) -> str | None:
        """Why this run can store neither a result nor its progress, with the remedy, or None."""
        return self._settlement.result_problem

    def progress(self, done: float, total: float | None = None, message: str | None = None) -> None:
        """Report how far this run has come, for `QueuedTask.progress` and `psched queue show`.

        Cheap to call often: at most one report a second is written, and the last one with the next lease renewal, or
        when the run is settled. A report that could not be written is logged, and written later. Of `message` 500
        characters are kept.

        Raises ValueError unless `done` and `total` are finite numbers of at least 0 and `message` is text, and
        NotSupportedError where `result_problem` says why.
        """
        self._refuse_elsewhere()
        if self.result_problem is not None:
            raise NotSupportedError(f"{self.key!r}: {self.result_problem}")
        progress = checked_progress(Progress(done, total, message, self.attempts))
        self._leave(progress=encode(progress._asdict()))
        if self._clock() < max(self._progress_written_at, self.begun_at) + PROGRESS_INTERVAL:
            return
        if self.lock.acquire(blocking=False):  # else a renewal writes it, or a later report
            try:
                if not self.settled:
                    _write_if_possible(self, self._save_progress, "progress")
            finally:
                self.lock.release()

    @property
    def output_problem(self) -> str | None:
        """Why the output of this run cannot be kept, with the remedy, or None."""
        return self._settlement.output_problem

    def keep_output(self, text: str, result: str, failed: bool = False) -> None:
        """Keep the end of what this run wrote, at most 8,192 bytes of UTF-8, for `psched history --output`.

        `result`: how the run ended, in one line; `failed`: whether that is a failure. The outputs of the last 20 runs
        of a schedule are kept. Raises the driver's errors, and NotSupportedError where `output_problem` says why.
        """
        self._refuse_elsewhere()
        self._settlement.keep_output(self.claim, Output(_end_of(text), result[:MAX_OUTPUT], failed))

    def heartbeat(self) -> None:
        """Renew the lease, and write the changes of `update_data`. In a daemon no call is needed: it renews all leases.

        Raises PreemptedError if the lease is lost.
        """
        self._refuse_elsewhere()
        with self.lock:
            self._refuse_if_settled("renewed")
            if extend_many([self]):
                self.lease_lost = True
                raise PreemptedError(f"{self.key!r}: the lease of this run is lost; another worker may be running it")

    def forget(self) -> None:
        """Stop renewing the lease. Unless the run was settled, the task is due again when the lease ends."""
        self.in_flight = False

    def _save(self, until: float) -> None:
        """Write the data if `update_data` changed it, trying until `until`."""
        data = self._data
        if data is not self._saved:
            self._settlement.save(Claim(self.row, self.lease), data, until)
            self._saved = data

    def _save_progress(self, until: float) -> None:
        """Write the progress if `progress` changed it, trying until `until`."""
        progress = None if self._left is None else self._left.progress
        if progress is not self._saved_progress and progress is not None:
            self._progress_written_at = self._clock()
            self._settlement.save_progress(Claim(self.row, self.lease), progress, until)
            self._saved_progress = progress

    def _leave(self, **fields: Any) -> None:
        """Change what the run leaves in its row."""
        with self._changing:
            self._left = (self._left or RunResult())._replace(**fields)

    def _set_result(self, result: Any) -> None:
        if result is NO_RESULT:
            return
        if self.result_problem is not None:
            raise NotSupportedError(f"{self.key!r}: {self.result_problem}")
        try:
            self._leave(result=encode_result(result))
        except ValueError as error:
            raise UnstorableResultError(str(error)) from error

    def _renewed(self, lease: Lease, deadline: float) -> None:
        self.lease = lease._replace(unanswered=True) if self.lease.unanswered else lease
        self.deadline = deadline
        self._begin_recorded = self.started

    def _unanswered(self) -> None:
        """Note that a write that settles the run had no answer."""
        self.lease = self.lease._replace(unanswered=True)

    def _settle(self, wanted: RunOutcome, settle: Callable[..., RunOutcome | None], *details: object) -> None:
        """Call `settle(claim, *details, until)`. Its result is the outcome of the run; None means `wanted`."""
        self._refuse_elsewhere()
        with self.lock:
            self._refuse_if_settled(wanted)
            if wanted != "finished" and self._left is not None:
                self._leave(result=None)
            try:
                self._save(self.deadline)
                if wanted in ("retried", "released"):
                    self._save_progress(self.deadline)
                self.outcome = settle(self.claim, *details, self.deadline) or wanted
            except (PreemptedError, OutcomeUnknownError):
                self.lease_lost = True
                raise
            except ScheduleError:
                raise
            except BaseException:
                self._unanswered()
                raise
            self.in_flight = False

    def _refuse_elsewhere(self) -> None:
        """Raise NotSupportedError in a forked process: the connection, and perhaps the lock, belong to the parent."""
        if os.getpid() != self._pid:
            raise NotSupportedError(
                f"{self.key!r}: only the process that acquired it, {self._pid}, may settle it; this is {os.getpid()}"
            )

    def _refuse_if_settled(self, wanted: str) -> None:
        if self.outcome is not None:
            message = f"{self.key!r}: this run was already {self.outcome}; it cannot be {wanted} now"
            raise IdempotentAlreadyFinishedError(message)


def store_of(task: Task) -> LeaseStore:
    """Return the store that the task was acquired from."""
    return task._settlement.store


def checked_progress(progress: Progress) -> Progress:
    """Return `progress`, its message cut to the length that is stored. Raises ValueError for what cannot be stored."""
    numbers: dict[str, object] = {"done": progress.done}
    if progress.total is not None:
        numbers["total"] = progress.total
    for name, number in numbers.items():
        if isinstance(number, bool) or not isinstance(number, int | float) or not 0 <= number < math.inf:
            raise ValueError(f"{name} must be a finite number of at least 0, got {shown(number)}")
    message: object = progress.message
    if message is None:
        return progress
    if not isinstance(message, str):
        raise ValueError(f"message must be text, got {shown(message)}")
    check_characters("message", message)
    return progress._replace(message=message[:MAX_PROGRESS_MESSAGE])


def _trace_id(traceparent: object) -> str | None:
    """Return the trace id in a header that anybody may have written."""
    found = _TRACEPARENT.fullmatch(traceparent) if isinstance(traceparent, str) else None
    return None if found is None else found[1]


def _end_of(text: str) -> str:
    """Return the last `MAX_OUTPUT` bytes of `text`, without a character that this would cut."""
    return text.encode("utf-8", "replace")[-MAX_OUTPUT:].decode("utf-8", "ignore")


def finish_many(tasks: Sequence[Task], until: float) -> dict[Task, ScheduleError]:
    """Finish runs of one store together. Return the errors of runs that could not be finished.

    A run that an earlier call has finished counts as finished: the answer of that call was lost. The locks of all tasks
    are held meanwhile, so that no renewal comes between. After a driver's error the outcome is unknown, and the runs
    may be finished again.
    """
    locked: list[Task] = []
    left: list[Task] = []
    refused: dict[Task, ScheduleError] = {}
    try:
        for task in tasks:
            task.lock.acquire()
            locked.append(task)
        left = [task for task in tasks if task.outcome is None]
        for task in left:
            try:
                task._save(until)  # changes made after `conclude`, such as by a thread of the handler
            except RUN_IS_OVER as error:
                log.info("key=%s changes made by update_data were lost: %s", task.key, error)
        if left:
            errors = left[0]._settlement.finish_many([task.claim for task in left], until)
            refused = {
                task: error
                for task, error in zip(left, errors, strict=True)
                if error is not None and not isinstance(error, IdempotentAlreadyFinishedError)
            }
        for task in left:
            task.in_flight = False
            if task not in refused:
                task.outcome = "finished"
    except BaseException:
        for task in left:
            task._unanswered()
        raise
    finally:
        for task in locked:
            task.lock.release()
    return refused


def release_many(tasks: Sequence[Task]) -> int:
    """Release tasks of one store that have not begun, but those to be cancelled. Return how many were released.

    A task that is being settled or begun at this moment is left. After a driver's error the outcome is unknown, and the
    tasks may be released again.
    """
    with locked(tasks) as free:
        left = [task for task in free if task.in_flight and not task.started and not task.cancel_requested]
        if not left:
            return 0
        try:
            refused = left[0]._settlement.store.release_many(
                [task.lease for task in left], min(task.deadline for task in left)
            )
        except BaseException:
            for task in left:
                task._unanswered()
            raise
        for task, refusal in zip(left, refused, strict=True):
            task.in_flight = False
            if refusal is None:
                task.outcome = "released"
            else:
                task.lease_lost = True
                log.info("key=%s was not released: %s", task.key, refusal)
        return refused.count(None)


@contextmanager
def locked(tasks: Sequence[Task]) -> Iterator[list[Task]]:
    """Lock and yield the tasks that are not being settled at this moment."""
    with ExitStack() as stack:
        free = []
        for task in tasks:
            if task.lock.acquire(blocking=False):
                stack.callback(task.lock.release)
                if not task.settled:
                    free.append(task)
        yield free


def extend_many(tasks: Sequence[Task]) -> list[Task]:
    """Renew the leases of tasks of one store, and return the tasks whose lease is lost.

    The caller holds each task's lock.
    """
    groups: dict[tuple[float, bool], list[Task]] = {}
    for task in tasks:
        groups.setdefault((task.lease_time, task.started), []).append(task)
    lost: list[Task] = []
    for (lease_time, begun), group in groups.items():
        asked = group[0]._clock()
        leases = group[0]._settlement.store.extend([task.lease for task in group], lease_time, begun)
        for task, lease in zip(group, leases, strict=True):
            if lease is None:
                task.lease_lost, task.in_flight = True, False
                lost.append(task)
            else:
                task._renewed(lease, asked + lease_time)
        for task, lease in zip(group, leases, strict=True):
            if lease is not None:
                _write_if_possible(task, task._save, "changes made by update_data")
                _write_if_possible(task, task._save_progress, "progress")
    return lost


def _write_if_possible(task: Task, write: Callable[[float], None], what: str) -> None:
    """Write what has changed in a task. The next renewal tries again, and notices a lost lease."""
    try:
        write(task._clock())
    except RUN_IS_OVER as error:
        log.info("key=%s %s lost: %s", task.key, what, error)
    except Exception as error:  # noqa: BLE001 – the caller must learn that the leases were renewed
        log.warning("key=%s %s not saved: %s; retrying at the next lease renewal", task.key, what, one_line(error))
