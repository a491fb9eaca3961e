"""Backfills: runs of past occurrences of a schedule, in addition to its regular runs.

A backfill consists of one or more rows in the table of schedules, called parts. Each part runs its share of the
occurrences, one after another. Parts are acquired, leased, retried and settled like schedules, and the ledger records
their runs. As many occurrences as there are parts can run at the same time.
"""

from __future__ import annotations

import builtins
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import Final, Literal, get_args

from psched.cron import CronDialect
from psched.error_messages import shown
from psched.errors import NotFoundError, NotSupportedError, ScheduleError
from psched.keys import BACKFILL_PREFIX, MAX_KEY_LENGTH, backfill_key, backfill_of, check_key, is_backfill_key
from psched.model import NO_OCCURRENCE, ScheduleFilter, ScheduleRow, Span
from psched.schedules import rule_occurrences
from psched.schedules.backfill_spans import (
    MOST_SPANS,
    count,
    first_to_backfill,
    last_to_backfill,
    rule_of_backfill,
    shares,
    spans_left,
    spans_passed,
    uncovered,
    without,
)
from psched.schedules.derived_state import FAILING, PAUSED, RETRYING, RUNNING, WAITING, failed_attempts
from psched.schedules.schedule_handle import Schedule
from psched.schedules.skip_policy import TOO_LATE
from psched.schedules.validation import check_enqueued_key
from psched.store import RowChange, ScheduleStore
from psched.store.ledger import FAILED, SKIPPED, Ledger, LedgerFilter, LedgerRow
from psched.time_check import check_time
from psched.time_text import local_time

BackfillMode = Literal["missing", "failed", "all"]
BACKFILL_MODES: tuple[BackfillMode, ...] = get_args(BackfillMode)

BackfillWord = Literal["waiting", "running", "failing", "retrying", "paused", "finished", "cancelled"]
FINISHED: Final = "finished"
CANCELLED: Final = "cancelled"

MOST_RUNNING = 100
"""The maximum number of parts of one backfill."""
_TRIES = 100
_BEFORE = 32
"""How many ledger entries before a time range are read. Such an entry may also cover skipped occurrences in the range.
"""
_KEPT = 86400.0
"""The rows of a finished backfill are kept for at least this many seconds. In this time no other backfill gets its
number.
"""


@dataclass(frozen=True, slots=True)
class BackfillPlan:
    """What a backfill of `schedule` would run: `count` of the `total` occurrences in the range.

    `spans`: the time ranges in which the backfill runs each occurrence, sorted. Each range begins and ends with an
    occurrence.
    """

    schedule: str
    spans: tuple[Span, ...]
    count: int
    total: int


@dataclass(frozen=True, slots=True)
class BackfillState:
    """A backfill and its progress.

    - `name`: the schedule and a number, such as `nightly:3`.
    - `state`: `failing` (an attempt failed and is retried), `retrying` (like `failing`, but no error is known),
      `running`, `paused`, `waiting`, `finished` or `cancelled`.
    - `first`, `last`: the first and the last occurrence.
    - `max_running`: how many occurrences run at a time.
    - `done`: how many occurrences are settled. `failed`: how many of these failed for good. `left`: how many still have
      to run.
    - `last_error`: the error of the last failed attempt of an occurrence that is not settled.
    """

    name: str
    schedule: str
    number: int
    state: BackfillWord
    first: int
    last: int
    reverse: bool
    max_running: int
    done: int
    failed: int
    left: int
    last_error: str | None


class BackfillCollection:
    """The backfills of one table. Safe to use from several threads."""

    def __init__(self, store: ScheduleStore, dialect: CronDialect) -> None:
        self._store = store
        self._dialect = dialect

    def plan(self, key: str, since: int, until: int, mode: BackfillMode = "missing") -> BackfillPlan:
        """Return what `start` with these arguments would run now. Changes nothing."""
        return self._plan(key, since, until, mode, self._parts(key))[1]

    def start(
        self,
        key: str,
        since: int,
        until: int,
        mode: BackfillMode = "missing",
        *,
        max_running: int = 1,
        reverse: bool = False,
    ) -> BackfillState | None:
        """Run the past occurrences of a schedule from `since` to `until` (unix seconds, both included).

        These are the occurrences of the current rule that come before the schedule's next occurrence. `mode` selects
        among them:

        - `missing`: occurrences that have no entry in the ledger, or that were skipped because they were too late.
        - `failed`: also occurrences whose last run failed for good.
        - `all`: all occurrences.

        Occurrences that another backfill still has to run are left out. If no occurrence is left, the call starts
        nothing and returns None. So a repeated call starts nothing.

        The runs have the current type, data and policy of the schedule; later changes of the schedule do not affect
        them. At most `max_running` of them run at a time: the range is split into as many parts, and each part runs in
        order, or with `reverse` from its end. Due parts and due schedules run in the order of their due times.

        Raises:
            NotFoundError: there is no such schedule.
            ValueError: a value is not valid, or the occurrences to run are in more than 1,000 separate time ranges.
            ConfigError: the rule of the schedule is not valid.
            NotSupportedError: the store keeps no ledger, or no policies.
        """
        check_max_running(max_running)
        for _ in range(_TRIES):
            parts = self._parts(key)
            row, plan = self._plan(key, since, until, mode, parts)
            if not plan.count:
                return None
            now = self._store.now()
            number = max(parts, default=0) + 1
            added = [
                self._part(row, spans, reverse, backfill_key(key, number, place), now)
                for place, spans in enumerate(shares(row.rule, plan.spans, max_running, self._dialect), 1)
            ]
            old = [part for parts_of in parts.values() if self._is_over(parts_of, now) for part in parts_of]
            if not self._store.apply([*(RowChange(None, part) for part in added), *(RowChange(o, None) for o in old)]):
                return self._state(key, number, added)
        raise ScheduleError(
            f"{key!r}: no backfill started: other clients started one during each of {_TRIES} tries; try again"
        )

    def list(self, key: str | None = None) -> Iterator[BackfillState]:
        """Yield the backfills of a schedule, or of all schedules, with their progress.

        A backfill that finished more than a day ago may be missing. Raises NotSupportedError like `start`.
        """
        self._refuse_unsupported(key)
        if key is not None:
            found = {(key, number): parts for number, parts in self._parts(key).items()}
        else:
            found = defaultdict(list)
            for row in self._store.list(ScheduleFilter(prefix=BACKFILL_PREFIX)):
                if row.is_backfill:
                    found[backfill_of(row.key)].append(row)
        return (self._state(*name, parts) for name, parts in sorted(found.items()) if parts)

    def pause(self, key: str, number: int | None = None) -> builtins.list[str]:
        """Begin no more runs of a schedule's backfills until `resume`. Runs in progress continue.

        `number`: the number of the backfill; None: all backfills of the schedule. Return the names of the backfills
        that this call has paused. Raises NotFoundError if there is no such schedule, or if the schedule has no backfill
        with this number. Raises NotSupportedError like `start`.
        """
        return self._change(key, number, Schedule.pause)

    def resume(self, key: str, number: int | None = None) -> builtins.list[str]:
        """End the pause of a schedule's backfills. Return the names of the backfills that were paused.

        `number`: the number of the backfill; None: all backfills of the schedule. Raises like `pause`.
        """
        return self._change(key, number, Schedule.resume)

    def cancel(self, key: str, number: int | None = None) -> builtins.list[str]:
        """End a schedule's backfills for good: no further run begins. Runs in progress continue.

        `number`: the number of the backfill; None: all backfills of the schedule. Return the names of the backfills
        that had occurrences left. The ledger keeps the entries of past runs; another backfill may run the remaining
        occurrences. Raises like `pause`.
        """
        return self._change(key, number, self._cancel)

    def _change(self, key: str, number: int | None, change: Callable[[Schedule], object]) -> builtins.list[str]:
        self._refuse_unsupported(key)
        parts = self._parts(key)
        if number is not None and not parts.get(number):
            known = ", ".join(str(each) for each in sorted(parts) if parts[each]) or "none"
            raise NotFoundError(f"{key!r} has no backfill {number}; its backfills: {known}")
        if not parts and self._store.get(key) is None:
            raise NotFoundError(f"no schedule has the key {key!r}")
        changed = dict.fromkeys(
            number_of
            for number_of in sorted(parts if number is None else [number])
            for part in parts[number_of]
            if not part.ended and self._is_changed(part.key, change)
        )
        return [f"{key}:{each}" for each in changed]

    def _is_changed(self, key: str, change: Callable[[Schedule], object]) -> bool:
        try:
            return bool(change(Schedule(self._store, key, self._dialect)))
        except NotFoundError:
            return False

    def _cancel(self, part: Schedule) -> bool:
        """Remove from a part's time ranges the occurrences that have not begun.

        Return False if the part had ended or was cancelled already.
        """
        for _ in range(_TRIES):
            row = part.metadata()
            backfill = row.rule.backfill
            if row.ended or backfill is None or backfill.cancelled:
                return False
            is_running = row.status == RUNNING
            spans = sorted([*spans_passed(row), *([(row.next_time, row.next_time)] if is_running else [])])
            rule = replace(row.rule, backfill=replace(backfill, spans=tuple(spans), cancelled=True))
            wanted = replace(row, rule=rule)
            if not is_running:
                wanted = replace(wanted, next_time=NO_OCCURRENCE, next_run_time=NO_OCCURRENCE)
            if not self._store.apply([RowChange(row, wanted)]):
                return True
        raise ScheduleError(
            f"{part.key!r}: not cancelled: the backfill was changed during each of {_TRIES} tries; try again"
        )

    def _plan(
        self, key: str, since: int, until: int, mode: BackfillMode, parts: Mapping[int, Sequence[ScheduleRow]]
    ) -> tuple[ScheduleRow, BackfillPlan]:
        """Return the schedule's row and the plan.

        The caller must read the rows of `parts` before this method reads the ledger. Then each occurrence of a part is
        either still left to run, or already recorded.
        """
        check_time("since", since)
        check_time("until", until)
        if mode not in BACKFILL_MODES:
            raise ValueError(f"mode must be one of {', '.join(BACKFILL_MODES)}, got {shown(mode)}")
        row = self._store.get(key)
        if row is None:
            raise NotFoundError(f"no schedule has the key {key!r}")
        rule_occurrences.validate(row.rule, self._dialect)
        last = last_to_backfill(row, min(until, self._store.now()))
        rest = [span for parts_of in parts.values() for part in parts_of for span in spans_left(part)]
        rest += [] if mode == "all" else self._covered(key, since, last, mode)
        spans = tuple(uncovered(row.rule, since, last, rest, self._dialect)) if since <= last else ()
        if len(spans) > MOST_SPANS:
            raise ValueError(
                f"{key!r}: the occurrences to run are in {len(spans):,} separate time ranges; expected at most "
                f"{MOST_SPANS:,}; give a shorter range, such as one that ends at "
                f"{local_time(spans[MOST_SPANS - 1][1])}"
            )
        total = rule_occurrences.count(row.rule, since - 1, last, self._dialect) if since <= last else 0
        return row, BackfillPlan(key, spans, count(row.rule, spans, self._dialect), total)

    def _covered(self, key: str, since: int, until: int, mode: BackfillMode) -> builtins.list[Span]:
        """Return the time ranges whose occurrences need no run: the ledger says that they ran or were skipped."""
        ledger = self._ledger
        last: dict[int, LedgerRow] = {}
        skipped: builtins.list[Span] = []
        earlier = ledger.rows(LedgerFilter(key, until=since - 1, last=_BEFORE))
        for each in (key, *part_keys(ledger, key)):
            for row in ledger.rows(LedgerFilter(each, since=since, until=until)):
                if row.extra:
                    continue
                if row.last is not None:
                    skipped += [(row.scheduled_time, row.last)] if row.detail != TOO_LATE else []
                elif row.scheduled_time not in last or last[row.scheduled_time].ended <= row.ended:
                    last[row.scheduled_time] = row
        skipped += [(row.scheduled_time, row.end) for row in earlier if row.last is not None and row.detail != TOO_LATE]
        missing = sorted(time for time, row in last.items() if _is_to_run(row, mode))
        found = [rest_of for span in skipped for rest_of in without(span, missing)]
        found += ((time, time) for time, row in last.items() if not _is_to_run(row, mode))
        return found

    def _part(self, row: ScheduleRow, spans: tuple[Span, ...], reverse: bool, key: str, now: float) -> ScheduleRow:
        if len(key) > MAX_KEY_LENGTH:
            most = MAX_KEY_LENGTH - len(key) + len(row.key)
            raise ValueError(
                f"the key {row.key[:40]!r}… has {len(row.key)} characters; expected at most {most} for a schedule "
                "with backfills"
            )
        check_enqueued_key(key, row.type)
        rule = rule_of_backfill(row.rule, row.key, spans, reverse)
        policy = replace(
            row.policy,
            catch_up="all",
            max_lateness=None,
            alert_after=None,
            overlap="wait",
            owner=None,
            description=None,
            tags=(),
        )
        return ScheduleRow(
            key=key,
            type=row.type,
            data=row.data,
            status=WAITING,
            rule=rule,
            next_time=first_to_backfill(rule, self._dialect),
            next_run_time=now,
            policy=policy,
        )

    def _parts(self, key: str) -> Mapping[int, builtins.list[ScheduleRow]]:
        """Return the rows of each backfill of the schedule; the keys are the numbers of the backfills.

        The list is empty for a backfill whose rows are deleted. Only the ledger still knows this backfill.
        """
        check_key(key)
        keys = list(part_keys(self._ledger, key))
        found: dict[int, builtins.list[ScheduleRow]] = {backfill_of(each)[1]: [] for each in keys}
        for row in sorted(self._store.get_many(keys), key=lambda row: row.key):
            if row.is_backfill:
                found[backfill_of(row.key)[1]].append(row)
        return found

    def _is_over(self, parts: Sequence[ScheduleRow], now: float) -> bool:
        """Return whether all parts have ended more than `_KEPT` seconds ago."""
        if not all(part.ended for part in parts):
            return False
        entries = [self._ledger.rows(LedgerFilter(part.key, last=1)) for part in parts]
        return all(row.ended < now - _KEPT for rows in entries for row in rows)

    def _state(self, schedule: str, number: int, parts: Sequence[ScheduleRow]) -> BackfillState:
        left = sum(count(part.rule, spans_left(part), self._dialect) for part in parts)
        done = sum(count(part.rule, spans_passed(part), self._dialect) for part in parts)
        troubles = (row for part in parts for row in self._ledger.rows(LedgerFilter(part.key, failed=True)))
        errors = [part.last_error for part in parts if part.last_error is not None]
        return BackfillState(
            name=f"{schedule}:{number}",
            schedule=schedule,
            number=number,
            state=_word(parts),
            first=int(min(part.rule.start or 0 for part in parts)),
            last=int(max(part.rule.end or 0 for part in parts)),
            reverse=any(part.rule.backfill is not None and part.rule.backfill.reverse for part in parts),
            max_running=len(parts),
            done=done,
            failed=sum(row.outcome == FAILED for row in troubles),
            left=left,
            last_error=errors[0] if errors else None,
        )

    @property
    def _ledger(self) -> Ledger:
        ledger = self._store.ledger
        if ledger is None or not self._store.keeps_policies:
            raise NotSupportedError("this store keeps no backfills; use `type: rdb` or `type: redis`")
        return ledger

    def _refuse_unsupported(self, key: str | None) -> None:
        assert self._ledger is not None
        if key is not None:
            check_key(key)


def part_keys(ledger: Ledger, schedule: str) -> Iterator[str]:
    """Yield the keys of the parts of a schedule's backfills from the ledger, so deleted parts are included."""
    prefix = _parts_begin(schedule)
    found = takewhile(lambda key: key.startswith(prefix), ledger.keys(prefix))
    return (key for key in found if backfill_of(key)[0] == schedule)


def ledger_keys(store: ScheduleStore, ledger: Ledger, schedule: str) -> list[str]:
    """Return the keys of a schedule's ledger entries: its own key, and those of the parts of its backfills."""
    return [schedule, *part_keys(ledger, schedule)] if store.keeps_policies else [schedule]


def part_keys_of(ledger: Ledger, schedules: Collection[str]) -> Mapping[str, Sequence[str]]:
    """Return the result of `part_keys` for each schedule.

    Calls `next_keys` once, and `part_keys` only for schedules that may have backfills in the ledger.
    """
    following = ledger.next_keys([_parts_begin(each) for each in schedules])
    firsts = {each: following[_parts_begin(each)] for each in schedules}
    return {
        each: list(part_keys(ledger, each)) if first is not None and first.startswith(_parts_begin(each)) else []
        for each, first in firsts.items()
    }


def _parts_begin(schedule: str) -> str:
    return f"{BACKFILL_PREFIX}{schedule}:"


def with_backfill(row: LedgerRow) -> LedgerRow:
    """Return the ledger entry of a part with the key of the schedule and the number of the backfill.

    Return any other entry unchanged.
    """
    if not is_backfill_key(row.key):
        return row
    schedule, number = backfill_of(row.key)
    return replace(row, key=schedule, backfill=number)


def check_max_running(number: object) -> None:
    """Raise ValueError if a backfill cannot run this number of occurrences at a time."""
    if isinstance(number, bool) or not isinstance(number, int) or not 1 <= number <= MOST_RUNNING:
        raise ValueError(f"max_running must be a whole number from 1 to {MOST_RUNNING}, got {shown(number)}")


def _is_to_run(row: LedgerRow, mode: BackfillMode) -> bool:
    """Return whether a backfill must run the occurrence. `row`: the occurrence's last entry in the ledger."""
    if row.outcome == SKIPPED:
        return row.detail == TOO_LATE
    return row.outcome == FAILED and mode == "failed"


def _word(parts: Sequence[ScheduleRow]) -> BackfillWord:
    left = [part for part in parts if not part.ended]
    if not left:
        is_cancelled = any(part.rule.backfill is not None and part.rule.backfill.cancelled for part in parts)
        return CANCELLED if is_cancelled else FINISHED
    if all(part.paused for part in left):
        return PAUSED
    failing = [part for part in left if failed_attempts(part)]
    if failing:
        return FAILING if any(part.last_error is not None for part in failing) else RETRYING
    return RUNNING if any(part.status == RUNNING for part in left) else WAITING
