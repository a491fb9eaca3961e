"""The values that all layers share: rows as read from the store, rules and leases. All are frozen."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from hashlib import blake2b
from typing import Annotated, Any, Literal, NamedTuple, Self, get_args

from psched.quick_replace import quick_replace
from psched.retry_wait import Backoff


class _Nothing(Mapping[str, Any]):
    """An empty mapping for default values. It is read-only, and can be copied and pickled."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "{}"

    def __getitem__(self, name: str) -> Any:
        raise KeyError(name)

    def __iter__(self) -> Iterator[str]:
        return iter(())

    def __len__(self) -> int:
        return 0


_NOTHING = _Nothing()


@dataclass(frozen=True, slots=True)
class Calendar:
    """Days that rules can exclude: dates such as `2026-12-25`, and weekdays from `mon` to `sun`.

    `dates` and `weekdays` are sorted. `version` grows with each change.
    """

    name: str
    version: int
    dates: tuple[str, ...] = ()
    weekdays: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.name} (version {self.version})"


Span = tuple[int, int]
"""The first and the last instant of a period, in unix seconds. Both belong to the period."""


@dataclass(frozen=True, slots=True)
class Backfill:
    """One row of a backfill. The row runs the occurrences of `schedule` in `spans`.

    - `schedule`: the key of the schedule.
    - `spans`: periods, sorted by time.
    - `reverse`: whether the last occurrence runs first.
    - `cancelled`: whether the backfill was cancelled. If so, the occurrences that had not run were removed from
      `spans`.
    """

    schedule: str
    spans: tuple[Span, ...]
    reverse: bool = False
    cancelled: bool = False


@dataclass(frozen=True, slots=True)
class Rule:
    """When a schedule is due: the occurrences of an expression in a time zone, plus a delay in seconds.

    - `cron`: a cron expression, `@every 5m` or `@at 2027-03-01T09:00`.
    - `delay`: may be negative.
    - `start`, `end`: unix seconds. There is no occurrence before `start` or after `end`.
    - `spread`: seconds. Each schedule has a further delay from 0 to `spread`, computed from its key alone.
    - `max_runs`: the schedule ends after this many regular occurrences have run. Skipped occurrences do not count.
    - `exclude`: calendars in the time zone of the rule. There is no occurrence on their days.
    - `backfill`: set for the row of a backfill. Such a row runs only some of the occurrences.
    """

    cron: str
    timezone: str
    delay: float = 0
    start: Instant | None = None
    end: Instant | None = None
    spread: float = 0
    max_runs: int | None = None
    exclude: tuple[Calendar, ...] = ()
    backfill: Backfill | None = None

    def delay_of(self, key: str) -> float:
        """Return how many seconds after an occurrence the schedule `key` runs it."""
        return self.delay + spread_offset(key, self.spread) / 1000 if self.spread else self.delay


def spread_offset(key: str, spread: float) -> int:
    """Return the delay of `key` in milliseconds: at least 0, and less than `spread` seconds.

    The result is the same in every process.
    """
    fraction = int.from_bytes(blake2b(key.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "big")
    return fraction * round(spread * 1000) >> 64


Instant = Annotated[float, "unix seconds"]
"""A point in time. A field that is a plain float is a duration."""

CatchUp = Literal["all", "latest", "none"]
"""Which of several due occurrences run."""
CATCH_UP: tuple[CatchUp, ...] = get_args(CatchUp)

Overlap = Literal["wait", "skip"]
"""What happens to an occurrence that is due while the previous run is still in progress."""
OVERLAP: tuple[Overlap, ...] = get_args(Overlap)

ScheduleStatus = Literal["waiting", "running", "leased"]
"""`leased` means either running or waiting for a retry. Only `rdb_compat` uses it, because its table cannot distinguish
the two."""
SCHEDULE_STATUSES: tuple[ScheduleStatus, ...] = get_args(ScheduleStatus)

TaskStatus = Literal["waiting", "running", "finished", "failed", "cancelled"]
TASK_STATUSES: tuple[TaskStatus, ...] = get_args(TaskStatus)

RunOutcome = Literal["finished", "retried", "released", "failed", "cancelled"]
"""How a run was settled. After `retried` and `released`, the task or occurrence runs again."""

Compression = Literal["gzip"]


@dataclass(frozen=True, slots=True)
class Policy:
    """How late and failing occurrences of a schedule are handled, and what the schedule is for.

    - `catch_up`: which of several due occurrences run: `all`, the `latest`, or `none`. With `none`, the latest
      occurrence runs if it is at most `max_lateness` late, or at most a minute late if `max_lateness` is None.
    - `max_lateness`: an occurrence that would start more than this many seconds late is skipped. None: no limit.
    - `alert_after`: an occurrence that has not finished this many seconds after its due time is reported as overdue.
      None: never.
    - `max_attempts`: an occurrence fails for good if this many attempts fail.
    - `owner`, `description`, `tags`: texts for people and for filters. They do not change any run.
    - `overlap`: what happens to a due occurrence if the previous occurrence is not settled yet: `wait` or `skip`.
    - `pause_after`: the schedule is paused after this many regular occurrences have failed in a row. None: never.
    - `retry_wait`: the wait after a failed attempt, in seconds or as a Backoff.
    - `timeout`: a run is stopped after this many seconds.
    - `on_failure`: the name of a hook in the section's `hooks`. The hook is called for a failed occurrence.

    If `max_attempts`, `retry_wait`, `timeout` or `on_failure` is None, the value of the schedule's type applies. If the
    type has none, the configured value applies.
    """

    catch_up: CatchUp = "all"
    max_lateness: float | None = None
    alert_after: float | None = None
    max_attempts: int | None = None
    owner: str | None = None
    description: str | None = None
    tags: tuple[str, ...] = ()
    overlap: Overlap = "wait"
    pause_after: int | None = None
    retry_wait: float | Backoff | None = None
    timeout: float | None = None
    on_failure: str | None = None


class Lease(NamedTuple):
    """The right to run and settle one row until `expires_at`.

    - `fence`: an integer that grows with each acquire of the key. In `rdb_compat` it holds the occurrence and the due
      time that were written last, packed into one number.
    - `expires_at`: unix seconds on the database's clock.
    - `cancel_requested`: whether the row had a cancel request when the lease was last written.
    - `claim`: the number of the acquire that wrote the lease; 0 in `rdb_compat`.
    - `nonce`: the number of the call that created the row; 0 in `rdb_compat`.
    - `unanswered`: whether the answer to an earlier write that settles this lease was lost.
    - `paused`: whether the schedule was paused when the lease was last renewed.

    Every write under the lease compares fence, holder and `claim`. The fence alone is not enough: the same fence may
    occur again after a failover that lost data, or if a key is deleted and created again within a millisecond.
    """

    key: str
    fence: int
    expires_at: float
    cancel_requested: bool = False
    claim: int = 0
    nonce: int = 0
    unanswered: bool = False
    paused: bool = False


NEVER = 253_370_764_800.0
"""The due time of a paused schedule: in the year 9999."""
NO_OCCURRENCE = 253_370_851_200
"""The `next_time` and `next_run_time` of a schedule that has ended: one day after `NEVER`."""


@dataclass(frozen=True)  # without slots, for `quick_replace`
class ScheduleRow:
    """One schedule, as read from the store. `Row` describes the fields that queue tasks have, too.

    - `next_time`, `next_run_time`: the next occurrence (unix seconds), and when it is due or its lease ends. Both are
      `NO_OCCURRENCE` if the rule has no further occurrence.
    - `settled`: whether the row is neither leased nor waiting for a retry. Only then may a new rule change `next_time`.
    - `previous`: the regular occurrence that was settled last.
    - `extra`: the occurrence that the last `run_now` requested.
    - `regular_time`, `regular_run_time`: the next regular occurrence and its due time. Only set during an extra run.
      `next_time` and `next_run_time` then describe the extra run.
    - `paused_from`, `paused_until`: the start and the end of the last pause. The end is None while the pause lasts.
      Occurrences whose run time is in a pause are skipped. The end itself is not in the pause.
    - `earlier_pauses`: start and end of each earlier pause that may contain occurrences still to be skipped.
    - `extra_waits`: whether an extra run that was requested before the current pause waits for the end of the pause.
    - `version`: how many times the definition was changed; 0 where the store does not count.
    - `runs`: how many occurrences have run since `Rule.max_runs` was set; None without `max_runs`. Before the first run
      it may also be None.
    - `failures`: how many regular occurrences have failed in a row; None without failures, or without
      `Policy.pause_after`.
    - `previous_ended`: when the regular run before `next_time` was settled; None if `Policy.overlap` was `wait` at that
      time.
    """

    key: str
    type: str
    data: dict[str, Any]
    status: ScheduleStatus
    attempts: int = 0
    last_error: str | None = None
    node: str | None = None
    problem: str | None = None
    _: KW_ONLY
    rule: Rule
    next_time: int
    next_run_time: float
    settled: bool = field(default=True)
    policy: Policy = field(default=Policy())
    previous: int | None = None
    extra: int | None = None
    regular_time: int | None = None
    regular_run_time: float | None = None
    paused_from: float | None = None
    paused_until: float | None = None
    earlier_pauses: tuple[tuple[float, float], ...] = ()
    extra_waits: bool = False
    version: int = 0
    runs: int | None = None
    failures: int | None = None
    previous_ended: float | None = None

    @property
    def has_run_enough(self) -> bool:
        """Whether the schedule has run as many occurrences as the rule allows."""
        most = self.rule.max_runs
        return most is not None and (self.runs or 0) >= most

    @property
    def has_failed_enough(self) -> bool:
        """Whether `pause_after` occurrences have failed in a row, so that the schedule must be paused."""
        most = self.policy.pause_after
        return most is not None and (self.failures or 0) >= most

    @property
    def delay(self) -> float:
        """How many seconds after its occurrence a run is due: the rule's delay plus this schedule's spread."""
        rule = self.rule
        return rule.delay_of(self.key) if rule.spread else rule.delay

    def run_time(self, time: int) -> float:
        """Return when the run for the regular occurrence `time` is due."""
        rule = self.rule
        if time >= NEVER:
            return NO_OCCURRENCE
        return time + (rule.delay_of(self.key) if rule.spread else rule.delay)

    @property
    def ended(self) -> bool:
        """Whether no regular occurrence follows, and no extra run is waiting or running."""
        return self.next_time >= NEVER

    @property
    def paused(self) -> bool:
        """Whether the schedule is paused now."""
        return self.paused_from is not None and self.paused_until is None

    @property
    def ended_pauses(self) -> tuple[tuple[float, float], ...]:
        """The start and end of each pause that has ended and may contain occurrences still to be skipped."""
        if self.paused_from is None or self.paused_until is None:
            return self.earlier_pauses
        return (*self.earlier_pauses, (self.paused_from, self.paused_until))

    @property
    def is_asked_for(self) -> bool:
        """Whether `run_now` requested the next run, or the run in progress."""
        return self.extra == self.next_time

    @property
    def is_extra(self) -> bool:
        """Whether `next_time` belongs to an extra run and not to a regular occurrence."""
        return self.regular_time is not None

    @property
    def is_backfill(self) -> bool:
        """Whether this row belongs to a backfill and is not itself a schedule."""
        return self.rule.backfill is not None

    @property
    def scheduled_time(self) -> int:
        """The occurrence that the run is for, in unix seconds."""
        return self.next_time

    def regular(self) -> Self:
        """Return the row with its next regular occurrence in place of an extra run."""
        if self.regular_time is None:
            return self
        due = self.run_time(self.regular_time) if self.regular_run_time is None else self.regular_run_time
        return quick_replace(
            self,
            status="waiting",
            attempts=0,
            last_error=None,
            settled=True,
            next_time=self.regular_time,
            next_run_time=due,
            regular_time=None,
            regular_run_time=None,
        )

    def attempted(self, attempts: int) -> Self:
        """Return a copy of the row with this number of attempts."""
        return quick_replace(self, attempts=attempts)


class NewSchedule(NamedTuple):
    """A schedule to add. None means the default of `ScheduleCollection.add`.

    `delay` is in seconds, `next_time` and `next_run_time` are unix seconds, `data` is a JSON object. The other fields
    are those of `Rule` and `Policy`. The class is a tuple, because one call may create thousands of schedules, and a
    frozen dataclass takes four times as long to create.
    """

    key: str
    type: str
    cron: str
    delay: float = 0
    timezone: str | None = None
    next_time: int | None = None
    next_run_time: Instant | None = None
    data: Mapping[str, Any] = _NOTHING
    catch_up: CatchUp = "all"
    max_lateness: float | None = None
    alert_after: float | None = None
    max_attempts: int | None = None
    owner: str | None = None
    description: str | None = None
    tags: Sequence[str] | None = ()
    start: Instant | None = None
    end: Instant | None = None
    spread: float | None = 0
    max_runs: int | None = None
    exclude: Sequence[str] | None = ()
    overlap: Overlap = "wait"
    pause_after: int | None = None
    retry_wait: float | Mapping[str, float] | Backoff | None = None
    timeout: float | None = None
    on_failure: str | None = None


class NewTask(NamedTuple):
    """A queue task to submit.

    - `data`: a JSON object.
    - `run_at`: unix seconds; None: now.
    - `max_running`: the maximum number of tasks of the `user` that run at the same time.
    - `priority`: among the tasks of one user, those with the highest priority run first.
    - `max_attempts`: the task fails for good if this many attempts fail. None: the limit of its type. If the type has
      none: the configured limit. Without any limit, psched retries the task for ever.
    - `compression`: `gzip` or None.
    - `headers`: a JSON object with information about the task, such as a trace id; at most 4,096 bytes.
    """

    key: str
    type: str
    data: Mapping[str, Any] = _NOTHING
    run_at: float | None = None
    user: str | None = None
    max_running: int | None = None
    priority: int = 0
    max_attempts: int | None = None
    compression: Compression | None = None
    headers: Mapping[str, Any] = _NOTHING


class Progress(NamedTuple):
    """The progress that a run of a queue task has reported. `attempt`: the number of that run."""

    done: float
    total: float | None = None
    message: str | None = None
    attempt: int = 1


class TaskRow(NamedTuple):
    """One queue task, as read from the store. Its `status` is waiting, running, finished, failed or cancelled.

    - `run_at`: when the task was first due.
    - `due`: when the task is due, or when its lease ends; None once the task has ended.
    - `created_at`, `finished_at`: when the task was submitted and when it ended.
    - `progress`: the last progress that a run has reported.
    - `result`: what a run has returned; meaningless unless `has_result` is true.

    Times are unix seconds, or None if they are not known. This class, `Lease` and `Claim` are tuples, because tuples
    are fast to create. Each run needs several of them.
    """

    key: str
    type: str
    data: dict[str, Any]
    status: TaskStatus
    run_at: float | None
    due: float | None
    attempts: int = 0
    last_error: str | None = None
    node: str | None = None
    created_at: float | None = None
    finished_at: float | None = None
    user: str | None = None
    max_running: int | None = None
    priority: int = 0
    max_attempts: int | None = None
    cancel_requested: bool = False
    compression: Compression | None = None
    problem: str | None = None
    headers: Mapping[str, Any] = _NOTHING
    progress: Progress | None = None
    result: Any = None
    has_result: bool = False

    @property
    def scheduled_time(self) -> int:
        """When the task was first due, in unix seconds; 0 for a finished task if the store does not keep that time."""
        return 0 if self.run_at is None else int(self.run_at)

    def attempted(self, attempts: int) -> Self:
        """Return a copy of the row with this number of attempts."""
        return self._replace(attempts=attempts)


def version_of(row: Row) -> int | None:
    """Return the version of a schedule's definition; None for a queue task."""
    return row.version if isinstance(row, ScheduleRow) else None


Row = ScheduleRow | TaskRow
"""A schedule or a queue task. Both have the fields from `key` to `problem`, and `scheduled_time` and `attempted`.

- `attempts`: how many times the row was acquired since it was last finished, including the current acquire. An acquire
  does not count if its lease was released, or expired before the run was recorded as begun.
- `node`: the worker that holds the row, or held it last.
- `problem`: why a row that another program wrote cannot be run. Such a row is never passed to a handler.
"""


WORKER_DIED = "the worker died during this run"
"""The error of a run whose worker died of an unknown cause."""


def worker_died(end: str) -> str:
    """Return the error of a run whose worker died. `end`: how it died, such as "was killed by SIGSEGV"."""
    return f"the worker {end} during this run"


class RunResult(NamedTuple):
    """What the row of a queue task keeps after its run. `result` and `progress` are JSON or None.

    `retention`, `failed_retention`: how many seconds the row is kept after the task has finished or failed. None: as
    long as configured.
    """

    result: str | None = None
    progress: str | None = None
    retention: float | None = None
    failed_retention: float | None = None


class TaskOutcome(NamedTuple):
    """The state of a task, for callers that wait for its result. `result` is JSON, or None for no result."""

    status: TaskStatus
    type: str
    error: str | None = None
    result: str | None = None


class Claim(NamedTuple):
    """An acquired row and its lease.

    - `started`: when the run began, in unix seconds on the database's clock; None if it has not begun.
    - `records_begin`: whether the row is prefetched and its previous lease expired. If so, `Task.record_begin` records
      the begin of the run in the database immediately. Otherwise the next renewal may record it.
    - `result`: what the row keeps after the run; None for nothing.
    """

    row: Row
    lease: Lease
    started: float | None = None
    records_begin: bool = False
    result: RunResult | None = None


class Retry(NamedTuple):
    """The arguments of `LeaseStore.retry` for one row; `retry_many` takes a list of them."""

    lease: Lease
    wait: float
    error: str | None
    version: int | None = None
    counted: bool = True


@dataclass(frozen=True, slots=True)
class LeaseTimes:
    """The lengths of leases and waits, in seconds.

    - `alive_time`: the length of the lease of a run that has begun.
    - `prefetch_time`: the length of the lease of a prefetched task. It is short, so that the task is soon due again if
      the worker dies. None: `alive_time`.
    - `retry_wait`: the wait from a failure to the next attempt.
    """

    alive_time: float
    retry_wait: float | Backoff
    prefetch_time: float | None = None

    @property
    def backoff(self) -> Backoff:
        """`retry_wait` as a Backoff."""
        return Backoff.of(self.retry_wait)

    def lease_time(self, started: bool) -> float:
        """Return how many seconds a lease lasts. `started`: whether the run has begun; False for a prefetched task."""
        return self.alive_time if started or self.prefetch_time is None else self.prefetch_time


@dataclass(frozen=True, slots=True)
class TaskFilter:
    """Which queue tasks to list. None in a field matches any task.

    - `prefix`: only keys that begin with this text.
    - `late`: only waiting tasks that have been due for at least this many seconds.
    - `after`: only keys that come after this key.
    - `page`: the maximum number of rows of one query. None: the store chooses the number.
    """

    status: TaskStatus | None = None
    type: str | None = None
    user: str | None = None
    prefix: str | None = None
    late: float | None = None
    after: str | None = None
    page: int | None = None


@dataclass(frozen=True, slots=True)
class ScheduleFilter:
    """Which schedules to list. None in a field matches any schedule.

    - `prefix`: only keys that begin with this text.
    - `due_from`, `due_until`: bounds of `next_run_time`, both included.
    - `held`: only leased schedules.
    - `failing`: only schedules whose next occurrence has a failed attempt.
    - `owner`, `tag`: only schedules of this owner, or with this tag.
    - `after`: only schedules that come after the schedule with this `next_run_time` and key.
    - `page`: the maximum number of rows of one query. None: the store chooses the number.

    A store without an index for `held` and `failing` may ignore these two fields. It then lists more schedules.
    """

    type: str | None = None
    prefix: str | None = None
    due_from: float | None = None
    due_until: float | None = None
    held: bool = False
    failing: bool = False
    owner: str | None = None
    tag: str | None = None
    after: tuple[float, str] | None = None
    page: int | None = None
