"""The values that cross the layers: rows as they were read, rules, leases. All frozen; no behaviour."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from hashlib import blake2b
from typing import Annotated, Any, Literal, NamedTuple, Self, get_args

from psched.retry_wait import Backoff


class _Nothing(Mapping[str, Any]):
    """An empty mapping as a default value: read-only, and it can be copied and pickled."""

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
    """Days without occurrences for the rules that exclude it: dates such as `2026-12-25`, and weekdays `mon` to `sun`.

    Both are in order. `version` grows with each change.
    """

    name: str
    version: int
    dates: tuple[str, ...] = ()
    weekdays: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.name} (version {self.version})"


Span = tuple[int, int]
"""The first and the last instant of a stretch of time, in unix seconds."""


@dataclass(frozen=True, slots=True)
class Backfill:
    """What one row of a backfill runs: the occurrences of its rule that are in `spans`, which are in order.

    The rule is that of `schedule` (a key). `reverse`: the last occurrence first. `cancelled`: what it had not run then
    was taken out of `spans`.
    """

    schedule: str
    spans: tuple[Span, ...]
    reverse: bool = False
    cancelled: bool = False


@dataclass(frozen=True, slots=True)
class Rule:
    """When a schedule is due: an expression, read in a time zone, plus a delay in seconds (may be negative).

    `cron`: a cron expression, `@every 5m` or `@at 2027-03-01T09:00`. `start`, `end`: unix seconds; there is no
    occurrence before `start` or after `end`. `spread`: seconds; each schedule has a further delay of its own, from 0 to
    that, which depends on its key alone. `max_runs`: the schedule has ended when so many regular occurrences have been
    run; those that are skipped do not count. `exclude`: calendars; there is no occurrence on their days, in the time
    zone of the rule. `backfill`: this is the row of a backfill, which runs only some of these occurrences.
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
        """Return the seconds by which the runs of the schedule `key` come after their occurrences."""
        return self.delay + spread_offset(key, self.spread) / 1000 if self.spread else self.delay


def spread_offset(key: str, spread: float) -> int:
    """Return the milliseconds from 0 to `spread` (seconds, not included) that belong to `key`, everywhere the same."""
    fraction = int.from_bytes(blake2b(key.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "big")
    return fraction * round(spread * 1000) >> 64


Instant = Annotated[float, "unix seconds"]
"""A time. A field of a definition that is a plain float is a duration."""

CatchUp = Literal["all", "latest", "none"]
"""Which of the occurrences that are due together are run."""
CATCH_UP: tuple[CatchUp, ...] = get_args(CatchUp)

Overlap = Literal["wait", "skip"]
"""What becomes of an occurrence that comes due while the run before it is going on."""
OVERLAP: tuple[Overlap, ...] = get_args(Overlap)

ScheduleStatus = Literal["waiting", "running", "leased"]
"""`leased`: running or waiting for a retry (`rdb_compat`, whose table does not distinguish these)."""
SCHEDULE_STATUSES: tuple[ScheduleStatus, ...] = get_args(ScheduleStatus)

TaskStatus = Literal["waiting", "running", "finished", "failed", "cancelled"]
TASK_STATUSES: tuple[TaskStatus, ...] = get_args(TaskStatus)

RunOutcome = Literal["finished", "retried", "released", "failed", "cancelled"]
"""How a run was settled. A `retried` or `released` task or occurrence is run again."""

Compression = Literal["gzip"]


@dataclass(frozen=True, slots=True)
class Policy:
    """How late and failing occurrences of a schedule are treated, and what it is for.

    `catch_up`: which of several due occurrences run: `all`, only the `latest`, or `none` but the latest if not late.
    `max_lateness`: seconds; an occurrence that could begin only later than that is skipped. None: no bound.
    `alert_after`: seconds after its time at which an unfinished occurrence is reported as overdue. None: never.
    `max_attempts`: attempts after which an occurrence has failed. None: as its type or the configuration says.
    `owner`, `description`, `tags`: texts for people and for filters; they change no run.
    `overlap`: an occurrence that comes due before the previous one is settled does `wait`, or is skipped (`skip`).
    `pause_after`: regular occurrences that fail in a row, after which the schedule is paused. None: never.
    `retry_wait`: the wait after a failed attempt, seconds or a Backoff. `timeout`: seconds after which a run is
    stopped. `on_failure`: the hook for failed occurrences, one of the section's `hooks`. None of these
    three: as the type or the configuration says.
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
    """The right to run and settle one row until `expires_at`, proved by `fence`.

    `fence` is an integer that grows at each acquire of the key, in `rdb_compat` the occurrence and the due time that
    were written last, packed into one. `claim` is the number of the acquire that wrote the lease, `nonce` that of the
    call that created the row; 0 in `rdb_compat`. Every write under the lease compares fence, holder and `claim`: a
    fence alone may come again, after a failover that lost data or for a key deleted and created anew within a
    millisecond. `expires_at` is unix seconds on the database's clock. `cancel_requested` is what the row said when the
    lease was last written. `unanswered`: an earlier call that was to settle under it had no answer. `paused`: whether
    the schedule was paused when the lease was last renewed.
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
"""When a paused schedule is due: the year 9999."""
NO_OCCURRENCE = 253_370_851_200
"""The next occurrence of a schedule that has ended, and its due time: a day after `NEVER`."""


@dataclass(frozen=True, slots=True)
class ScheduleRow:
    """One schedule, as read from the store. See `Row` for the fields it shares with a queue task.

    `next_time`: the occurrence (unix seconds). `next_run_time`: when it is due, or its lease ends. Both are
    `NO_OCCURRENCE` when the rule has no further occurrence.
    `settled` is True when the row is neither leased nor waiting for a retry, so that a new rule may move it.
    `version` counts the changes of the definition (0 where none is kept).
    `previous`: the regular occurrence that was settled last. `extra`: the occurrence that `run_now` asked for last.
    `regular_time`, `regular_run_time`: while there is an extra run, which `next_time` and `next_run_time` are then
    about, the regular occurrence that comes after it and when that is due; else None. Occurrences whose run time is
    in a pause are skipped: the last pause is from `paused_from` to `paused_until` (None: it lasts), its end not
    included; `earlier_pauses` are those before it that may have occurrences still to be skipped, each with its begin
    and end. `extra_waits`: the run that `run_now` asked for was asked for before the pause that lasts, and waits for
    its end.
    `runs`: how many occurrences have been run since `Rule.max_runs` was given; None before the first, and without it.
    `failures`: how many regular occurrences have failed in a row; None without `Policy.pause_after`, and for none.
    `previous_ended`: when the regular run before `next_time` was settled, if `Policy.overlap` was `skip` then.
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
        """Whether as many occurrences have been run as the rule allows."""
        most = self.rule.max_runs
        return most is not None and (self.runs or 0) >= most

    @property
    def has_failed_enough(self) -> bool:
        """Whether so many occurrences have failed in a row that the schedule is to be paused."""
        most = self.policy.pause_after
        return most is not None and (self.failures or 0) >= most

    @property
    def delay(self) -> float:
        """The seconds by which a run comes after its occurrence: the delay of the rule and this schedule's spread."""
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
        """Whether no regular occurrence follows, and no extra run waits or runs."""
        return self.next_time >= NEVER

    @property
    def paused(self) -> bool:
        """Whether the schedule is paused now."""
        return self.paused_from is not None and self.paused_until is None

    @property
    def ended_pauses(self) -> tuple[tuple[float, float], ...]:
        """The pauses that have ended and may have occurrences still to be skipped, each with its begin and end."""
        if self.paused_from is None or self.paused_until is None:
            return self.earlier_pauses
        return (*self.earlier_pauses, (self.paused_from, self.paused_until))

    @property
    def is_asked_for(self) -> bool:
        """Whether `run_now` asked for the next run, or the run in progress."""
        return self.extra == self.next_time

    @property
    def is_extra(self) -> bool:
        """Whether `next_time` is the time of an extra run, besides the regular occurrences."""
        return self.regular_time is not None

    @property
    def is_backfill(self) -> bool:
        """Whether this is no schedule, but a row of a backfill."""
        return self.rule.backfill is not None

    @property
    def scheduled_time(self) -> int:
        """The occurrence that a run is for, in unix seconds."""
        return self.next_time

    def regular(self) -> Self:
        """Return the row with its next regular occurrence, instead of an extra run."""
        if self.regular_time is None:
            return self
        due = self.run_time(self.regular_time) if self.regular_run_time is None else self.regular_run_time
        return replace(
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
        """Return the row with another number of attempts."""
        return replace(self, attempts=attempts)


class NewSchedule(NamedTuple):
    """A schedule to be added. None means the default of `ScheduleCollection.add`; `data` is a JSON object.

    `delay` is seconds, `next_time` and `next_run_time` are unix seconds; the rest is its policy. A tuple, as thousands
    are made at once: a frozen dataclass takes four times as long.
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
    """A queue task to be submitted. `run_at`: unix seconds, None for at once. `data` is a JSON object.

    At most `max_running` tasks of one `user` run at a time. Of one user's tasks those with the highest `priority` come
    first. After `max_attempts` attempts it has failed (None: what its type or the configuration says). `compression`
    is `gzip` or None. `headers` is a JSON object about the task, such as a trace id: at most 4,096 bytes.
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
    """How far a run of a queue task has come, as the run has reported it. `attempt`: the number of that run."""

    done: float
    total: float | None = None
    message: str | None = None
    attempt: int = 1


class TaskRow(NamedTuple):
    """One queue task, as read from the store. Its `status` is waiting, running, finished, failed or cancelled.

    `run_at`: when it was to run first; `due`: when it is due, or its lease ends, None once it is retired; `created_at`,
    `finished_at`: when it was submitted and retired. All unix seconds, None where that is not known. `progress`,
    `result`: as a run has reported and returned them; `result` means nothing unless `has_result`. A tuple, like leases
    and claims, as some are made for each task that runs.
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
        """When the task was first to run, in unix seconds; 0 for a finished task whose store does not keep it."""
        return 0 if self.run_at is None else int(self.run_at)

    def attempted(self, attempts: int) -> Self:
        """Return the row with another number of attempts."""
        return self._replace(attempts=attempts)


def version_of(row: Row) -> int | None:
    """Return the version of a schedule's definition, None for a queue task."""
    return row.version if isinstance(row, ScheduleRow) else None


Row = ScheduleRow | TaskRow
"""A schedule or a queue task; both have `key` to `problem`, `scheduled_time`, `attempted`.

`attempts` counts acquires since the last finish, the present one included. It does not count an acquire that was
released, or whose lease ended by itself before the run was recorded as begun. `node` is the worker that holds or last
held the row. `problem` says why a row of another program cannot be run. Such a row is never passed to a handler.
"""


WORKER_DIED = "the worker that was running it died"
OUT_OF_MEMORY = "the worker that was running it was killed by the kernel for lack of memory"
"""The errors of a run whose worker is gone: when the cause is unknown, and when the kernel killed it."""


def worker_died(end: str) -> str:
    """Return the error of a run by the end of its worker, such as "was killed by SIGSEGV", "ended with exit code 3"."""
    return f"the worker that was running it {end}"


class RunResult(NamedTuple):
    """What a run leaves in the row of its queue task when the task ends: JSON, or None.

    `retention`, `failed_retention`: seconds for which a finished and a failed task of this type are kept; None: as
    configured.
    """

    result: str | None = None
    progress: str | None = None
    retention: float | None = None
    failed_retention: float | None = None


class TaskOutcome(NamedTuple):
    """The state of a task for callers that wait for its result, which is JSON, or None."""

    status: TaskStatus
    type: str
    error: str | None = None
    result: str | None = None


class Claim(NamedTuple):
    """An acquired row and its lease.

    `started`: when the run began, in unix seconds on the database's clock, or None. `records_begin`: the row's last
    lease expired, so `Task.record_begin` writes the begin of this prefetched run at once, not with the next renewal.
    `result`: what the run leaves when it ends; None for nothing.
    """

    row: Row
    lease: Lease
    started: float | None = None
    records_begin: bool = False
    result: RunResult | None = None


class Retry(NamedTuple):
    """The arguments of `LeaseStore.retry` for one row, for `retry_many`."""

    lease: Lease
    wait: float
    error: str | None
    version: int | None = None
    counted: bool = True


@dataclass(frozen=True, slots=True)
class LeaseTimes:
    """How long leases and waits are, in seconds.

    `alive_time`: the lease of a run that has begun. `prefetch_time`: the lease of a prefetched task, short so that the
    task is soon due again if the worker dies (default: `alive_time`). `retry_wait`: from a failure to the next attempt.
    """

    alive_time: float
    retry_wait: float | Backoff
    prefetch_time: float | None = None

    @property
    def backoff(self) -> Backoff:
        """`retry_wait` as a Backoff."""
        return Backoff.of(self.retry_wait)

    def lease_time(self, started: bool) -> float:
        """Return the lease of a run that has begun, or of a prefetched task."""
        return self.alive_time if started or self.prefetch_time is None else self.prefetch_time


@dataclass(frozen=True, slots=True)
class TaskFilter:
    """Which queue tasks to list; None matches any.

    `prefix`: the beginning of their keys. `late`: only waiting tasks that have been due for that many seconds. `after`:
    only tasks whose keys come after this key. `page`: how many rows to read at once; None for one that needs them all.
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
    """Which schedules to list; None matches any.

    `prefix`: the beginning of their keys. `due_from`, `due_until`: bounds of `next_run_time`, both included. `held`:
    only leased ones. `failing`: only those with a failed attempt of their next occurrence. A store that cannot find
    these two by an index may list others, too. `owner`: of the policy; `tag`: one of its tags. `after`: `next_run_time`
    and key of the schedule before the first. `page`: as in `TaskFilter`.
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
