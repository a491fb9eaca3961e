"""The contract of the ledger: how each occurrence of a schedule was settled, and each change of a definition.

All times are unix seconds. Occurrences are computed from the schedule's rule; all other times are on the database's
clock.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple, Protocol, get_args

from psched.model import Claim, Policy, Rule, ScheduleRow

Outcome = Literal["finished", "enqueued", "skipped", "failed"]
OUTCOMES: tuple[Outcome, ...] = get_args(Outcome)
FINISHED: Final = "finished"
ENQUEUED: Final = "enqueued"
SKIPPED: Final = "skipped"
FAILED: Final = "failed"
"""The outcome of an occurrence that failed at all of its `max_attempts`."""

Action = Literal["add", "modify", "delete", "pause", "pause-after", "resume", "run-now", "upgrade"]
ACTIONS: tuple[Action, ...] = get_args(Action)
ADD: Final = "add"
MODIFY: Final = "modify"
DELETE: Final = "delete"
PAUSE: Final = "pause"
PAUSE_AFTER: Final = "pause-after"
"""The pause of a schedule whose occurrences have failed in a row, as its `pause_after` says."""
RESUME: Final = "resume"
RUN_NOW: Final = "run-now"
UPGRADE: Final = "upgrade"
"""The action recorded once for a schedule that is older than its ledger, with its definition at that time."""

BACKFILL: Final = "backfill"
"""The detail of an entry whose run a backfill made (that of a task that was enqueued has the key of the task)."""
PAUSED = "paused"
"""The reason of occurrences that came while their schedule was paused."""


@dataclass(frozen=True, slots=True)
class Entry:
    """How an occurrence is settled, for the ledger.

    `detail`: the reason of a skip, the key of the enqueued task, or `run-now` or `backfill` if that asked for the run.
    `started`: when the run began, None without a run. An entry may stand for all occurrences up to `last`, which were
    skipped together; `count` is their number, None for more than were counted. `extra`: an extra run, which `run_now`
    asked for.
    """

    outcome: Outcome = FINISHED
    detail: str | None = None
    started: float | None = None
    last: int | None = None
    count: int | None = 1
    extra: bool = False

    @property
    def went_wrong(self) -> bool:
        """Whether the occurrence has failed, or was skipped though its schedule was not paused."""
        return self.outcome == FAILED or (self.outcome == SKIPPED and self.detail != PAUSED)


OnCommit = Callable[[Any], object]
"""Further work in a store's transaction. Calls `TaskStore.submit` with its argument as `connection`."""


def runs_after(row: ScheduleRow, entry: Entry) -> int | None:
    """Return `ScheduleRow.runs` after its occurrence has been settled with `entry`."""
    if row.rule.max_runs is None:
        return None
    return (row.runs or 0) + (not entry.extra and entry.outcome != SKIPPED)


def failures_after(row: ScheduleRow, entry: Entry) -> int | None:
    """Return `ScheduleRow.failures` after its occurrence has been settled with `entry`."""
    if row.policy.pause_after is None:
        return None
    if entry.extra or entry.outcome == SKIPPED:
        return row.failures
    return (row.failures or 0) + 1 if entry.outcome == FAILED else None


NOW: Final = "now"


def previous_ended_after(row: ScheduleRow, entry: Entry) -> float | Literal["now"] | None:
    """Return `ScheduleRow.previous_ended` after its occurrence has been settled with `entry`: `NOW` for that moment."""
    if row.policy.overlap == "wait":
        return None
    return row.previous_ended if entry.extra or entry.outcome == SKIPPED else NOW


class Step(NamedTuple):
    """The arguments of `ScheduleStore.advance` for one occurrence, for `advance_many`. Unix seconds."""

    claim: Claim
    next_time: int
    next_run_time: float
    entry: Entry = Entry()
    on_commit: OnCommit | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerRow(Entry):
    """One recorded entry.

    `scheduled_time`: the occurrence, or the first of those it stands for. `version`: of the definition it ran by.
    `previous`: the last regular occurrence before it that was settled, None for a schedule's first. `attempts` counts
    all that were begun. `error`: of the last failed attempt, shortened. `ended`: when `node` (`host/pid/…`) settled
    the occurrence. `reckoning`: the cron dialect and tz database version by which the next occurrence was computed.
    `backfill`: the number of the backfill of the schedule `key` that made this run. Only readers of histories set it:
    the ledger keeps the entry under the key of a row of the backfill.
    """

    key: str
    scheduled_time: int
    fence: int
    version: int
    previous: int | None
    attempts: int
    error: str | None
    node: str | None
    ended: float
    reckoning: str
    backfill: int | None = None

    @property
    def had_trouble(self) -> bool:
        """Whether it went wrong, or an attempt failed or was lost."""
        return self.went_wrong or self.attempts > 1 or self.error is not None

    @property
    def end(self) -> int:
        """The last occurrence it stands for."""
        return self.scheduled_time if self.last is None else self.last


@dataclass(frozen=True, slots=True)
class Output:
    """What one run of a schedule wrote. `result`: how it ended, in one line; `failed`: whether that is a failure."""

    text: str
    result: str
    failed: bool


KEPT_OUTPUTS = 20
"""Runs of each schedule whose output is kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptOutput(Output):
    """The output of one run, an attempt at an occurrence. `ended`: when it was kept, on the database's clock."""

    key: str
    scheduled_time: int
    attempt: int
    ended: float


@dataclass(frozen=True, slots=True)
class LedgerFilter:
    """Which rows of the ledger to read; None matches any.

    `failed`: only those where an attempt failed or was lost, or that were skipped for coming too late. `since` and
    `until` are about the occurrences of one key, and for all keys about when they were settled (both included). `last`:
    only so many of these rows, from the end. `page`: as in `TaskFilter`.
    """

    key: str | None = None
    failed: bool = False
    since: float | None = None
    until: float | None = None
    last: int | None = None
    page: int | None = None


class Definition(NamedTuple):
    """Names a definition of a schedule: that of the change with this version."""

    key: str
    version: int


class DefinitionTimes(NamedTuple):
    """When the occurrences of a definition are to run: `delay` seconds after their times.

    `first` and `due` as in `Change`.
    """

    delay: float
    first: int
    due: float
    is_backfill: bool = False


@dataclass(frozen=True, slots=True)
class Change:
    """One change of a schedule's definition, and the definition from then on.

    `at`: when, by `node`. `pending`: the regular occurrence that was next before it (None for `add`), `first` the one
    that is next after it: from that one on the new definition holds. `due`: when `first` is to run. Versions of one
    key grow, also when it is deleted and added again. `reckoning` as in `LedgerRow`, None where it is not known.
    `paused_from`, `paused_until`: the last pause then, as in `ScheduleRow`: the moments by which occurrences are
    skipped are a little before those at which their changes were written. `data`: the data as JSON, None where the
    ledger does not keep it (`rdb_compat`).
    """

    key: str
    version: int
    at: float
    action: Action
    node: str | None
    type: str
    rule: Rule
    policy: Policy
    pending: int | None
    first: int
    due: float
    reckoning: str | None
    paused_from: float | None = None
    paused_until: float | None = None
    data: str | None = None

    @property
    def delay(self) -> float:
        """The seconds by which a run comes after its occurrence."""
        return self.rule.delay_of(self.key)


class Ledger(Protocol):
    """The ledger of one table of schedules. Methods may be called from any thread; they raise the driver's errors."""

    def rows(self, wanted: LedgerFilter) -> Iterator[LedgerRow]:
        """Yield entries, read a page at a time: of one key in the order of occurrences, of all as they were settled.

        An entry that stands for several occurrences counts by the first one.
        """

    def last_rows(self, keys: Collection[str], last: int) -> Mapping[str, Sequence[LedgerRow]]:
        """Return the `last` entries with the last occurrences of each of some schedules, the oldest first.

        Some dozen keys cost one statement. Each key is in the answer.
        """

    def changes(self, key: str) -> list[Change]:
        """Return the changes of a schedule's definition that are kept, the oldest first."""

    def changed_since(self, time: float) -> list[str]:
        """Return the keys of the schedules whose definitions were changed at `time` or later. Looks at each change."""

    def run_times(self, wanted: Collection[Definition]) -> Mapping[Definition, DefinitionTimes]:
        """Return when the occurrences of those definitions that are kept are to run: of some hundred at most.

        Does not read their data, which may be large.
        """

    def row_before(self, key: str, time: int, version: int) -> LedgerRow | None:
        """Return the last entry by this definition of `key` whose first occurrence comes before `time`, or None."""

    def keys(self, after: str = "") -> Iterator[str]:
        """Yield the keys behind `after` with recorded changes, also of deleted schedules, in order."""

    def keep_output(self, claim: Claim, output: Output, retention: float) -> None:
        """Keep what the claimed run wrote for `retention` seconds or longer. Repeatable; needs no valid lease.

        Delete the outputs of runs before the last KEPT_OUTPUTS of its schedule.
        """

    def outputs(self, key: str) -> list[KeptOutput]:
        """Return the kept outputs of a schedule, the oldest first."""

    def trim(self, retention: float, count: int, limit: int, key: str | None) -> bool:
        """Delete about `limit` entries older than `retention` seconds, and of `key` those before its last `count`.

        Also delete changes of one key that are so old that no recorded entry ran by them. Return True if there may be
        more to delete. Safe to call concurrently.
        """
