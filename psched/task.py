"""One run of a schedule or a queue task, as its handler sees it.

A Task holds the state of its run. It calls its `Settlement`, which writes to the store and never calls back. Settling
and renewing hold the lock of the task, so they never overlap. Times are boottime seconds.
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
from psched.settlement_base import Settlement
from psched.store import LeaseStore
from psched.store.ledger import Output

log = logging.getLogger(__name__)

NO_RESULT: Any = object()
"""The argument of `finish` for a run without a result. None cannot be used, because a result may be None."""
PROGRESS_INTERVAL = 1.0
"""Seconds between two writes of a run's progress, and from the start of the run to the first write."""
MAX_PROGRESS_MESSAGE = 500
"""How many characters of the message of `progress` are kept."""
_TRACEPARENT = re.compile(r"[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-[0-9a-f]{16}-[0-9a-f]{2}(-.*)?")
"""Matches the value of the header `traceparent` of W3C Trace Context. Its first group is the id of the trace."""
MAX_OUTPUT = 8192
"""How many bytes at the end of a run's output are kept, as UTF-8."""


class Task:
    """An acquired run. Settle it once, by `finish`, `retry` or `release`.

    A task that is never settled is due again when its lease ends. All methods are safe to call from any thread of the
    process.
    """

    stop_reason: Exception | None = None
    """The argument of the handler's `kill`; None until the run is asked to stop."""
    max_attempts: int | None = None
    """The maximum number of attempts of tasks of this type. A limit in the row takes precedence. Set by the daemon."""
    timeout: float | None = None
    """The `timeout` of the run's schedule or type, in seconds. None: the configured `timeout`. Set by the daemon."""
    alive_time: float | None = None
    """How many seconds the lease lasts after each renewal; None: the configured `alive_time`."""
    error: str | None = None
    """The error with which this run was settled, even if it will be retried; None if the run did not fail."""
    duration = 0.0
    """How many seconds the handler ran; 0 until it has returned."""
    _trace_id: str | None = None
    finished_later = False
    """Whether `conclude` leaves the run to be finished later, together with others. Set by the daemon."""

    _left: RunResult | None = None
    """What the row keeps after the run: result, progress and retention. None: nothing."""
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
        """`deadline`: the earliest end of the lease, on `clock`.

        The caller computes `deadline` from a time before the acquire. `started`: False for a prefetched task, until
        `begin`. `pid`: the id of this process.
        """
        self.row = claim.row
        self.lease = claim.lease
        """The lease as last written."""
        self.deadline = deadline
        """When the lease ends if it is not renewed, in boottime seconds."""
        self.started = started
        """Whether the run has begun, or begins as soon as the object is created."""
        self.begun_at = clock() if started else deadline
        """When the run began, in boottime seconds. Meaningless while `started` is False."""
        self.concluded = False
        """Whether `conclude` has left the run to be finished later."""
        self.outcome: RunOutcome | None = None
        """`finished`, `retried`, `released`, `failed` or `cancelled`; None until the run is settled."""
        self.lease_lost = False
        """Whether this process knows that the lease of this run is lost."""
        self.in_flight = True
        """Whether the lease is renewed. The lease is not renewed if the run is settled or forgotten, or if a renewal,
        `finish_many` or `release_many` has found that the lease is lost.
        """
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
        """The backfill to which this run belongs, such as `nightly:3`; None for other runs."""
        return None if self._backfill is None else "{}:{}".format(*backfill_of(self.row.key))

    @property
    def _backfill(self) -> Backfill | None:
        row = self.row
        return row.rule.backfill if isinstance(row, ScheduleRow) else None

    @property
    def type(self) -> str:
        """The type of the task. The application chooses the handler by the type."""
        return self.row.type

    @property
    def data(self) -> dict[str, Any]:
        """The JSON object stored with the row, including the changes made by `update_data`."""
        return self._data

    @property
    def headers(self) -> Mapping[str, Any]:
        """The headers with which the task was submitted; empty for a schedule."""
        return {} if isinstance(self.row, ScheduleRow) else self.row.headers

    @property
    def trace_id(self) -> str | None:
        """The id of the trace to which this run belongs, as 32 hexadecimal digits; None without a trace.

        With `telemetry: otel` the run has a span, and this is the trace of the span. Otherwise it is the trace in which
        the task was submitted.
        """
        return _trace_id(self.headers.get("traceparent")) if self._trace_id is None else self._trace_id

    @trace_id.setter
    def trace_id(self, trace_id: str) -> None:
        self._trace_id = trace_id

    @property
    def scheduled_time(self) -> int:
        """The occurrence of this run in unix seconds. It is the same for every attempt."""
        return self.row.scheduled_time

    @property
    def enqueued_key(self) -> str:
        """The key of the queue task that a run of this occurrence submits."""
        extra = isinstance(self.row, ScheduleRow) and self.row.is_extra
        return enqueued_key(self.row.key, self.scheduled_time, extra)

    @property
    def attempts(self) -> int:
        """How many runs of this occurrence have begun, including this run; 1 if the store does not count."""
        return max(self.row.attempts, 1)

    @property
    def attempts_exhausted(self) -> bool:
        """Whether all allowed attempts began before this run and none of them was settled."""
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
        """How many seconds after its due time the run began, by the database's clock.

        None for an attempt after the first, and for a run that `run_now` or a backfill requested. None if the store
        does not record when the task was due. Meaningless while `started` is False.
        """
        row = self.row
        if row.attempts > 1:
            return None
        if isinstance(row, ScheduleRow):
            due = None if row.is_asked_for or row.is_backfill else row.run_time(row.next_time)
        else:
            due = row.run_at
        if due is None:
            return None
        # The end of the lease is known on both clocks: `expires_at` and `deadline`.
        return max(0.0, self.begun_at + self.lease.expires_at - self.deadline - due)

    @property
    def cancel_requested(self) -> bool:
        """Whether a cancel had been requested when the lease was last written."""
        return self.lease.cancel_requested

    @property
    def may_begin(self) -> bool:
        """Whether the run may begin: at the last renewal, no cancel was requested and the schedule was not paused.

        A run that `run_now` requested may begin even during a pause.
        """
        is_asked_for = isinstance(self.row, ScheduleRow) and self.row.is_asked_for
        return not self.lease.cancel_requested and (is_asked_for or not self.lease.paused)

    @property
    def fence(self) -> int | None:
        """A number that grows with every acquire of this key; None on `rdb_compat`. Use it to fence side effects."""
        return self.lease.fence if self._settlement.store.shows_fence else None

    @property
    def settled(self) -> bool:
        """Whether this run was settled: `outcome` is not None."""
        return self.outcome is not None

    def describe_outcome(self) -> str:
        """Return the outcome, the duration and the time of the next attempt, for the log."""
        if self.outcome != "retried":
            return f"{self.outcome} after {self.duration:.3f} s"
        ended = f"{'retry requested' if self.error is None else 'failed'} after {self.duration:.3f} s"
        if self._retry_wait is None:
            return f"{ended}; next attempt later"
        is_counted = self._settlement.store.shows_fence
        attempt = f" (attempt {self.attempts + 1})" if is_counted else ""
        return f"{ended}; next attempt in {f'{self._retry_wait:.1f}'.removesuffix('.0')} s{attempt}"

    @property
    def lease_time(self) -> float:
        """How many seconds a renewed lease lasts."""
        own = self.alive_time if self.started else None
        return self._times.lease_time(self.started) if own is None else own

    @property
    def claim(self) -> Claim:
        """The row, the lease as last written, when the run began, and what the row keeps after the run."""
        if not self.started:
            return Claim(self.row, self.lease, None, self._records_begin, self._left)
        # The end of the lease is known on both clocks, so the begin can be converted to the database's clock.
        # The result is late by at most a round trip.
        return Claim(self.row, self.lease, self.lease.expires_at + self.begun_at - self.deadline, False, self._left)

    def keep_for(self, finished: float | None, failed: float | None) -> None:
        """Keep the row for `finished` seconds after the task has finished, or for `failed` seconds after it has failed.

        None: as long as configured. The daemon calls this with the values of the task's type.
        """
        self._leave(retention=finished, failed_retention=failed)

    def begin(self, margin: float = 0) -> bool:
        """Mark the run as begun, and return True.

        Return False if the task was released, or if its lease is lost or has at most `margin` seconds left.
        """
        with self.lock:
            now = self._clock()
            if self.outcome is not None or self.lease_lost or now + margin >= self.deadline:
                return False
            self.started, self.begun_at = True, now
            return True

    def record_begin(self) -> None:
        """Record in the database that the run has begun, if the record cannot wait for the next lease renewal.

        The record of the last attempt cannot wait, because this attempt must not begin twice. The record of a run after
        an expired lease cannot wait, because a run that crashes its host immediately would never count as an attempt.
        Raises PreemptedError.
        """
        with self.lock:
            if not self._begin_recorded and (self._records_begin or self.last_attempt):
                self.heartbeat()

    def finish(self, result: Any = NO_RESULT) -> None:
        """Settle the run as done. A schedule advances to its next occurrence.

        `result`: a JSON value of at most 65,536 bytes. The statement that finishes the task stores the result, and
        `QueuedTask.result` returns the result.

        Raises:
            UnstorableResultError: the result is not a JSON value, or too large; nothing was changed.
            NotSupportedError: there is a result, but the store keeps no results, or this is the run of a schedule.
            PreemptedError: the lease is lost; nothing was changed.
            OutcomeUnknownError: the lease is lost, and an earlier write, whose answer was lost, may have settled the
                run.
            AlreadyFinishedError: this lease was settled before, with another outcome.
            IdempotentAlreadyFinishedError: this task object was settled before; perhaps the answer was lost.
            IdempotentNotFoundError: the row no longer exists.
        """
        self._set_result(result)
        self._settle("finished", self._settlement.finish)

    def conclude(self, result: Any = NO_RESULT) -> None:
        """Finish the run. A daemon finishes it within 0.2 s, together with other runs.

        It may take 1 s while the database is slow.

        If the process dies before the run is finished, the task runs again. `result`: as for `finish`. If the run is
        finished immediately, `conclude` raises like `finish`.
        """
        self._refuse_elsewhere()
        self._set_result(result)
        if self.finished_later and self._data is self._saved:
            self.concluded = True
        else:
            self._settle("finished", self._settlement.finish)

    def finish_by_submitting(self, task: NewTask) -> None:
        """Submit `task` to the queue, and settle the run as done.

        If a task with the same key exists already, the call succeeds. If schedules and queue are in one database, one
        transaction writes both. Raises NotSupportedError without a queue.
        """
        self._settle("finished", self._settlement.finish_by, task)

    def retry(self, retry_wait: float | Backoff | None = None, error: str | None = None) -> None:
        """Make the task due again `retry_wait` seconds from now.

        The default is the wait of the task's schedule. Without such a wait, the default is the configured wait.

        If no attempts are left, the run fails for good instead: a queue task becomes `failed`, and a schedule advances
        to its next occurrence. A queue task with a cancel request becomes `cancelled`. `error` is stored with the row.
        Raises like `finish`. Raises ValueError for an error that is not text, or a wait outside 0 to 1,000,000,000
        seconds.
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
        """The `retry_wait` of the task's schedule, or None. Takes precedence over the `retry_wait` of the type."""
        return self.row.policy.retry_wait if isinstance(self.row, ScheduleRow) else None

    @property
    def own_timeout(self) -> float | None:
        """The `timeout` of the task's schedule, or None. Takes precedence over the `timeout` of the type."""
        return self.row.policy.timeout if isinstance(self.row, ScheduleRow) else None

    def fail(self, error: str) -> None:
        """Settle the run as failed for good, even if attempts are left, and store `error` with the row.

        A schedule advances to its next occurrence. A queue task with a cancel request becomes `cancelled`. Raises like
        `finish`. Raises ValueError for an error that is not text. Raises NotSupportedError for a queue task on
        `rdb_compat`, because `rdb_compat` keeps no failed tasks.
        """
        if not isinstance(error, str):
            raise ValueError(f"error must be text, such as str(error), got {shown(error)}")
        self.error = error
        self._settle("failed", self._settlement.give_up, error)

    def defer(self, error: str) -> None:
        """Make the task due after the longest `retry_wait`, as it cannot begin here. The attempt does not count."""
        self._settle("retried", self._settlement.defer, self._times.backoff.limit, error)

    def release(self) -> None:
        """Make the task due now, for every worker, as if this run had not begun. Raises like `finish`."""
        self._settle("released", self._settlement.release, True)

    def release_unstarted(self) -> None:
        """Release a task whose handler was not called, and restore its due time from before the acquire.

        So this task still runs before tasks that are due later. On `rdb_compat` the method does the same as `release`.
        Raises like `finish`.
        """
        self._settle("released", self._settlement.release, False)

    def cancel(self) -> None:
        """Retire a queue task as cancelled. Raises like `finish`, and NotSupportedError for a schedule."""
        self._settle("cancelled", self._settlement.cancel)

    def update_data(self, changes: Mapping[str, Any]) -> None:
        """Merge `changes` into `data`. The next heartbeat or the settlement of the run writes the changes to the store.

        Raises ValueError for data that is not JSON or is larger than `max_data_size`. Raises NotSupportedError for a
        schedule.
        """
        self._refuse_elsewhere()
        if not self._settlement.keeps_data:
            raise NotSupportedError(f"{self.key!r} is a schedule; only the runs of queue tasks can change their data")
        wanted = object_of(changes)
        with self._changing:
            merged = {**self._data, **wanted}
            text = encode(merged, self._settlement.store.max_data_size)
            if getattr(self.row, "compression", None) is None:
                check_stored(byte_length(text))
            self._data = merged

    @property
    def result_problem(self) -> str | None:
        """Why this run cannot store a result or progress, and the remedy; None if it can store both."""
        return self._settlement.result_problem

    def progress(self, done: float, total: float | None = None, message: str | None = None) -> None:
        """Report the progress of this run, for `QueuedTask.progress` and `psched queue show`.

        Frequent calls are cheap: at most one report a second is written. The next lease renewal or the settlement of
        the run writes the last report. If a write fails, the error is logged, and the report is written later. At most
        500 characters of `message` are kept.

        Raises ValueError unless `done` and `total` are finite numbers of at least 0 and `message` is text. Raises
        NotSupportedError if `result_problem` is not None.
        """
        self._refuse_elsewhere()
        if self.result_problem is not None:
            raise NotSupportedError(f"{self.key!r}: {self.result_problem}")
        progress = checked_progress(Progress(done, total, message, self.attempts))
        self._leave(progress=encode(progress._asdict()))
        if self._clock() < max(self._progress_written_at, self.begun_at) + PROGRESS_INTERVAL:
            return
        if self.lock.acquire(blocking=False):  # if the lock is taken, a renewal or a later report writes the progress
            try:
                if not self.settled:
                    _write_if_possible(self, self._save_progress, "progress")
            finally:
                self.lock.release()

    @property
    def output_problem(self) -> str | None:
        """Why the output of this run cannot be kept, and the remedy; None if it can be kept."""
        return self._settlement.output_problem

    def keep_output(self, text: str, result: str, failed: bool = False) -> None:
        """Keep the end of the run's output, at most 8,192 bytes of UTF-8, for `psched history --output`.

        `result`: how the run ended, in one line. `failed`: whether the run failed. The outputs of the last 20 runs of a
        schedule are kept. Raises the driver's errors, and NotSupportedError if `output_problem` is not None.
        """
        self._refuse_elsewhere()
        self._settlement.keep_output(self.claim, Output(_end_of(text), result[:MAX_OUTPUT], failed))

    def heartbeat(self) -> None:
        """Renew the lease, and write the changes of `update_data` and the progress.

        Not needed in a daemon, because a daemon renews all leases. Raises PreemptedError if the lease is lost, and
        IdempotentAlreadyFinishedError if the run is settled.
        """
        self._refuse_elsewhere()
        with self.lock:
            self._refuse_if_settled("renewed")
            if extend_many([self]):
                self.lease_lost = True
                raise PreemptedError(f"{self.key!r}: the lease of this run is lost; another worker may be running it")

    def forget(self) -> None:
        """Stop renewing the lease. If the run was not settled, the task is due again when the lease ends."""
        self.in_flight = False

    def _save(self, until: float) -> None:
        """Write the data if `update_data` has changed it. Repeat a failed write until `until`."""
        data = self._data
        if data is not self._saved:
            self._settlement.save(Claim(self.row, self.lease), data, until)
            self._saved = data

    def _save_progress(self, until: float) -> None:
        """Write the progress if `progress` has changed it. Repeat a failed write until `until`."""
        progress = None if self._left is None else self._left.progress
        if progress is not self._saved_progress and progress is not None:
            self._progress_written_at = self._clock()
            self._settlement.save_progress(Claim(self.row, self.lease), progress, until)
            self._saved_progress = progress

    def _leave(self, **fields: Any) -> None:
        """Change what the row keeps after the run: result, progress and retention."""
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
        """Remember that the answer to a write that settles the run was lost."""
        self.lease = self.lease._replace(unanswered=True)

    def _settle(self, wanted: RunOutcome, settle: Callable[..., RunOutcome | None], *details: object) -> None:
        """Settle the run by `settle(claim, *details, until)`.

        `settle` returns the outcome. None means that the outcome is `wanted`.
        """
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
                f"{self.key!r}: only process {self._pid}, which acquired this run, may settle it; this is process "
                f"{os.getpid()}"
            )

    def _refuse_if_settled(self, wanted: str) -> None:
        if self.outcome is not None:
            message = f"{self.key!r}: this run was already {self.outcome}; it cannot be {wanted} now"
            raise IdempotentAlreadyFinishedError(message)


def store_of(task: Task) -> LeaseStore:
    """Return the store that the task was acquired from."""
    return task._settlement.store


def checked_progress(progress: Progress) -> Progress:
    """Return `progress` with its message cut to the stored length. Raises ValueError if it cannot be stored."""
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
    """Return the trace id in a header `traceparent`; None if the client sent a malformed header."""
    found = _TRACEPARENT.fullmatch(traceparent) if isinstance(traceparent, str) else None
    return None if found is None else found[1]


def _end_of(text: str) -> str:
    """Return the last `MAX_OUTPUT` bytes of `text`, without a character that is cut in half."""
    return text.encode("utf-8", "replace")[-MAX_OUTPUT:].decode("utf-8", "ignore")


FinishMany = Callable[[Sequence[Claim], float], list[ScheduleError | None]]
"""The type of `Settlement.finish_many`."""


def finish_many(tasks: Sequence[Task], until: float, finish: FinishMany | None = None) -> dict[Task, ScheduleError]:
    """Finish runs of one store together. Return the errors of runs that could not be finished.

    `finish`: finishes the claims of the runs (default: `Settlement.finish_many`).

    If the answer to an earlier call was lost, the runs that the earlier call has finished have no error. This call
    holds the locks of all tasks, so that no lease is renewed at the same time. After a driver's error the outcome is
    unknown, and the caller may repeat the call for the same runs.
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
                task._save(until)  # a thread of the handler may change the data after `conclude`
            except RUN_IS_OVER as error:
                log.info("key=%s changes made by update_data are lost: %s", task.key, error)
        if left:
            finish = finish or left[0]._settlement.finish_many
            errors = finish([task.claim for task in left], until)
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
    """Release tasks of one store that have not begun. Return the number of released tasks.

    The tasks get back their due times from before the acquire, as with `Task.release_unstarted`.

    A task with a cancel request is skipped, and also a task that another thread is settling or beginning now. After a
    driver's error the outcome is unknown, and the caller may repeat the call for the same tasks.
    """
    with locked(tasks) as free:
        left = [task for task in free if task.in_flight and not task.started and not task.cancel_requested]
        if not left:
            return 0
        try:
            refused = left[0]._settlement.store.release_many(
                [task.lease for task in left], min(task.deadline for task in left), begun=False
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
    """Lock and yield the tasks that no other thread is settling or renewing now."""
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

    The caller holds the lock of each task.
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
    """Call `write`. If it fails, the next renewal writes the change, or notices that the lease is lost."""
    try:
        write(task._clock())
    except RUN_IS_OVER as error:
        log.info("key=%s %s lost: %s", task.key, what, error)
    except Exception as error:  # noqa: BLE001 – the caller must learn that the leases were renewed
        log.warning("key=%s %s not saved: %s; retrying at the next lease renewal", task.key, what, one_line(error))
