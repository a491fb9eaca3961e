"""The audit: compares the occurrences that the definitions of a schedule ask for with its ledger. Pure.

The definitions of a schedule follow each other: each holds from one occurrence on, up to the occurrence that was next
when the definition was changed. Within that span it asks for its first occurrence and every match of its rule after
that. The ledger has an entry for each of them, or one entry for several that were skipped together; what has no entry
is running, pending or missing. Entries are read as a stream in the order of occurrences, and occurrences without an
entry are counted and not listed, so that memory is bounded and a year of seconds takes no longer than its entries do.
Occurrences are unix seconds.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

from psched import cron
from psched.error_summary import error_summary
from psched.errors import ConfigError
from psched.model import Policy, Rule, ScheduleRow
from psched.schedules.rules import SOON_ENOUGH, SUPERSEDED, TOO_LATE, regular_of
from psched.schedules.schedule import failed_attempts
from psched.store.ledger import ADD, DELETE, FAILED, PAUSE, PAUSED, RESUME, RUN_NOW, SKIPPED, UPGRADE, Change, LedgerRow

MISSING = "missing"
FAILED_FOR_GOOD = "failed"
DOUBLED = "doubled"
EARLY = "early"
EXTRA = "extra"
UNPERMITTED = "unpermitted"
LATE = "late"
OVERLAPPING = "overlapping"
UNKNOWN = "unknown"

MOVED = "moved"
"""The reason of occurrences that `modify --start` has moved past when they were due: the change is on record."""

GRACE = 10.0
"""Seconds for which an occurrence that has come may be without a worker: it is pending and not yet missing."""
_ASKED = 60.0
"""Seconds by which the time of an extra run may differ from when run-now is on record."""
_EARLY = 1.0
"""Seconds by which the recorded begin of a run may differ from the database's clock."""
_LISTED = 1000
"""Violations of one schedule that are listed; the others are counted."""
_RECKONINGS = 20
"""Changes of the cron dialect or the tz database that are noted."""
_NEIGHBOURS = 16
"""Runs with which each run is compared to find those that overlap, besides the one that ended last."""
_FAR = 1e9


@dataclass(frozen=True, slots=True)
class History:
    """What is on record of one schedule.

    `changes` by version, the oldest first. `rows`: a stream, in the order of occurrences and fences, of the last entry
    before the question's span by each of `versions_at`, which may cover its beginning, and of the entries in the span.
    `oldest`: the first entry that is kept at all. `present`: the schedule as it was before `rows` is read, None when it
    is gone. `now`: the database's clock before that; what was settled before `kept_since` may have been deleted.
    `reckoning`: what times are computed with now, and by definitions whose own is not known.
    """

    key: str
    changes: Sequence[Change]
    rows: Iterable[LedgerRow]
    oldest: LedgerRow | None
    present: ScheduleRow | None
    now: float
    kept_since: float = -math.inf
    reckoning: str = "vixie"


@dataclass(frozen=True, slots=True)
class Question:
    """Which occurrences to judge, both ends included.

    `late`: how many seconds late a run may begin, None for any. `grace`: for how many seconds an occurrence that has
    come may be without a worker.
    """

    since: int
    until: int
    late: float | None = None
    grace: float = GRACE


@dataclass(frozen=True, slots=True)
class Why:
    """What is known of a violation, in words without times; `behind` which run, and when that is tried again.

    `behind`: the occurrence for which the occurrences in question wait, or the time of an extra run. `next_attempt`:
    when that one (None: the occurrence in question itself) is tried again after it has failed.
    """

    what: str
    behind: int | None = None
    next_attempt: float | None = None


_NOTHING_KNOWN = Why("nothing is on record of it")


@dataclass(frozen=True, slots=True)
class Violation:
    """One thing that is not as it should be: of `count` occurrences from `time` up to `last` (None: of that one)."""

    kind: str
    time: int
    why: Why
    last: int | None = None
    count: int = 1

    @property
    def what(self) -> str:
        """What is known of it, in words."""
        return self.why.what


@dataclass(slots=True)
class Verdict:
    """What was found of one schedule. It is proved when there are no violations.

    `ran`: occurrences that were finished or enqueued, `extra_runs` of these by run-now besides the regular ones.
    `skipped`: those skipped for a permitted reason. `running`: those that a worker holds now. `pending`: those that no
    worker could have begun yet. `counts`: occurrences by the kind of their violation; `unlisted`: how many violations
    `violations` leaves out.
    """

    key: str
    known: bool = True
    ran: int = 0
    extra_runs: int = 0
    skipped: int = 0
    running: int = 0
    pending: int = 0
    reasons: set[str] = field(default_factory=set)
    first: int | None = None
    last: int | None = None
    violations: list[Violation] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)
    unlisted: int = 0
    notes: list[tuple[str, float]] = field(default_factory=list)
    """What there is to know besides, each with the time it is about."""
    _goes_on: bool = False
    """Whether the last violation may go on: nothing has run since."""

    @property
    def missing(self) -> int:
        """How many occurrences are missing."""
        return self.counts.get(MISSING, 0)

    @property
    def failed(self) -> int:
        """How many occurrences were given up."""
        return self.counts.get(FAILED_FOR_GOOD, 0)

    @property
    def expected(self) -> int:
        """How many occurrences are accounted for or missing, extra runs included."""
        kinds = (MISSING, FAILED_FOR_GOOD, UNPERMITTED, UNKNOWN)
        named = sum(self.counts.get(kind, 0) for kind in kinds)
        return self.ran + self.skipped + self.running + self.pending + named

    def accuse(self, kind: str, time: int, why: Why | str, last: int | None = None, count: int = 1) -> None:
        """Enter a violation; it is added to the one before when that says the same of the occurrences before it."""
        why = Why(why) if isinstance(why, str) else why
        self.counts[kind] = self.counts.get(kind, 0) + count
        before = self.violations[-1] if self.violations and self._goes_on else None
        end = time if last is None else last
        self._goes_on = kind in (UNPERMITTED, MISSING)
        if before is not None and (before.kind, before.why) == (kind, why):
            self.violations[-1] = replace(before, last=end, count=before.count + count)
        elif len(self.violations) < _LISTED:
            self.violations.append(Violation(kind, time, why, end if end > time else None, count))
        else:
            self.unlisted += 1

    def settled(self, first: int, last: int) -> None:
        """Enter that occurrences were settled as they should be."""
        self.first = first if self.first is None else min(self.first, first)
        self.last = last if self.last is None else max(self.last, last)
        self._goes_on = False

    def skip(self, reason: str, count: int) -> None:
        """Count occurrences that were skipped for a permitted reason."""
        if count:
            self.skipped += count
            self.reasons.add(reason)


def audit(history: History, question: Question) -> Verdict:
    """Compare what should have run within the question's span with what did; reads `history.rows` once."""
    verdict = Verdict(history.key, known=bool(history.changes) or history.present is not None)
    definitions = _definitions(history, question, verdict)
    if definitions:
        _beginning(definitions[0].change, question, verdict)
    by_version = {definition.change.version: definition for definition in definitions}
    repeats, overlaps = _Repeats(history.changes, question, verdict), _Overlaps(question, verdict)
    reckonings = _Reckonings(verdict)
    for row in history.rows:
        reckonings.see(row.reckoning, row.scheduled_time)
        overlaps.see(row)
        repeated = repeats.see(row)
        definition = by_version.get(row.version)
        if definition is not None:
            definition.take(row, repeated)
        elif question.since <= row.scheduled_time <= question.until and not repeated:
            verdict.accuse(EXTRA, row.scheduled_time, "no definition on record asks for it")
    for definition in definitions:
        definition.end()
    if reckonings.last is not None:
        reckonings.see(history.reckoning, history.now)
    verdict.violations.sort(key=lambda found: found.time)
    return verdict


def versions_at(changes: Sequence[Change], time: int) -> Iterator[int]:
    """Yield the versions of the definitions that held at `time`: a schedule may have been moved back across it."""
    for change, following in pairwise([*changes, None]):
        if change is not None and change.action != DELETE:
            pending = None if following is None else following.pending
            if change.first < time and (pending is None or time < pending):
                yield change.version


def _definitions(history: History, question: Question, verdict: Verdict) -> list[_Definition]:
    """Return the definitions on record, each with the occurrence that it begins with and what followed it."""
    changes = list(history.changes)
    present = history.present
    if present is not None and (not changes or changes[-1].action == DELETE):
        changes.append(_unrecorded(regular_of(present), history.now, changes))
    judge = _Judge(history, question, verdict, _pauses(changes), [c for c in changes if c.action == RUN_NOW])
    found: list[_Definition] = []
    earliest = _Earliest()
    for change, following in pairwise([*changes, None]):
        if change is None or change.action == DELETE:
            continue
        earliest = earliest.then(change)
        found.append(_Definition(judge, change, following, earliest))
    return found


def _unrecorded(present: ScheduleRow, now: float, changes: Sequence[Change]) -> Change:
    """Return the definition of a schedule that was added past psched."""
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


def _beginning(change: Change, question: Question, verdict: Verdict) -> None:
    """Accuse what lies before the first definition that is on record, unless that added the schedule."""
    begin = change.first if change.pending is None else min(change.first, change.pending)
    if change.action != ADD and question.since < begin:
        older = "the schedule is older than its ledger" if change.action == UPGRADE else "it was deleted since"
        end = min(begin - 1, question.until)
        verdict.accuse(UNKNOWN, question.since, f"nothing is on record before: {older}", end, 0)


@dataclass(frozen=True, slots=True)
class _Earliest:
    """When the first occurrence of a definition may begin: it may have been acquired by the definition before."""

    first: int | None = None
    begin: float = math.inf
    delay: float = math.inf

    def then(self, change: Change) -> _Earliest:
        """Return the same of the following definition."""
        before = self.begin if change.first == self.first else change.first + self.delay
        kept = before if change.pending == change.first else math.inf
        delay = change.rule.delay
        return _Earliest(change.first, min(change.first + delay, change.due, kept), delay)


@dataclass(frozen=True, slots=True)
class _Judge:
    """What all definitions of a schedule are judged by."""

    history: History
    question: Question
    verdict: Verdict
    pauses: Sequence[tuple[float, float]]
    run_nows: Sequence[Change]

    def dialect(self, reckoning: str | None) -> str:
        """Return the cron dialect by which times were computed; today's where that is not known."""
        known = [(found or "").partition(" ")[0] for found in (reckoning, self.history.reckoning)]
        return next((name for name in known if name in cron.DIALECTS), cron.DIALECTS[0])

    def absent(self, rule: Rule, dialect: str, begin: float, end: float, why: Why) -> None:
        """Accuse what `rule` has from `begin`, which is an occurrence, on and before `end`; at first the unknown."""
        known = self._known_from()
        if begin < known:
            no_entry = self.history.oldest is None
            gone = "the ledger is not kept for so long" if no_entry else "what the ledger had of it was deleted since"
            self._accuse(UNKNOWN, rule, dialect, begin, min(end, known), Why(gone))
            begin = _next(rule, known - 1, dialect)
        if begin < end:
            self._accuse(MISSING, rule, dialect, begin, end, why)

    def _known_from(self) -> float:
        oldest, changes = self.history.oldest, self.history.changes
        if oldest is not None:
            return -math.inf if oldest.previous is None else oldest.scheduled_time
        is_young = bool(changes) and changes[0].action == ADD and changes[0].at >= self.history.kept_since
        return -math.inf if is_young else self.history.kept_since

    def _accuse(self, kind: str, rule: Rule, dialect: str, begin: float, end: float, why: Why) -> None:
        first = int(begin)
        count, last = _count(rule, dialect, first, end)
        self.verdict.accuse(kind, first, why, last, count)

    def unpermitted(self, row: LedgerRow, change: Change) -> str | None:
        """Say why an entry may not be skipped for its reason, None when it may: by the definition of its version."""
        policy, delay, reason = change.policy, change.rule.delay, row.detail
        bound = policy.max_lateness
        if bound is None and policy.catch_up == "none":
            bound = SOON_ENOUGH
        forbids = (reason == SUPERSEDED and policy.catch_up == "all") or (reason == TOO_LATE and bound is None)
        if forbids:
            return f"skipped as {reason}, which the policy then in force does not permit: {_terms(policy)}"
        if reason == SUPERSEDED:
            later = _next(change.rule, row.end, self.dialect(row.reckoning)) + delay
            return None if later <= row.ended else f"skipped as {reason}, but no later occurrence was due"
        if reason == TOO_LATE and bound is not None:
            is_late = row.end + delay < row.ended - bound
            return None if is_late else f"skipped as {reason}, but it was in time: {_terms(policy)}"
        if reason == PAUSED:
            begin, end = row.scheduled_time + delay, row.end + delay
            in_pause = any(since <= begin and end < until for since, until in self.pauses)
            return None if in_pause else f"skipped as {reason}, but the schedule was not paused then"
        return f"skipped for no reason that a policy or a pause gives: {reason}"

    def asked_for(self, row: LedgerRow) -> bool:
        """Tell whether run-now is on record for an extra run."""
        time = row.scheduled_time
        return any(change.version <= row.version and abs(change.at - time) <= _ASKED for change in self.run_nows)


class _Definition:
    """One definition: the occurrences it asks for, compared with its entries."""

    def __init__(self, judge: _Judge, change: Change, following: Change | None, earliest: _Earliest) -> None:
        """`following`: the next change, if any."""
        self.change = change
        self._judge = judge
        self._question = judge.question
        self._verdict = judge.verdict
        self._following = following
        self._first = start = change.first
        self._earliest = earliest
        self._dialect = judge.dialect(change.reckoning)
        self._due = float(start) if start >= self._question.since else self._next(self._question.since - 1)
        self._check_rule()

    def _check_rule(self) -> None:
        """Accuse a rule that cannot be used (any more): what it asks for cannot be computed."""
        since, until = max(self._first, self._question.since), self._question.until
        try:
            cron.validate(self.change.rule.cron, self.change.rule.timezone, self._dialect)
        except ConfigError as error:
            if since <= until:
                self._verdict.accuse(UNKNOWN, since, f"its rule cannot be used: {error}", until, 0)

    def take(self, row: LedgerRow, repeated: bool) -> None:
        """Compare the next entry by this definition; `repeated`: it is known to be one too many."""
        since = self._question.since
        if row.end < since or row.scheduled_time > self._question.until:
            return
        if row.extra:
            if not repeated:
                self._count_extra(row)
            return
        if self._due < row.scheduled_time and row.scheduled_time >= since:
            self._absent_until(row.scheduled_time)
        if row.scheduled_time == self._due or row.scheduled_time < since <= row.end:
            self._count(row)
        elif not repeated:
            self._verdict.accuse(EXTRA, row.scheduled_time, self._why_extra(row))
        self._dialect = self._judge.dialect(row.reckoning)
        self._due = max(self._due, self._next(row.end))

    def end(self) -> None:
        """Judge what comes after the last entry: up to the next change, or up to now."""
        following = self._following
        if following is None:
            self._end_now()
        elif following.action == DELETE or following.pending is None:
            self._end_deleted(following)
        else:
            self._absent_until(min(following.pending, self._question.until + 1))
            # Occurrences that were due and that the change has moved past are skipped by it.
            moved = min(following.first, self._end_of_due(following.at))
            self._verdict.skip(MOVED, self._pass(moved))

    def _end_deleted(self, deleted: Change) -> None:
        """Judge what was due when the schedule was deleted."""
        if deleted.pending is not None:
            self._absent_until(min(deleted.pending, self._question.until + 1))
        end = self._end_of_due(deleted.at - self._question.grace)
        self._absent_until(end, Why("it was due, and not finished, when the schedule was deleted"))

    def _end_now(self) -> None:
        """Judge what is due by the present row, or without a row."""
        stored, now, grace = self._judge.history.present, self._judge.history.now, self._question.grace
        if stored is None:
            gone = Why("nothing is on record of it, and the schedule is gone")
            self._absent_until(self._end_of_due(now - grace), gone)
            return
        present = regular_of(stored)
        self._absent_until(min(present.next_time, self._question.until + 1))
        end, fresh = self._end_of_due(now), self._end_of_due(now - grace)
        for begin, until in self._pauses_of(present):
            self._waiting(present, min(begin, end), fresh)
            self._verdict.skip(PAUSED, self._pass(min(until, end)))
        self._waiting(present, end, fresh)
        if present.paused and self._question.since <= present.next_time <= self._question.until:
            self._verdict.notes.append(("it is paused, and nothing of it runs from", present.next_time))

    def _waiting(self, present: ScheduleRow, end: float, fresh: float) -> None:
        """Judge what is due, has no entry, and comes before `end`; from `fresh` on no worker need have begun it.

        `present`: the schedule's row, with its next regular occurrence: what is judged here is that or comes after it.
        """
        if self._due >= end:
            return
        if self._is_put_off(present):
            self._verdict.pending += self._pass(end)
            return
        if present.next_time == self._due:
            self._head(present, fresh)
        if present.status == "running" and present.policy.catch_up != "all" and self._due > present.next_time:
            self._verdict.pending += self._pass(end)  # its policy passes over what waits for the run in progress
        self._absent_until(min(fresh, end), self._why_waiting())
        self._verdict.pending += self._pass(end)

    def _head(self, head: ScheduleRow, fresh: float) -> None:
        """Judge the occurrence that is next, when something is known of it."""
        time, now = head.next_time, self._judge.history.now
        is_leased = head.next_run_time > now
        next_attempt = None
        if head.status == "running" and is_leased:
            self._verdict.running += self._pass(time + 1)
            return
        if time >= fresh:
            return
        if head.status == "leased" and is_leased:
            self._pass(time + 1)
            self._verdict.accuse(UNKNOWN, time, "it is running, or waits for a retry: the table does not tell which")
            return
        if head.problem is not None:
            what = f"it cannot be run: {head.problem}"
        elif head.status == "running":
            what = f"the lease of its run has ended, at attempt {head.attempts}"
        elif head.attempts:
            said = "" if head.last_error is None else f": {error_summary(head.last_error)}"
            what, next_attempt = f"attempt {head.attempts} failed{said}", _next_attempt(head)
        else:
            return
        self._absent_until(time + 1, Why(what, next_attempt=next_attempt))

    def _why_waiting(self) -> Why:
        """Say why the occurrence that is due has no entry: the run that the row is about comes before it."""
        row, now = self._judge.history.present, self._judge.history.now
        if row is None or (row.next_time == self._due and not row.is_extra):
            return _NOTHING_KNOWN
        next_attempt = None
        if row.problem is not None:
            what = f"that cannot be run: {row.problem}"
        elif row.status == "running" and row.next_run_time > now:
            failed = failed_attempts(row)
            what = f"that is running{f', after it failed {_times(failed)}' if failed else ''}"
        elif row.status == "running":
            what = f"whose lease has ended, at attempt {row.attempts}"
        elif row.status == "leased" and row.next_run_time > now:
            what = "that is running, or waits for a retry"
        elif row.attempts:
            what, next_attempt = f"that failed {_times(row.attempts)}", _next_attempt(row)
        else:
            return _NOTHING_KNOWN
        run = "an extra run" if row.is_extra else "an occurrence"
        error = "" if row.last_error is None else f", the last error: {error_summary(row.last_error)}"
        return Why(f"it waits behind {run} {what}{error}", row.next_time, next_attempt)

    def _is_put_off(self, row: ScheduleRow) -> bool:
        """Tell whether the definition itself has its first run later (`--at`)."""
        change = self.change
        at = change.first == row.next_time and change.due == row.next_run_time > self._judge.history.now
        return at and row.status != "running" and not row.attempts and not row.paused

    def _pauses_of(self, row: ScheduleRow) -> Iterator[tuple[float, float]]:
        """Yield the occurrences that begin and end each of the row's pauses, the end not included."""
        delay = self.change.rule.delay
        for begin, until in row.ended_pauses:
            yield math.ceil(begin - delay), math.ceil(until - delay)
        if row.paused_from is not None and row.paused:
            yield math.ceil(row.paused_from - delay), math.inf

    def _end_of_due(self, time: float) -> float:
        """Return the end, not included, of the occurrences in question that were due at `time`."""
        return min(self._question.until, math.floor(time - self.change.rule.delay)) + 1

    def _absent_until(self, end: float, why: Why | None = None) -> None:
        """Accuse what is expected and comes before `end`."""
        if self._due < end:
            why = _NOTHING_KNOWN if why is None else why
            self._judge.absent(self.change.rule, self._dialect, self._due, end, why)
            self._due = self._next(end - 1)

    def _pass(self, end: float) -> int:
        """Go on to `end`; return how many occurrences are expected before it."""
        if self._due >= end:
            return 0
        count, _ = _count(self.change.rule, self._dialect, int(self._due), end)
        self._due = self._next(end - 1)
        return count

    def _why_extra(self, row: LedgerRow) -> str:
        if row.scheduled_time < self._due:
            return "it was settled before, or comes before this definition"
        return "the definition has no such occurrence"

    def _count_extra(self, row: LedgerRow) -> None:
        """Count a run that run-now has added, if a change on record has."""
        if not self._judge.asked_for(row):
            self._verdict.accuse(EXTRA, row.scheduled_time, "it ran by run-now, which is not on record")
        elif row.outcome == FAILED:
            self._count(row)
        else:
            self._verdict.extra_runs += 1
            self._ran(row)

    def _count(self, row: LedgerRow) -> None:
        if row.outcome == SKIPPED:
            self._count_skipped(row)
        elif row.outcome == FAILED:
            error = "" if row.error is None else f": {error_summary(row.error)}"
            self._verdict.accuse(FAILED_FOR_GOOD, row.scheduled_time, f"given up after {row.attempts} attempts{error}")
        else:
            self._ran(row)
            self._check_begin(row)

    def _count_skipped(self, row: LedgerRow) -> None:
        begin, end = max(row.scheduled_time, self._question.since), min(row.end, self._question.until)
        rule = self.change.rule
        try:
            count = cron.count(rule.cron, begin - 1, end, rule.timezone, self._dialect)
        except ConfigError:  # it cannot be used any more
            count = row.count or 1
        if row.scheduled_time == begin == self._first and self._next(begin - 1) != begin:
            count += 1  # a kept occurrence of the rule before, which this rule has not
        why = self._judge.unpermitted(row, self.change)
        if why is None:
            self._verdict.skip(row.detail or "", max(count, 1))
            self._verdict.settled(begin, end)
        else:
            self._verdict.accuse(UNPERMITTED, begin, why, end, max(count, 1))

    def _ran(self, row: LedgerRow) -> None:
        self._verdict.ran += 1
        self._verdict.settled(row.scheduled_time, row.end)

    def _check_begin(self, row: LedgerRow) -> None:
        """Accuse a run that began before its time, or later than the question has it."""
        if row.started is None:
            return
        time, change = row.scheduled_time, self.change
        regular = time + change.rule.delay
        earliest = self._earliest.begin if time == self._earliest.first else regular
        if row.started < earliest - _EARLY and row.detail != RUN_NOW:
            self._verdict.accuse(EARLY, time, f"it began {earliest - row.started:.3f} s before its time")
        latest = max(regular, change.due) if time == change.first and change.due < change.at + _FAR else regular
        late = row.started - latest
        if self._question.late is not None and late > self._question.late:
            self._verdict.accuse(LATE, time, f"it began {late:.3f} s after its time, at attempt {row.attempts}")

    def _next(self, after: float) -> float:
        return _next(self.change.rule, after, self._dialect)


class _Repeats:
    """Finds occurrences that were settled twice, though no change has asked for them again."""

    def __init__(self, changes: Sequence[Change], question: Question, verdict: Verdict) -> None:
        self._changes = changes
        self._question = question
        self._verdict = verdict
        self._same: deque[LedgerRow] = deque(maxlen=_NEIGHBOURS)

    def see(self, row: LedgerRow) -> bool:
        """Look at the next entry; True when its occurrence was settled before, which is entered then."""
        if self._same and self._same[-1].scheduled_time != row.scheduled_time:
            self._same.clear()
        before = next((other for other in self._same if self._repeats(other, row)), None)
        self._same.append(row)
        if before is None:
            return False
        if self._question.since <= row.scheduled_time <= self._question.until:
            ends = f"{_settled(before)}, and {_settled(row)}"
            self._verdict.accuse(DOUBLED, row.scheduled_time, f"it is on record twice: {ends}")
        return True

    def _repeats(self, before: LedgerRow, row: LedgerRow) -> bool:
        """Tell whether no change between the two has the occurrence run again. An extra run is another one."""
        if before.extra != row.extra:
            return False
        time = row.scheduled_time
        between = [change for change in self._changes if before.version < change.version <= row.version]
        if row.extra:
            return not any(change.action == RUN_NOW for change in between)
        return not any(
            change.action != DELETE and change.first <= time and (change.pending is None or time < change.pending)
            for change in between
        )


class _Overlaps:
    """Finds runs that began before another one had ended, among runs that are near each other."""

    def __init__(self, question: Question, verdict: Verdict) -> None:
        self._question = question
        self._verdict = verdict
        self._near: deque[LedgerRow] = deque(maxlen=_NEIGHBOURS)
        self._latest: LedgerRow | None = None

    def see(self, row: LedgerRow) -> None:
        """Compare the next entry with those before it."""
        if row.started is None:
            return
        others = [*self._near, *([] if self._latest is None else [self._latest])]
        shared = max((_shared(row, other) for other in others), default=0.0)
        if shared > 0 and self._question.since <= row.scheduled_time <= self._question.until:
            what = f"it ran for {shared:.3f} s beside the run of another occurrence"
            self._verdict.accuse(OVERLAPPING, row.scheduled_time, what)
        self._near.append(row)
        if self._latest is None or row.ended > self._latest.ended:
            self._latest = row


class _Reckonings:
    """Notes how times were computed otherwise than now: that may explain what seems missing or extra."""

    def __init__(self, verdict: Verdict) -> None:
        self._verdict = verdict
        self._noted = 0
        self.last: str | None = None

    def see(self, reckoning: str, time: float) -> None:
        """Look at the next entry's."""
        if self.last not in (None, reckoning) and self._noted < _RECKONINGS:
            what = f"times were computed by {self.last} before, by {reckoning} from"
            self._verdict.notes.append((what, time))
            self._noted += 1
        self.last = reckoning


def _shared(one: LedgerRow, other: LedgerRow) -> float:
    """Return for how many seconds two runs were in progress together; 0 or less for none."""
    begins = max(one.started or 0.0, other.started or 0.0)
    return min(one.ended, other.ended) - begins


def _settled(row: LedgerRow) -> str:
    return f"{row.outcome} by {row.node} under fence {row.fence}"


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


def _next_attempt(row: ScheduleRow) -> float | None:
    """Return when a run that has failed is tried again; None while its schedule is paused."""
    return None if row.paused else row.next_run_time


def _pauses(changes: Sequence[Change]) -> list[tuple[float, float]]:
    """Return the pauses on record, from when to when, the end not included.

    Each is of one `pause` and the `resume` after it. The moment a change tells is believed unless another change was
    written since: no pause begins or ends before what went before it.
    """
    found: list[tuple[float, float]] = []
    begin: float | None = None
    for before, change in pairwise([None, *changes]):
        if change is None:
            continue
        if change.action == PAUSE and begin is None:
            begin = _moment(change.paused_from, before, change)
        elif change.action in (RESUME, DELETE, ADD) and begin is not None:
            found.append((begin, _moment(change.paused_until, before, change)))
            begin = None
    return found if begin is None else [*found, (begin, math.inf)]


def _moment(told: float | None, before: Change | None, change: Change) -> float:
    """Return when a change took effect: as told, when that is between the change `before` it and its own writing."""
    if told is None or told > change.at or (before is not None and told < before.at):
        return change.at
    return told


def _terms(policy: Policy) -> str:
    bound = "no max_lateness" if policy.max_lateness is None else f"max_lateness={policy.max_lateness:g}"
    return f"catch_up={policy.catch_up}, {bound}"


def _count(rule: Rule, dialect: str, first: int, end: float) -> tuple[int, int]:
    """Return how many occurrences there are from `first`, which is one, on and before `end`, and the last of them."""
    if _next(rule, first, dialect) >= end:
        return 1, first
    before = int(end) - 1
    last = cron.last_time(rule.cron, first, before, rule.timezone, dialect)
    return 1 + cron.count(rule.cron, first, before, rule.timezone, dialect), first if last is None else last


def _next(rule: Rule, after: float, dialect: str) -> float:
    try:
        return cron.next_time(rule.cron, int(after), rule.timezone, dialect)
    except ConfigError:
        return math.inf  # it cannot be used any more, or ends with the calendar
