"""Proving what ran: what should have been run by every definition on record, held against the ledger. Pure.

A schedule's definitions follow each other: each holds from one occurrence on, up to the one that was next when it was
changed. Within that span it expects its first occurrence and every match of its rule after that. The ledger has an
entry for each of them, or one for several that were skipped together. Occurrences are unix seconds.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby, pairwise

from psched import cron
from psched.errors import ConfigError
from psched.ledger import DELETE, SKIPPED, UPGRADE, Change, LedgerRow
from psched.model import ScheduleRow

MISSING = "missing"
EXTRA = "extra"
LATE = "late"
OVERLAPPING = "overlapping"
UNKNOWN = "unknown"

_GRACE = 60.0
"""Seconds after its time for which an occurrence may be unfinished, unless a bound for lateness is given."""
_COUNTED = 1000
"""Occurrences of one gap that are counted; a schedule of every second may have been away for a year."""


@dataclass(frozen=True, slots=True)
class History:
    """What is on record of one schedule.

    `changes` by version, the oldest first. `rows`: the entries of the question's span, and besides those the last one
    before it by each of `versions_at`, which may cover the beginning.
    `oldest`: the first entry that is kept at all. `present`: the schedule as it was before the others were read, None
    when it is gone. `now`: the database's clock; what was settled before `kept_since` may have been deleted.
    `reckoning`: what times are computed with now, and by definitions whose own is not known.
    """

    key: str
    changes: Sequence[Change]
    rows: Sequence[LedgerRow]
    oldest: LedgerRow | None
    present: ScheduleRow | None
    now: float
    kept_since: float = -math.inf
    reckoning: str = "vixie"


@dataclass(frozen=True, slots=True)
class Question:
    """Which occurrences to judge, both ends included, and how many seconds late a run may begin (None: any)."""

    since: int
    until: int
    late: float | None = None


@dataclass(frozen=True, slots=True)
class Violation:
    """One thing that is not as it should be, at `time`: of `count` occurrences up to `last` (None: of very many)."""

    kind: str
    time: int
    what: str
    last: int | None = None
    count: int | None = 1


@dataclass(slots=True)
class Verdict:
    """What was found of one schedule. It is proved when there are no violations."""

    key: str
    ran: int = 0
    skipped: int = 0
    more_skipped: bool = False
    reasons: set[str] = field(default_factory=set)
    first: int | None = None
    last: int | None = None
    violations: list[Violation] = field(default_factory=list)
    notes: list[tuple[str, float]] = field(default_factory=list)
    """What there is to know besides, each with the time it is about."""

    @property
    def missing(self) -> int:
        """How many occurrences are missing, at the least."""
        return sum(found.count or _COUNTED for found in self.violations if found.kind == MISSING)


def audit(history: History, question: Question) -> Verdict:
    """Return what should have run within the question's span, and did not, and the other way round."""
    verdict = Verdict(history.key)
    by_version = {version: list(rows) for version, rows in groupby(_in_order(history.rows), lambda row: row.version)}
    known = [change for change in history.changes if change.action != DELETE]
    for change, end in _spans(history):
        _Span(history, question, verdict, change, end).judge(by_version.pop(change.version, []))
    for rows in by_version.values():
        for row in rows:
            if question.since <= row.scheduled_time <= question.until:
                verdict.violations.append(Violation(EXTRA, row.scheduled_time, "no definition on record asks for it"))
    if known and known[0].action == UPGRADE and question.since < known[0].first:
        what = "nothing is on record before: the schedule is older than its ledger"
        verdict.violations.append(Violation(UNKNOWN, question.since, what, known[0].first, None))
    _overlaps(history, question, verdict)
    _unfinished(history, question, verdict)
    verdict.notes += _reckonings(history)
    verdict.violations.sort(key=lambda found: found.time)
    return verdict


def versions_at(changes: Sequence[Change], time: int) -> Iterator[int]:
    """Yield the versions of the definitions that held at `time`: a schedule may have been moved back across it."""
    for change, following in pairwise([*changes, None]):
        if change is not None and change.action != DELETE:
            pending = None if following is None else following.pending
            if change.first < time and (pending is None or time < pending):
                yield change.version


class _Span:
    """One definition, and what it expects from `change.first` on and before `end`."""

    def __init__(self, history: History, question: Question, verdict: Verdict, change: Change, end: float) -> None:
        self._history = history
        self._question = question
        self._verdict = verdict
        self._change = change
        self._end = min(end, question.until + 1)
        self._dialect = _dialect(change.reckoning or history.reckoning)

    def judge(self, rows: Sequence[LedgerRow]) -> None:
        """Walk along what is expected and what is on record."""
        due = self._start()
        for row in rows:
            if row.end < self._question.since or row.scheduled_time > self._question.until:
                continue
            if due < row.scheduled_time and row.scheduled_time >= self._question.since:
                due = self._absent(due, row.scheduled_time)
            if row.scheduled_time != due and not row.scheduled_time < self._question.since <= row.end:
                self._verdict.violations.append(Violation(EXTRA, row.scheduled_time, self._why_extra(row, due)))
            else:
                self._count(row)
            self._dialect = _dialect(row.reckoning)
            due = max(due, _next(self._change, row.end, self._dialect))
        if due < self._end:
            self._absent(due, self._end)

    def _start(self) -> float:
        first, since = self._change.first, self._question.since
        return first if first >= since else _next(self._change, since - 1, self._dialect)

    def _absent(self, due: float, end: float) -> float:
        """Report what is expected from `due` on and before `end`; return what is expected then."""
        first, last, count = int(due), int(due), 0
        while due < end and count < _COUNTED:
            last, count = int(due), count + 1
            due = _next(self._change, last, self._dialect)
        more = due < end
        if more:
            last = self._last_before(last, int(end))
            due = _next(self._change, last, self._dialect)
        kind, what = self._what_is_absent(last)
        several = last if last > first else None
        self._verdict.violations.append(Violation(kind, first, what, several, None if more else count))
        return due

    def _last_before(self, after: int, end: int) -> int:
        rule = self._change.rule
        return cron.last_time(rule.cron, after, end - 1, rule.timezone, self._dialect) or after

    def _what_is_absent(self, last: int) -> tuple[str, str]:
        oldest = self._history.oldest
        if oldest is None and last < self._history.kept_since:
            return UNKNOWN, "the ledger is not kept for so long"
        if oldest is not None and oldest.previous is not None and last < oldest.scheduled_time:
            return UNKNOWN, "what the ledger had of it was deleted since"
        return MISSING, "nothing is on record of it"

    def _why_extra(self, row: LedgerRow, due: float) -> str:
        if row.scheduled_time < due:
            return "it was settled before, or comes before this definition"
        return "the definition has no such occurrence"

    def _count(self, row: LedgerRow) -> None:
        verdict = self._verdict
        verdict.first = row.scheduled_time if verdict.first is None else min(verdict.first, row.scheduled_time)
        verdict.last = row.end if verdict.last is None else max(verdict.last, row.end)
        if row.outcome == SKIPPED:
            verdict.skipped += row.count or _COUNTED
            verdict.more_skipped |= row.count is None
            verdict.reasons.add(row.detail or "")
            return
        verdict.ran += 1
        late = 0.0 if row.started is None else row.started - self._run_time(row.scheduled_time)
        if self._question.late is not None and late > self._question.late:
            what = f"it began {late:.3f} s after its time, at attempt {row.attempts}"
            verdict.violations.append(Violation(LATE, row.scheduled_time, what))

    def _run_time(self, time: int) -> float:
        change = self._change
        regular = time + change.rule.delay
        return max(regular, change.due) if time == change.first and change.due < change.at + 1e9 else regular


def _spans(history: History) -> Iterator[tuple[Change, float]]:
    """Yield each definition with the occurrence before which it ends."""
    for change, following in pairwise([*history.changes, None]):
        if change is None or change.action == DELETE:
            continue
        if following is not None:
            yield change, math.inf if following.pending is None else following.pending
        else:
            yield change, math.inf if history.present is None else history.present.next_time


def _unfinished(history: History, question: Question, verdict: Verdict) -> None:
    """Judge the occurrence that is next: it may be overdue."""
    row = history.present
    if row is None or not question.since <= row.next_time <= question.until:
        return
    if any(entry.scheduled_time <= row.next_time <= entry.end for entry in history.rows):
        return  # it was settled just now
    overdue = history.now - row.next_time - row.rule.delay
    if row.paused:
        verdict.notes.append(("it is paused, and nothing of it runs from", row.next_time))
    elif overdue > (_GRACE if question.late is None else question.late):
        what = f"it is {row.status}, {overdue:.0f} s after its time, after {row.attempts} attempts"
        verdict.violations.append(Violation(MISSING, row.next_time, what))


def _overlaps(history: History, question: Question, verdict: Verdict) -> None:
    end, whose = -math.inf, 0
    for row in _in_order(history.rows):
        if row.started is None:
            continue
        if row.started < end and question.since <= row.scheduled_time <= question.until:
            what = f"it began {end - row.started:.3f} s before the run of another one had ended"
            verdict.violations.append(Violation(OVERLAPPING, row.scheduled_time, what, whose))
        if row.ended > end:
            end, whose = row.ended, row.scheduled_time


def _reckonings(history: History) -> Iterator[tuple[str, float]]:
    """Yield how times were computed otherwise than now: that may explain what seems missing or extra."""
    used = [(row.reckoning, row.scheduled_time) for row in _in_order(history.rows)]
    for (before, _), (after, time) in pairwise([*used, (history.reckoning, history.now)] if used else []):
        if before != after:
            yield f"times were computed by {before} before, by {after} from", time


def _in_order(rows: Sequence[LedgerRow]) -> list[LedgerRow]:
    return sorted(rows, key=lambda row: (row.version, row.fence, row.scheduled_time))


def _next(change: Change, after: float, dialect: str) -> float:
    try:
        return cron.next_time(change.rule.cron, int(after), change.rule.timezone, dialect)
    except ConfigError:
        return math.inf  # it cannot be used any more, or ends with the calendar


def _dialect(reckoning: str) -> str:
    return reckoning.partition(" ")[0]
