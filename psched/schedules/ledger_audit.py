"""The audit: compares the ledger with the occurrences that a schedule should have run. Pure functions.

The definition of a schedule (rule and policy) changes over time. A definition applies from its first occurrence on. It
no longer applies to the occurrence that is next when another definition replaces it. A definition requires a run for
every match of its rule while it applies. The ledger has one entry for each of these occurrences, or one entry for
several that were skipped together. An occurrence without an entry is running, pending or missing.

Entries are read as a stream in the order of occurrences. Occurrences without an entry are counted, not listed, so
memory is bounded. Occurrences are unix seconds.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from operator import attrgetter, itemgetter

from psched import cron
from psched.errors import ConfigError
from psched.model import NEVER, ScheduleRow
from psched.schedules import rule_occurrences
from psched.schedules.audit_result import Kind, Verdict, Why
from psched.schedules.backfill_audit import LastRun, PartRecords, judge_backfills
from psched.schedules.derived_state import LEASED, RUNNING, failed_attempts
from psched.schedules.pause_and_run_now import MOST_SECONDS_AHEAD
from psched.schedules.skip_policy import OVERLAPPING, SUPERSEDED, TOO_LATE, came_due_during, lateness_bound
from psched.store.ledger import (
    ADD,
    DELETE,
    FAILED,
    PAUSE,
    PAUSE_AFTER,
    PAUSED,
    RESUME,
    RUN_NOW,
    SKIPPED,
    UPGRADE,
    Change,
    LedgerRow,
)
from psched.stored_error_summary import error_summary

MOVED = "moved"
"""The reason for due occurrences that were left out when `modify --start` moved the schedule."""

GRACE = 10.0
"""A due occurrence is pending for this many seconds, because it may wait for a worker. After that it is missing."""
_RUN_NOW_TOLERANCE = 60.0
"""The maximum number of seconds by which the time of an extra run may precede the recorded run-now."""
_BEGIN_TOLERANCE = 1.0
"""How many seconds the recorded start of a run may differ from the database's clock."""
_MAX_NOTES = 20
"""The maximum number of notes about changes of the cron dialect or the tz database."""
_MAX_NEIGHBOURS = 16
"""How many earlier runs each run is compared with, in addition to the run that ended last."""
_NOTHING_KNOWN = Why("it has no entry in the ledger")
_CHANGED = "occurrences were computed by {}, and by {} from"


@dataclass(frozen=True, slots=True)
class AuditRecords:
    """The records of one schedule: its definitions, its ledger entries and its current row.

    - `changes`: in the order of versions, the oldest first.
    - `rows`: a stream of entries, in the order of occurrences and fences. The stream begins with the last entry before
      the audited span for each of `versions_at`, because such an entry may cover the start of the span. The entries in
      the span follow.
    - `oldest`: the first entry that is still kept.
    - `present`: the schedule's row, read before `rows`; None if it was deleted.
    - `now`: the database's clock before `present` was read.
    - `kept_since`: entries that were settled before this time may have been deleted.
    - `reckoning`: the cron dialect and tz database of this process; also used for definitions without a recorded
      `reckoning`.
    - `runs_before`: for each version, how many entries before the span count for `max_runs`. Only needed if a
      definition has `max_runs`.
    - `earlier`: the last entries before the span. Only needed if a definition has `overlap: skip`.
    - `parts`: the records of the schedule's backfills, which are read before `rows`.
    """

    key: str
    changes: Sequence[Change]
    rows: Iterable[LedgerRow]
    oldest: LedgerRow | None
    present: ScheduleRow | None
    now: float
    kept_since: float = -math.inf
    reckoning: str = "vixie"
    runs_before: Mapping[int, int] = field(default_factory=dict)
    earlier: Sequence[LedgerRow] = ()
    parts: Iterable[PartRecords] = ()

    @property
    def known_from(self) -> float:
        """From this occurrence on, the ledger still has all entries."""
        if self.oldest is not None:
            return -math.inf if self.oldest.previous is None else self.oldest.scheduled_time
        is_young = bool(self.changes) and self.changes[0].action == ADD and self.changes[0].at >= self.kept_since
        return -math.inf if is_young else self.kept_since

    @property
    def pauses(self) -> Sequence[tuple[float, float]]:
        """The start and end (not included) of each recorded pause: from a `pause` to the next `resume`."""
        found: list[tuple[float, float]] = []
        begin: float | None = None
        for before, change in zip([None, *self.changes], self.changes, strict=False):
            if change.action in (PAUSE, PAUSE_AFTER) and begin is None:
                begin = _took_effect_at(change.paused_from, before, change)
            elif change.action in (RESUME, DELETE, ADD) and begin is not None:
                found.append((begin, _took_effect_at(change.paused_until, before, change)))
                begin = None
        return found if begin is None else [*found, (begin, math.inf)]


@dataclass(frozen=True, slots=True)
class AuditScope:
    """The occurrences to audit, from `since` to `until`, both included.

    `late`: the maximum number of seconds that a run may begin late; None: no limit. `grace`: for how many seconds a due
    occurrence may wait for a worker.
    """

    since: int
    until: int
    late: float | None = None
    grace: float = GRACE


def audit(records: AuditRecords, scope: AuditScope) -> Verdict:
    """Compare the ledger with the occurrences that should have run. Reads `records.rows` once."""
    verdict = Verdict(records.key, known=bool(records.changes) or records.present is not None)
    filled = _Backfilled(judge_backfills(records.parts, scope.since, scope.until, verdict, _dialect_of(records)))
    definitions = _definitions(records, scope, verdict, filled)
    by_version = {definition.change.version: definition for definition in definitions}
    repeats, overlaps = _Repeats(records.changes), _Overlaps()
    runs = deque((row for row in records.earlier if _is_regular_run(row)), _MAX_NEIGHBOURS)
    reckoning: str | None = None
    for row in records.rows:
        time = row.scheduled_time
        is_asked_about = scope.since <= time <= scope.until
        if reckoning not in (None, row.reckoning) and len(verdict.notes) < _MAX_NOTES:
            verdict.notes.append((_CHANGED.format(reckoning, row.reckoning), time))
        reckoning = row.reckoning
        shared = overlaps.seconds(row)
        if shared > 0 and is_asked_about:
            verdict.add_violation(Kind.OVERLAPPING, time, f"it ran for {shared:.3f} s at the same time as another run")
        before = repeats.settled_before(row)
        if before is not None and is_asked_about:
            verdict.add_violation(Kind.DOUBLED, time, f"it is recorded twice: {_settled(before)}, and {_settled(row)}")
        definition = by_version.get(row.version)
        if definition is not None:
            previous = max((run for run in runs if run.fence < row.fence), key=attrgetter("fence"), default=None)
            definition.compare(row, is_repeated=before is not None, previous=previous)
        elif is_asked_about and before is None:
            verdict.add_violation(Kind.EXTRA, time, "no recorded definition requires it")
        if _is_regular_run(row):
            runs.append(row)
    for definition in definitions:
        definition.end()
    if reckoning not in (None, records.reckoning):
        verdict.notes.append((_CHANGED.format(reckoning, records.reckoning), records.now))
    verdict.violations.sort(key=lambda found: found.time)
    return verdict


def versions_at(changes: Sequence[Change], time: int) -> Iterator[int]:
    """Yield the versions of the definitions in force at `time`.

    There are several if `modify` moved the schedule back.
    """
    for change, following in zip_longest(changes, changes[1:]):
        pending = None if following is None else following.pending
        if change.action != DELETE and change.first < time and (pending is None or time < pending):
            yield change.version


class _Backfilled:
    """Occurrences whose last run belongs to a backfill. The definitions require no other run for them."""

    def __init__(self, runs: Mapping[int, LastRun]) -> None:
        self._runs = runs
        self._times = sorted(runs)

    def within(self, begin: float, end: float) -> Sequence[int]:
        """Return the occurrences from `begin` to `end` (not included), in order."""
        return self._times[bisect_left(self._times, begin) : bisect_left(self._times, end)] if self._times else ()

    def settled_after(self, row: LedgerRow) -> Sequence[int]:
        """Return the occurrences of an entry that a backfill settled later than this entry."""
        within = self.within(row.scheduled_time, row.end + 1)
        return [time for time in within if self._runs[time].ended >= row.ended]


def _definitions(records: AuditRecords, scope: AuditScope, verdict: Verdict, filled: _Backfilled) -> list[_Definition]:
    """Return the definitions, the oldest first. Report occurrences before the first definition as unknown."""
    changes, present = list(records.changes), records.present
    if present is not None and (not changes or changes[-1].action == DELETE):
        changes.append(_unrecorded_definition(present.regular(), records.now, changes))
    found: list[_Definition] = []
    before: Change | None = None
    earliest = math.inf  # a worker may have acquired the first run under an earlier definition with a shorter delay
    for change, following in zip_longest(changes, changes[1:]):
        if change.action == DELETE:
            continue
        if before is None or change.pending != change.first:
            earliest = math.inf
        elif change.first != before.first:
            earliest = change.first + before.delay
        earliest = min(change.first + change.delay, change.due, earliest)
        continues = found and before is not None and change.action not in (ADD, UPGRADE)
        predecessor = found[-1] if continues and found[-1].change.rule.max_runs is not None else None
        found.append(_Definition(records, scope, verdict, filled, change, following, earliest, predecessor))
        before = change
    if found and found[0].change.action != ADD:
        _report_unknown_beginning(found[0].change, scope, verdict)
    return found


def _unrecorded_definition(present: ScheduleRow, now: float, changes: Sequence[Change]) -> Change:
    """Create a definition from the current row, for a schedule whose addition was not recorded."""
    return Change(
        key=present.key,
        version=changes[-1].version + 1 if changes else 0,
        at=now,
        action=UPGRADE,
        node=None,
        type=present.type,
        rule=present.rule,
        policy=present.policy,
        pending=None,
        first=present.next_time,
        due=present.next_run_time,
        reckoning=None,
    )


def _report_unknown_beginning(change: Change, scope: AuditScope, verdict: Verdict) -> None:
    begin = change.first if change.pending is None else min(change.first, change.pending)
    if scope.since < begin:
        older = "the schedule is older than its ledger" if change.action == UPGRADE else "older records were deleted"
        end = min(begin - 1, scope.until)
        verdict.add_violation(
            Kind.UNKNOWN, scope.since, f"the ledger does not reach back to this time: {older}", end, 0
        )


@dataclass(slots=True)
class _Definition:
    """One definition of a schedule: compares its occurrences with the ledger entries, and reports to the verdict.

    Call `compare` with each entry, then `end`.

    - `following`: the next change, if any.
    - `earliest`: when the first run may begin.
    - `predecessor`: the previous definition, if its runs count for `max_runs`, too.
    - `due`: the next occurrence for which no entry was read yet.
    - `runs`: how many entries count for `max_runs`.
    """

    records: AuditRecords
    scope: AuditScope
    verdict: Verdict
    filled: _Backfilled
    change: Change
    following: Change | None
    earliest: float
    predecessor: _Definition | None
    dialect: cron.CronDialect = field(init=False)
    due: float = field(init=False)
    runs: int = field(init=False)

    def __post_init__(self) -> None:
        """If the rule is no longer valid, report its occurrences as unknown, because they cannot be computed."""
        change, since, until = self.change, self.scope.since, self.scope.until
        self.dialect = _dialect_of(self.records, change.reckoning)
        self.runs = self.records.runs_before.get(change.version, 0)
        self.due = float(change.first) if change.first >= since else self._next(since - 1)
        begin = max(change.first, since)
        try:
            rule_occurrences.validate(change.rule, self.dialect)
        except ConfigError as error:
            if begin <= until:
                self.verdict.add_violation(Kind.UNKNOWN, begin, f"its rule cannot be used: {error}", until, 0)

    def compare(self, row: LedgerRow, is_repeated: bool, previous: LedgerRow | None = None) -> None:
        """Compare the next ledger entry with the definition.

        `is_repeated`: whether an earlier entry has settled the same occurrence. `previous`: the regular run that was
        settled before this entry, if known.
        """
        since, time = self.scope.since, row.scheduled_time
        if row.end < since or time > self.scope.until:
            return
        if row.extra:
            if not is_repeated:
                self._count_extra(row, previous)
            return
        if since <= time:
            self._report_missing_until(time)
            self._count_for_max_runs(row)
        if time == self.due or time < since:
            self._count(row, previous)
        elif not is_repeated:
            what = "the definition has no such occurrence"
            if time < self.due:
                what = "it was settled before, or comes before this definition"
            self.verdict.add_violation(Kind.EXTRA, time, what)
        self.dialect = _dialect_of(self.records, row.reckoning)
        self.due = max(self.due, self._next(row.end))

    def end(self) -> None:
        """Check the occurrences after the last entry, up to the next change or up to now."""
        following = self.following
        if self._has_ended_by_max_runs():
            self.due = math.inf
        if following is None:
            self._end_at_present()
            return
        if following.pending is not None:
            self._report_missing_until(min(following.pending, self.scope.until + 1))
        if following.action == DELETE or following.pending is None:
            end = self._end_of_due(following.at - self.scope.grace)
            self._report_missing_until(end, Why("it was due, and not finished, when the schedule was deleted"))
        else:
            # The change skips due occurrences if it moves the schedule past them.
            self.verdict.skip(MOVED, self._count_unfilled(min(following.first, self._end_of_due(following.at))))

    def _count_for_max_runs(self, row: LedgerRow) -> None:
        """Count a run. Report it if `max_runs` was reached before it began."""
        most = self.change.rule.max_runs
        if row.outcome == SKIPPED:
            return
        if most is not None and self._runs_so_far() >= most and (row.started or 0) > self.change.at:
            self.verdict.add_violation(
                Kind.EXTRA, row.scheduled_time, f"max_runs is {most}, but as many occurrences had run before"
            )
        self.runs += 1

    def _runs_so_far(self) -> int:
        runs, before = self.runs, self.predecessor
        while before is not None:
            runs, before = runs + before.runs, before.predecessor
        return runs

    def _has_ended_by_max_runs(self) -> bool:
        """Whether the schedule has ended by `max_runs`.

        If entries have been deleted, the runs cannot be counted. Then a schedule without further occurrences is taken
        to have ended by `max_runs`.
        """
        most, present = self.change.rule.max_runs, self.records.present
        if self.following is not None:
            pending = self.following.pending
        else:
            pending = None if present is None else present.regular().next_time
        if most is None or pending is None or pending < NEVER:
            return False
        return self._runs_so_far() >= most or self.records.known_from > -math.inf

    def _end_at_present(self) -> None:
        """Check the occurrences that are due now against the current row of the schedule, if it still exists."""
        row, now = self.records.present, self.records.now
        end, fresh = self._end_of_due(now), self._end_of_due(now - self.scope.grace)
        if row is None:
            self._report_missing_until(fresh, Why("it has no entry in the ledger, and the schedule was deleted"))
            return
        present = row.regular()
        self._report_missing_until(min(present.next_time, self.scope.until + 1))
        for begin, until in self._pauses_of(row):
            self._report_waiting(row, min(begin, end), fresh)
            self.verdict.skip(PAUSED, self._count_until(min(until, end)))
        self._report_waiting(row, end, fresh)
        if row.paused and self.scope.since <= present.next_time <= self.scope.until:
            self.verdict.notes.append(("the schedule is paused; it skips occurrences from", present.next_time))

    def _report_waiting(self, row: ScheduleRow, end: float, fresh: float) -> None:
        """Check due occurrences before `end` that have no entry.

        Occurrences from `fresh` on may still wait for a worker.
        """
        if self.due >= end:
            return
        present, state = row.regular(), _state_of_run(row, self.records.now)
        if not self._is_first_run_later(present):
            if present.next_time == self.due and not row.is_extra and state is not None:
                self._report_next(row, state, fresh)
            # The policy passes over occurrences that wait for a run in progress.
            skips = present.policy.catch_up != "all" or present.policy.overlap == "skip"
            if present.status != RUNNING or not skips or self.due <= present.next_time:
                why = _NOTHING_KNOWN
                if state is not None and (row.next_time != self.due or row.is_extra):
                    run = "an extra run" if row.is_extra else "an occurrence"
                    why = replace(state, what=f"it waits behind {run} that {state.what}", behind=row.next_time)
                self._report_missing_until(min(fresh, end), why)
        self.verdict.pending += self._count_until(end)

    def _report_next(self, row: ScheduleRow, state: Why, fresh: float) -> None:
        """Check the row's occurrence. It is leased, was retried, or cannot be run."""
        end, is_leased = row.next_time + 1, row.next_run_time > self.records.now
        why = replace(state, what=f"it {state.what}")
        if row.status == RUNNING and is_leased:
            self.verdict.running += self._count_until(end)
        elif row.next_time < fresh and row.status == LEASED and is_leased:
            self._report_until(end, Kind.UNKNOWN, why)
        elif row.next_time < fresh:
            self._report_missing_until(end, why)

    def _is_first_run_later(self, row: ScheduleRow) -> bool:
        """Return whether the option `--at` has set the definition's first run to a time that has not come yet."""
        change = self.change
        at = change.first == row.next_time and change.due == row.next_run_time > self.records.now
        return at and row.status != RUNNING and not row.attempts and not row.paused

    def _pauses_of(self, row: ScheduleRow) -> Iterator[tuple[float, float]]:
        """Yield the start and end (not included) of each pause of the row.

        Both are earlier by the delay, so that they can be compared with the times of occurrences.
        """
        delay = self.change.delay
        for begin, until in row.ended_pauses:
            yield math.ceil(begin - delay), math.ceil(until - delay)
        if row.paused_from is not None and row.paused:
            yield math.ceil(row.paused_from - delay), math.inf

    def _end_of_due(self, time: float) -> float:
        """Return the end (not included) of the audited occurrences that were due by `time`."""
        return min(self.scope.until, math.floor(time - self.change.delay)) + 1

    def _report_missing_until(self, end: float, why: Why = _NOTHING_KNOWN) -> None:
        """Report expected occurrences before `end`: as unknown before the oldest kept entry, otherwise as missing."""
        known, is_empty = self.records.known_from, self.records.oldest is None
        gone = "the ledger is not kept that long" if is_empty else "its ledger entry has been deleted"
        self._report_until(min(end, known), Kind.UNKNOWN, Why(gone))
        self._report_until(end, Kind.MISSING, why)

    def _report_until(self, end: float, kind: Kind, why: Why) -> None:
        """Report expected occurrences before `end`, except those that a backfill has settled."""
        for time in self.filled.within(self.due, end):
            self._report_part(time, kind, why)
            if self.due == time:
                self.due = self._next(time)
        self._report_part(end, kind, why)

    def _report_part(self, end: float, kind: Kind, why: Why) -> None:
        if self.due < end:
            rule, first = self.change.rule, int(self.due)
            count = self._count_until(end)
            last = rule_occurrences.last_time(rule, first, int(end) - 1, self.dialect) if count > 1 else None
            self.verdict.add_violation(kind, first, why, last, count)

    def _count_until(self, end: float) -> int:
        """Move `due` to the first expected occurrence at or after `end`. Return the number of occurrences passed."""
        if self.due >= end:
            return 0
        rule, first, count = self.change.rule, int(self.due), 1
        if self._next(first) < end:
            count += rule_occurrences.count(rule, first, int(end) - 1, self.dialect)
        self.due = self._next(end - 1)
        return count

    def _count_unfilled(self, end: float) -> int:
        """Do the same as `_count_until`, but do not count the occurrences that a backfill has settled."""
        count = 0
        for time in self.filled.within(self.due, end):
            count += self._count_until(time)
            if self.due == time:
                self.due = self._next(time)
        return count + self._count_until(end)

    def _count_extra(self, row: LedgerRow, previous: LedgerRow | None) -> None:
        """Count an extra run, if the ledger records the run-now that requested it."""
        since, until = row.scheduled_time - MOST_SECONDS_AHEAD, row.scheduled_time + _RUN_NOW_TOLERANCE
        changes = [change for change in self.records.changes if change.version <= row.version]
        if any(change.action == RUN_NOW and since <= change.at <= until for change in changes):
            if row.outcome != FAILED:
                self.verdict.extra_runs += 1
            self._count(row, previous)
        else:
            self.verdict.add_violation(Kind.EXTRA, row.scheduled_time, "it is an extra run, but no run-now is recorded")

    def _count(self, row: LedgerRow, previous: LedgerRow | None) -> None:
        """Count an entry that the definition or a run-now requires."""
        if row.outcome == SKIPPED:
            self._count_skipped(row, previous)
        elif row.outcome == FAILED and self.filled.settled_after(row):
            self.verdict.settled(row.scheduled_time, row.end)
        elif row.outcome == FAILED:
            what = f"given up after {row.attempts} attempts{_error(row.error)}"
            self.verdict.add_violation(Kind.FAILED, row.scheduled_time, what)
        else:
            self.verdict.ran += 1
            self.verdict.settled(row.scheduled_time, row.end)
            if row.started is not None and not row.extra:
                self._check_begin(row, row.started)

    def _count_skipped(self, row: LedgerRow, previous: LedgerRow | None) -> None:
        begin, end = max(row.scheduled_time, self.scope.since), min(row.end, self.scope.until)
        rule = self.change.rule
        try:
            count = rule_occurrences.count(rule, begin - 1, end, self.dialect)
        except ConfigError:  # the rule is invalid by now
            count = row.count or 1
        if row.scheduled_time == begin == self.change.first and self._next(begin - 1) != begin:
            count += 1  # the occurrence was kept from the previous rule and does not match this rule
        why = self._unpermitted(row, previous)
        if why is None:
            filled = [time for time in self.filled.settled_after(row) if time == begin or self._next(time - 1) == time]
            self.verdict.skip(row.detail or "", max(count, 1) - len(filled))
            self.verdict.settled(begin, end)
        else:
            self.verdict.add_violation(Kind.UNPERMITTED, begin, why, end, max(count, 1))

    def _unpermitted(self, row: LedgerRow, previous: LedgerRow | None) -> str | None:
        """Return why the recorded reason of a skip is not permitted; None if it is permitted."""
        policy, delay, reason = self.change.policy, self.change.delay, row.detail
        bound = lateness_bound(policy)
        max_lateness = "no max_lateness" if policy.max_lateness is None else f"max_lateness={policy.max_lateness:g}"
        terms = f"catch_up={policy.catch_up}, {max_lateness}"
        if (reason == SUPERSEDED and policy.catch_up == "all") or (reason == TOO_LATE and bound is None):
            return f"skipped as {reason}, which the policy then in force does not permit: {terms}"
        if reason == SUPERSEDED:
            later = self._next(row.end, _dialect_of(self.records, row.reckoning)) + delay
            return None if later <= row.ended else f"skipped as {reason}, but no later occurrence was due"
        if reason == TOO_LATE and bound is not None:
            is_late = row.end + delay < row.ended - bound
            return None if is_late else f"skipped as {reason}, but it was in time: {terms}"
        if reason == PAUSED:
            begin, end = row.scheduled_time + delay, row.end + delay
            in_pause = any(since <= begin and end < until for since, until in self.records.pauses)
            return None if in_pause else f"skipped as {reason}, but the schedule was not paused then"
        if reason == OVERLAPPING:
            return self._not_overlapping(row, previous)
        return f"skipped as {reason}, which no policy or pause gives as a reason"

    def _not_overlapping(self, row: LedgerRow, previous: LedgerRow | None) -> str | None:
        """Return why a skip with the reason `overlap` is not permitted; None if it is permitted.

        It is permitted if the skipped occurrences were due before the previous run was settled.
        """
        if self.change.policy.overlap != "skip":
            return f"skipped as {OVERLAPPING}, which the policy then in force does not permit: overlap=wait"
        if previous is None:
            is_known = self.records.known_from == -math.inf
            return f"skipped as {OVERLAPPING}, but no earlier run is recorded" if is_known else None
        run_time = row.end + self.change.delay
        if came_due_during(previous.ended, run_time):
            return None
        late = run_time - previous.ended
        return f"skipped as {OVERLAPPING}, but the previous run was settled {late:.3f} s before this one was due"

    def _check_begin(self, row: LedgerRow, started: float) -> None:
        """Report a run that began before its time, or later than the scope allows."""
        time, change = row.scheduled_time, self.change
        earliest = latest = time + change.delay
        if time == change.first:
            earliest = self.earliest
            latest = latest if change.due >= NEVER else max(latest, change.due)
        if started < earliest - _BEGIN_TOLERANCE and row.detail != RUN_NOW:
            self.verdict.add_violation(Kind.EARLY, time, f"it began {earliest - started:.3f} s before its time")
        late = started - latest
        if self.scope.late is not None and late > self.scope.late:
            self.verdict.add_violation(
                Kind.LATE, time, f"it began {late:.3f} s after its time, at attempt {row.attempts}"
            )

    def _next(self, after: float, dialect: cron.CronDialect | None = None) -> float:
        rule = self.change.rule
        try:
            return rule_occurrences.next_time(rule, int(after), self.dialect if dialect is None else dialect)
        except ConfigError:
            return math.inf  # the rule is invalid by now, or has no match before the year 10000


class _Repeats:
    """Finds occurrences that were settled twice although no change requested a second run."""

    def __init__(self, changes: Sequence[Change]) -> None:
        self._changes = changes
        self._same: deque[LedgerRow] = deque(maxlen=_MAX_NEIGHBOURS)

    def settled_before(self, row: LedgerRow) -> LedgerRow | None:
        """Return the earlier entry that settled the same run as `row`, or None. Call this with the entries in order."""
        if self._same and self._same[-1].scheduled_time != row.scheduled_time:
            self._same.clear()
        before = next((other for other in self._same if self._repeats(other, row)), None)
        self._same.append(row)
        return before

    def _repeats(self, before: LedgerRow, row: LedgerRow) -> bool:
        """Return whether `row` settled the same run as `before`: no change between them requested another run."""
        time = row.scheduled_time
        between = [change for change in self._changes if before.version < change.version <= row.version]
        if row.extra:
            return before.extra and not any(change.action == RUN_NOW for change in between)
        return not before.extra and not any(
            change.action != DELETE and change.first <= time and (change.pending is None or time < change.pending)
            for change in between
        )


class _Overlaps:
    """Finds overlapping runs.

    Compares each run with the _MAX_NEIGHBOURS runs before it, and with the run that ended last.
    """

    def __init__(self) -> None:
        self._runs: deque[tuple[float, float]] = deque(maxlen=_MAX_NEIGHBOURS)
        self._latest = (0.0, 0.0)

    def seconds(self, row: LedgerRow) -> float:
        """Return how many seconds the run in `row` overlapped an earlier run.

        Call this with the entries in order.
        """
        if row.started is None:
            return 0.0
        shared = max(min(row.ended, end) - max(row.started, begin) for begin, end in (*self._runs, self._latest))
        self._runs.append((row.started, row.ended))
        self._latest = max(self._latest, (row.started, row.ended), key=itemgetter(1))
        return shared


def _dialect_of(records: AuditRecords, reckoning: str | None = None) -> cron.CronDialect:
    """Return the recorded cron dialect, or the dialect of this process if none was recorded."""
    known = [(found or "").partition(" ")[0] for found in (reckoning, records.reckoning)]
    return next((dialect for name in known for dialect in cron.DIALECTS if dialect == name), cron.DIALECTS[0])


def _is_regular_run(row: LedgerRow) -> bool:
    return not row.extra and row.outcome != SKIPPED


def _settled(row: LedgerRow) -> str:
    return f"{row.outcome} by {row.node} under fence {row.fence}"


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


def _error(error: str | None, before: str = ": ") -> str:
    return "" if error is None else f"{before}{error_summary(error)}"


def _state_of_run(row: ScheduleRow, now: float) -> Why | None:
    """Return why the row's run is not settled, in words such as "is running". Return None if the run has not begun."""
    next_attempt = None
    if row.problem is not None:
        what = f"cannot be run: {row.problem}"
    elif row.status == RUNNING and row.next_run_time > now:
        failed = failed_attempts(row)
        what = "is running" + (f", after it failed {_times(failed)}" if failed else "")
    elif row.status == RUNNING:
        what = f"has an expired lease, at attempt {row.attempts}"
    elif row.status == LEASED and row.next_run_time > now:
        what = "is running, or waits for a retry"
    elif row.attempts:
        what, next_attempt = f"failed {_times(row.attempts)}", None if row.paused else row.next_run_time
    else:
        return None
    return Why(f"{what}{_error(row.last_error, ', the last error: ')}", next_attempt=next_attempt)


def _took_effect_at(recorded: float | None, before: Change | None, change: Change) -> float:
    """Return when `change` took effect.

    Return the `recorded` time if it is between the writes of `before` and `change`, else the time of the write of
    `change`.
    """
    if recorded is None or recorded > change.at or (before is not None and recorded < before.at):
        return change.at
    return recorded
