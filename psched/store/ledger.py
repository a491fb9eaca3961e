"""The contract of the ledger: how each occurrence of a schedule was settled, and each change of a definition.

All times are unix seconds. Occurrences are computed from the schedule's rule; all other times are by the database's
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
"""The outcome of an occurrence that failed for good: all allowed attempts failed, or the handler called `fail`."""

Action = Literal["add", "modify", "delete", "pause", "pause-after", "resume", "run-now", "upgrade"]
ACTIONS: tuple[Action, ...] = get_args(Action)
ADD: Final = "add"
MODIFY: Final = "modify"
DELETE: Final = "delete"
PAUSE: Final = "pause"
PAUSE_AFTER: Final = "pause-after"
"""The action recorded when a schedule is paused because `pause_after` occurrences have failed in a row."""
RESUME: Final = "resume"
RUN_NOW: Final = "run-now"
UPGRADE: Final = "upgrade"
"""The action of the first recorded definition of a schedule that is older than its ledger."""

BACKFILL: Final = "backfill"
"""The detail of an entry whose run belongs to a backfill and enqueued no task. If the run enqueued a task, the detail
is the key of the task.
"""
PAUSED = "paused"
"""The reason for skipping occurrences that were due while their schedule was paused."""


@dataclass(frozen=True, slots=True)
class Entry:
    """How an occurrence is settled, for the ledger.

    - `detail`: the reason of a skip; the key of the enqueued task; `run-now` for a run that `run_now` requested;
      `backfill` for a run of a backfill.
    - `started`: when the run began; None without a run.
    - `last`: the last of several occurrences that were skipped together; None for a single occurrence.
    - `count`: how many occurrences the entry stands for; None if there are more than were counted.
    - `extra`: whether this is an extra run, requested by `run_now`.
    """

    outcome: Outcome = FINISHED
    detail: str | None = None
    started: float | None = None
    last: int | None = None
    count: int | None = 1
    extra: bool = False

    @property
    def went_wrong(self) -> bool:
        """Whether the occurrence has failed, or was skipped although its schedule was not paused."""
        return self.outcome == FAILED or (self.outcome == SKIPPED and self.detail != PAUSED)


OnCommit = Callable[[Any], object]
"""A function that adds work to a store's transaction: it calls `TaskStore.submit` with its argument as `connection`."""


def runs_after(row: ScheduleRow, entry: Entry) -> int | None:
    """Return the value of `ScheduleRow.runs` after the occurrence was settled with `entry`."""
    if row.rule.max_runs is None:
        return None
    return (row.runs or 0) + (not entry.extra and entry.outcome != SKIPPED)


def failures_after(row: ScheduleRow, entry: Entry) -> int | None:
    """Return the value of `ScheduleRow.failures` after the occurrence was settled with `entry`."""
    if row.policy.pause_after is None:
        return None
    if entry.extra or entry.outcome == SKIPPED:
        return row.failures
    return (row.failures or 0) + 1 if entry.outcome == FAILED else None


NOW: Final = "now"


def previous_ended_after(row: ScheduleRow, entry: Entry) -> float | Literal["now"] | None:
    """Return the value of `ScheduleRow.previous_ended` after the occurrence was settled with `entry`.

    `NOW` stands for the time of the settlement.
    """
    if row.policy.overlap == "wait":
        return None
    return row.previous_ended if entry.extra or entry.outcome == SKIPPED else NOW


class Step(NamedTuple):
    """The arguments of `ScheduleStore.advance` for one occurrence; `advance_many` takes a list of them.

    Times are unix seconds.
    """

    claim: Claim
    next_time: int
    next_run_time: float
    entry: Entry = Entry()
    on_commit: OnCommit | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerRow(Entry):
    """One entry of the ledger.

    - `scheduled_time`: the occurrence, or the first of several.
    - `version`: the version of the definition that the run used.
    - `previous`: the last regular occurrence settled before this one; None for a schedule's first occurrence.
    - `attempts`: how many attempts were begun.
    - `error`: the error of the last failed attempt, shortened.
    - `node`: the process that settled the occurrence, as `host/process/random`.
    - `ended`: when `node` settled the occurrence.
    - `reckoning`: the cron dialect and the tz database version that computed the next occurrence.
    - `backfill`: the number of the backfill that made this run; None if no backfill made it. The store returns the
      entry with the key of the backfill's row and without this number. `with_backfill` replaces that key by the
      schedule's key, and sets the number.
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
        """Whether the occurrence went wrong, or one of its attempts failed or was lost. See `Entry.went_wrong`."""
        return self.went_wrong or self.attempts > 1 or self.error is not None

    @property
    def end(self) -> int:
        """The last occurrence that the entry stands for."""
        return self.scheduled_time if self.last is None else self.last


@dataclass(frozen=True, slots=True)
class Output:
    """The output of one run of a schedule. `result`: one line, how the run ended. `failed`: whether the run failed."""

    text: str
    result: str
    failed: bool


KEPT_OUTPUTS = 20
"""How many outputs of each schedule are kept: those of the last runs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptOutput(Output):
    """The output of one run. A run is one attempt at an occurrence.

    `ended`: when the output was stored, by the database's clock.
    """

    key: str
    scheduled_time: int
    attempt: int
    ended: float


@dataclass(frozen=True, slots=True)
class LedgerFilter:
    """Which rows of the ledger to read. None in a field matches any row.

    - `failed`: only rows with `LedgerRow.had_trouble`.
    - `since`, `until`: both included. With a key they limit the occurrences, without a key the times of settlement.
    - `last`: only this many rows, from the end.
    - `page`: as in `TaskFilter`.
    """

    key: str | None = None
    failed: bool = False
    since: float | None = None
    until: float | None = None
    last: int | None = None
    page: int | None = None


class Definition(NamedTuple):
    """Identifies a definition of a schedule, by the version of the change that created it."""

    key: str
    version: int


class DefinitionTimes(NamedTuple):
    """When the occurrences of a definition are due: `delay` seconds after their times.

    `first` and `due` are as in `Change`.
    """

    delay: float
    first: int
    due: float
    is_backfill: bool = False


@dataclass(frozen=True, slots=True)
class Change:
    """One change of a schedule's definition, with the definition after the change.

    - `at`, `node`: when, and by which process, the change was made.
    - `pending`: the regular occurrence that was next before the change; None for `add`.
    - `first`: the regular occurrence that was next after the change. The new definition applies from this occurrence
      on.
    - `due`: when `first` is due.
    - `version`: grows for each key, even if the key is deleted and added again.
    - `reckoning`: as in `LedgerRow`; None if it is not known.
    - `paused_from`, `paused_until`: the last pause at the time of the change, as in `ScheduleRow`. These two times
      decide which occurrences are skipped. Each of these times is a little before the time `at` of the change that set
      it.
    - `data`: the data as JSON; None if the ledger does not keep it (`rdb_compat`).
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
        """How many seconds after its occurrence a run is due."""
        return self.rule.delay_of(self.key)


class Ledger(Protocol):
    """The ledger of one table of schedules. Methods may be called from any thread and raise the driver's errors."""

    def rows(self, wanted: LedgerFilter) -> Iterator[LedgerRow]:
        """Yield entries, read a page at a time.

        Entries of one key are ordered by occurrence, entries of all keys by the time of settlement. An entry that
        stands for several occurrences is ordered by the first.
        """

    def first_rows(
        self, keys: Collection[str], first: int, since: float | None = None, until: float | None = None
    ) -> Mapping[str, Sequence[LedgerRow]]:
        """Return the first `first` entries of each of these schedules, ordered by occurrence.

        `since`, `until`: limits of the occurrences, both included. One statement reads a few dozen keys. A key without
        entries has an empty sequence.
        """

    def last_rows(
        self, keys: Collection[str], last: int, until: float | None = None
    ) -> Mapping[str, Sequence[LedgerRow]]:
        """Return the last `last` entries of each of these schedules, ordered by occurrence.

        `until`: the last occurrence, included. One statement reads a few dozen keys. A key without entries has an empty
        sequence.
        """

    def rows_before(self, time: int, wanted: Collection[Definition]) -> Mapping[Definition, LedgerRow]:
        """Return the last entry of each definition before `time`.

        The first occurrence of an entry decides whether the entry is before `time`. Definitions without such an entry
        are left out. One statement reads a few dozen definitions.
        """

    def changes(self, key: str) -> list[Change]:
        """Return the recorded changes of a schedule's definition, the oldest first."""

    def changes_of(self, keys: Collection[str]) -> Mapping[str, list[Change]]:
        """Return the changes of each of these schedules, like `changes`. One statement reads a few dozen keys."""

    def changed_since(self, time: float) -> list[str]:
        """Return the keys of the schedules whose definitions were changed at `time` or later. Reads all changes."""

    def run_times(self, wanted: Collection[Definition]) -> Mapping[Definition, DefinitionTimes]:
        """Return when the occurrences of these definitions are due. Definitions that are not kept are left out.

        Takes at most a few hundred definitions. Does not read the data of schedules, because the data may be large.
        """

    def keys(self, after: str = "") -> Iterator[str]:
        """Yield the keys after `after` that have recorded changes, in order. Deleted schedules are included."""

    def next_keys(self, after: Collection[str]) -> Mapping[str, str | None]:
        """Return, for each text in `after`, the first key that `keys` yields after it; None if there is none.

        On SQL, one statement takes a few dozen texts.
        """

    def keep_output(self, claim: Claim, output: Output, retention: float) -> None:
        """Store the output of the claimed run for at least `retention` seconds. Idempotent; needs no valid lease.

        Also delete the outputs of all but the last KEPT_OUTPUTS runs of the schedule.
        """

    def outputs(self, key: str) -> list[KeptOutput]:
        """Return the stored outputs of a schedule, the oldest first."""

    def trim(self, retention: float, count: int, limit: int, key: str | None) -> bool:
        """Delete about `limit` old entries. Return True if there may be more to delete. Safe to call concurrently.

        Entries older than `retention` seconds are old, and so are the entries of `key` before its last `count` entries.
        Also delete old outputs. Each call takes another key, and deletes the changes of this key that were replaced
        more than `retention` seconds ago.
        """
