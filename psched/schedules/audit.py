"""The audit: compares the occurrences that a schedule should have run with the ledger of those that it ran. Pure.

`audit(history, question)` is the entry point; its result is a `Verdict` with a list of `Violation`.

A schedule has one definition (rule and policy) after another. Each definition holds from one occurrence up to the
occurrence that was next when it was changed. Within that span it asks for its first occurrence and every later match of
its rule. The ledger has one entry for each of them, or one entry for several that were skipped together. An occurrence
without an entry is running, pending or missing. Entries are read as a stream in the order of occurrences, and
occurrences without an entry are counted, not listed: memory is bounded, and a schedule of every second for a year takes
no longer than its entries do. Occurrences are unix seconds.
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
from psched.schedules.rules import MOST_SECONDS_AHEAD, SOON_ENOUGH, SUPERSEDED, TOO_LATE, regular_of
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
"""The reason of occurrences that were due when `modify --start` moved the schedule past them."""

GRACE = 10.0
"""Seconds for which a due occurrence may wait for a worker: it is pending and not yet missing."""
_RUN_NOW_TOLERANCE = 60.0
"""Seconds by which the time of an extra run may come before run-now is on record."""
_BEGIN_TOLERANCE = 1.0
"""Seconds by which the recorded begin of a run may differ from the database's clock."""
_MAX_LISTED = 1000
"""Violations of one schedule that are listed; the others are counted."""
_MAX_RECKONINGS = 20
"""Changes of the cron dialect or the tz database that are noted."""
_MAX_NEIGHBOURS = 16
"""Runs with which each run is compared to find those that overlap, besides the one that ended last."""
_FAR_FUTURE = 1e9


@dataclass(frozen=True, slots=True)
class History:
    """The records of one schedule: its definitions, its ledger entries and its present row.

    `changes` by version, the oldest first. `rows`: a stream, in the order of occurrences and fences, of the last entry
    before the question's span by each of `versions_at`, which may cover its beginning, and of the entries in the span.
    `oldest`: the first entry that is still kept. `present`: the schedule's row as read before `rows`, None when it was
    deleted. `now`: the database's clock before that. Entries settled before `kept_since` may have been deleted.
    `reckoning`: cron dialect and tz database of this process; also used for definitions that recorded none.
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
    """Which occurrences to audit, both ends included.

    `late`: how many seconds late a run may begin, None for any. `grace`: for how many seconds a due occurrence may wait
    for a worker.
    """

    since: int
    until: int
    late: float | None = None
    grace: float = GRACE


@dataclass(frozen=True, slots=True)
class Why:
    """The explanation of a violation, in words without times.

    `behind`: the occurrence, or the time of the extra run, that the violating occurrences wait for; None when they wait
    for no other run. `next_attempt`: when the run they wait for, or else the occurrence itself, is retried.
    """

    what: str
    behind: int | None = None
    next_attempt: float | None = None


_NOTHING_KNOWN = Why("nothing is on record of it")


@dataclass(frozen=True, slots=True)
class Violation:
    """A violation of one kind by `count` occurrences from `time` up to `last` (None: only the one at `time`)."""

    kind: str
    time: int
    why: Why
    last: int | None = None
    count: int = 1

    @property
    def what(self) -> str:
        """The explanation in words."""
        return self.why.what


@dataclass(slots=True)
class Verdict:
    """The result of an audit of one schedule. Without violations the ledger proves that all ran as it should.

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
    """Remarks that are no violations, each with the time it is about."""
    _continues: bool = False
    """Whether the next violation may extend the last one: no occurrence was settled since."""

    @property
    def missing(self) -> int:
        """How many occurrences are missing."""
        return self.counts.get(MISSING, 0)

    @property
    def failed(self) -> int:
        """How many occurrences failed for good."""
        return self.counts.get(FAILED_FOR_GOOD, 0)

    @property
    def expected(self) -> int:
        """How many occurrences are accounted for or missing, extra runs included."""
        kinds = (MISSING, FAILED_FOR_GOOD, UNPERMITTED, UNKNOWN)
        named = sum(self.counts.get(kind, 0) for kind in kinds)
        return self.ran + self.skipped + self.running + self.pending + named

    def add_violation(self, kind: str, time: int, why: Why | str, last: int | None = None, count: int = 1) -> None:
        """Add a violation; it extends the last one when both have the same kind and explanation."""
        why = Why(why) if isinstance(why, str) else why
        self.counts[kind] = self.counts.get(kind, 0) + count
        before = self.violations[-1] if self.violations and self._continues else None
        end = time if last is None else last
        self._continues = kind in (UNPERMITTED, MISSING)
        if before is not None and (before.kind, before.why) == (kind, why):
            self.violations[-1] = replace(before, last=end, count=before.count + count)
        elif len(self.violations) < _MAX_LISTED:
            self.violations.append(Violation(kind, time, why, end if end > time else None, count))
        else:
            self.unlisted += 1

    def settled(self, first: int, last: int) -> None:
        """Note that the occurrences from `first` to `last` were settled as they should be."""
        self.first = first if self.first is None else min(self.first, first)
        self.last = last if self.last is None else max(self.last, last)
        self._continues = False

    def skip(self, reason: str, count: int) -> None:
        """Count occurrences that were skipped for a permitted reason."""
        if count:
            self.skipped += count
            self.reasons.add(reason)


def audit(history: History, question: Question) -> Verdict:
    """Compare the occurrences that should have run in the span of `question` with the ledger.

    Reads `history.rows` once.
    """
    verdict = Verdict(history.key, known=bool(history.changes) or history.present is not None)
    definitions = _definitions(history, question, verdict)
    if definitions:
        _report_unknown_beginning(definitions[0].change, question, verdict)
    by_version = {definition.change.version: definition for definition in definitions}
    repeats, overlaps = _Repeats(history.changes, question, verdict), _Overlaps(question, verdict)
    reckonings = _ReckoningChanges(verdict)
    for row in history.rows:
        reckonings.see(row.reckoning, row.scheduled_time)
        overlaps.see(row)
        repeated = repeats.see(row)
        definition = by_version.get(row.version)
        if definition is not None:
            definition.compare(row, repeated)
        elif question.since <= row.scheduled_time <= question.until and not repeated:
            verdict.add_violation(EXTRA, row.scheduled_time, "no definition on record asks for it")
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
    """Return the recorded definitions, each with the change after it and the earliest begin of its first run."""
    changes = list(history.changes)
    present = history.present
    if present is not None and (not changes or changes[-1].action == DELETE):
        changes.append(_unrecorded_definition(regular_of(present), history.now, changes))
    context = _Context(history, question, verdict, _pauses(changes), [c for c in changes if c.action == RUN_NOW])
    found: list[_Definition] = []
    earliest = _EarliestBegin()
    for change, following in pairwise([*changes, None]):
        if change is None or change.action == DELETE:
            continue
        earliest = earliest.then(change)
        found.append(_Definition(context, change, following, earliest))
    return found


def _unrecorded_definition(present: ScheduleRow, now: float, changes: Sequence[Change]) -> Change:
    """Return a definition made from the present row, for a schedule whose addition was not recorded."""
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


def _report_unknown_beginning(change: Change, question: Question, verdict: Verdict) -> None:
    """Report the time before the first recorded definition as unknown, unless that definition added the schedule."""
    begin = change.first if change.pending is None else min(change.first, change.pending)
    if change.action != ADD and question.since < begin:
        older = "the schedule is older than its ledger" if change.action == UPGRADE else "it was deleted since"
        end = min(begin - 1, question.until)
        verdict.add_violation(UNKNOWN, question.since, f"nothing is on record before: {older}", end, 0)


@dataclass(frozen=True, slots=True)
class _EarliestBegin:
    """The earliest begin of a definition's first run, which may have been acquired under the definition before it."""

    first: int | None = None
    begin: float = math.inf
    delay: float = math.inf

    def then(self, change: Change) -> _EarliestBegin:
        """Return the earliest begin for the definition after this one."""
        before = self.begin if change.first == self.first else change.first + self.delay
        kept = before if change.pending == change.first else math.inf
        delay = change.rule.delay
        return _EarliestBegin(change.first, min(change.first + delay, change.due, kept), delay)


@dataclass(frozen=True, slots=True)
class _Context:
    """The inputs and the verdict that all definitions of one audit share."""

    history: History
    question: Question
    verdict: Verdict
    pauses: Sequence[tuple[float, float]]
    run_nows: Sequence[Change]

    def dialect(self, reckoning: str | None) -> str:
        """Return the cron dialect that computed the recorded times; the present one where none was recorded."""
        known = [(found or "").partition(" ")[0] for found in (reckoning, self.history.reckoning)]
        return next((name for name in known if name in cron.DIALECTS), cron.DIALECTS[0])

    def report_missing(self, rule: Rule, dialect: str, begin: float, end: float, why: Why) -> None:
        """Report the occurrences of `rule` from `begin`, itself one, to before `end` as missing.

        Those before the oldest kept entry are reported as unknown.
        """
        known = self._known_from()
        if begin < known:
            no_entry = self.history.oldest is None
            gone = "the ledger is not kept for so long" if no_entry else "what the ledger had of it was deleted since"
            self._add_violation(UNKNOWN, rule, dialect, begin, min(end, known), Why(gone))
            begin = _next(rule, known - 1, dialect)
        if begin < end:
            self._add_violation(MISSING, rule, dialect, begin, end, why)

    def _known_from(self) -> float:
        oldest, changes = self.history.oldest, self.history.changes
        if oldest is not None:
            return -math.inf if oldest.previous is None else oldest.scheduled_time
        is_young = bool(changes) and changes[0].action == ADD and changes[0].at >= self.history.kept_since
        return -math.inf if is_young else self.history.kept_since

    def _add_violation(self, kind: str, rule: Rule, dialect: str, begin: float, end: float, why: Why) -> None:
        first = int(begin)
        count, last = _count(rule, dialect, first, end)
        self.verdict.add_violation(kind, first, why, last, count)

    def unpermitted(self, row: LedgerRow, change: Change) -> str | None:
        """Return why the definition did not permit to skip this entry for its reason; None when it did."""
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
        """Return whether the ledger has a run-now for this extra run."""
        time = row.scheduled_time
        return any(
            change.version <= row.version and change.at - _RUN_NOW_TOLERANCE <= time <= change.at + MOST_SECONDS_AHEAD
            for change in self.run_nows
        )


class _Definition:
    """One definition of a schedule: walks through its occurrences beside its ledger entries.

    `compare` is called with each entry, then `end`. `_due` is the next occurrence without an entry yet.
    """

    def __init__(self, context: _Context, change: Change, following: Change | None, earliest: _EarliestBegin) -> None:
        """`following`: the next change, if any."""
        self.change = change
        self._context = context
        self._question = context.question
        self._verdict = context.verdict
        self._following = following
        self._first = start = change.first
        self._earliest = earliest
        self._dialect = context.dialect(change.reckoning)
        self._due = float(start) if start >= self._question.since else self._next(self._question.since - 1)
        self._check_rule()

    def _check_rule(self) -> None:
        """Report a rule that is invalid now as unknown: its occurrences cannot be computed."""
        since, until = max(self._first, self._question.since), self._question.until
        try:
            cron.validate(self.change.rule.cron, self.change.rule.timezone, self._dialect)
        except ConfigError as error:
            if since <= until:
                self._verdict.add_violation(UNKNOWN, since, f"its rule cannot be used: {error}", until, 0)

    def compare(self, row: LedgerRow, repeated: bool) -> None:
        """Compare the next entry of this definition; `repeated`: its occurrence was settled before."""
        since = self._question.since
        if row.end < since or row.scheduled_time > self._question.until:
            return
        if row.extra:
            if not repeated:
                self._count_extra(row)
            return
        if self._due < row.scheduled_time and row.scheduled_time >= since:
            self._report_missing_until(row.scheduled_time)
        if row.scheduled_time == self._due or row.scheduled_time < since <= row.end:
            self._count(row)
        elif not repeated:
            self._verdict.add_violation(EXTRA, row.scheduled_time, self._why_extra(row))
        self._dialect = self._context.dialect(row.reckoning)
        self._due = max(self._due, self._next(row.end))

    def end(self) -> None:
        """Judge the occurrences after the last entry: up to the next change, or up to now."""
        following = self._following
        if following is None:
            self._end_at_present()
        elif following.action == DELETE or following.pending is None:
            self._end_deleted(following)
        else:
            self._report_missing_until(min(following.pending, self._question.until + 1))
            # Occurrences that were due and that the change has moved past are skipped by it.
            moved = min(following.first, self._end_of_due(following.at))
            self._verdict.skip(MOVED, self._count_until(moved))

    def _end_deleted(self, deleted: Change) -> None:
        """Judge the occurrences that were due when the schedule was deleted."""
        if deleted.pending is not None:
            self._report_missing_until(min(deleted.pending, self._question.until + 1))
        end = self._end_of_due(deleted.at - self._question.grace)
        self._report_missing_until(end, Why("it was due, and not finished, when the schedule was deleted"))

    def _end_at_present(self) -> None:
        """Judge the occurrences that are due now, by the present row if there is one."""
        stored, now, grace = self._context.history.present, self._context.history.now, self._question.grace
        if stored is None:
            gone = Why("nothing is on record of it, and the schedule is gone")
            self._report_missing_until(self._end_of_due(now - grace), gone)
            return
        present = regular_of(stored)
        self._report_missing_until(min(present.next_time, self._question.until + 1))
        end, fresh = self._end_of_due(now), self._end_of_due(now - grace)
        for begin, until in self._pauses_of(present):
            self._report_waiting(present, min(begin, end), fresh)
            self._verdict.skip(PAUSED, self._count_until(min(until, end)))
        self._report_waiting(present, end, fresh)
        if present.paused and self._question.since <= present.next_time <= self._question.until:
            self._verdict.notes.append(("it is paused, and nothing of it runs from", present.next_time))

    def _report_waiting(self, present: ScheduleRow, end: float, fresh: float) -> None:
        """Judge due occurrences without an entry before `end`; from `fresh` on they may still wait for a worker.

        `present`: the schedule's row with its next regular occurrence, which is the first that can be judged here.
        """
        if self._due >= end:
            return
        if self._is_first_run_later(present):
            self._verdict.pending += self._count_until(end)
            return
        if present.next_time == self._due:
            self._report_next(present, fresh)
        if present.status == "running" and present.policy.catch_up != "all" and self._due > present.next_time:
            self._verdict.pending += self._count_until(end)  # its policy passes over what waits for the run in progress
        self._report_missing_until(min(fresh, end), self._why_waiting())
        self._verdict.pending += self._count_until(end)

    def _report_next(self, row: ScheduleRow, fresh: float) -> None:
        """Judge the next occurrence, when the row says more of it than that it is due."""
        time, now = row.next_time, self._context.history.now
        is_leased = row.next_run_time > now
        next_attempt = None
        if row.status == "running" and is_leased:
            self._verdict.running += self._count_until(time + 1)
            return
        if time >= fresh:
            return
        if row.status == "leased" and is_leased:
            self._count_until(time + 1)
            self._verdict.add_violation(
                UNKNOWN, time, "it is running, or waits for a retry: the table does not tell which"
            )
            return
        if row.problem is not None:
            what = f"it cannot be run: {row.problem}"
        elif row.status == "running":
            what = f"the lease of its run has ended, at attempt {row.attempts}"
        elif row.attempts:
            said = "" if row.last_error is None else f": {error_summary(row.last_error)}"
            what, next_attempt = f"attempt {row.attempts} failed{said}", _next_attempt(row)
        else:
            return
        self._report_missing_until(time + 1, Why(what, next_attempt=next_attempt))

    def _why_waiting(self) -> Why:
        """Return why the due occurrence has no entry: it waits for the run that the row holds now."""
        row, now = self._context.history.present, self._context.history.now
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

    def _is_first_run_later(self, row: ScheduleRow) -> bool:
        """Return whether the definition itself puts its first run later (`--at`)."""
        change = self.change
        at = change.first == row.next_time and change.due == row.next_run_time > self._context.history.now
        return at and row.status != "running" and not row.attempts and not row.paused

    def _pauses_of(self, row: ScheduleRow) -> Iterator[tuple[float, float]]:
        """Yield the begin and the end, not included, of each pause of the row, as occurrences."""
        delay = self.change.rule.delay
        for begin, until in row.ended_pauses:
            yield math.ceil(begin - delay), math.ceil(until - delay)
        if row.paused_from is not None and row.paused:
            yield math.ceil(row.paused_from - delay), math.inf

    def _end_of_due(self, time: float) -> float:
        """Return the end, not included, of the audited occurrences that were due at `time`."""
        return min(self._question.until, math.floor(time - self.change.rule.delay)) + 1

    def _report_missing_until(self, end: float, why: Why | None = None) -> None:
        """Report the expected occurrences before `end` as missing, and go on to `end`."""
        if self._due < end:
            why = _NOTHING_KNOWN if why is None else why
            self._context.report_missing(self.change.rule, self._dialect, self._due, end, why)
            self._due = self._next(end - 1)

    def _count_until(self, end: float) -> int:
        """Return how many occurrences are expected before `end`, and go on to `end`."""
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
        """Count an extra run, if the ledger has the run-now that asked for it."""
        if not self._context.asked_for(row):
            self._verdict.add_violation(EXTRA, row.scheduled_time, "it ran by run-now, which is not on record")
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
            self._verdict.add_violation(
                FAILED_FOR_GOOD, row.scheduled_time, f"given up after {row.attempts} attempts{error}"
            )
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
        why = self._context.unpermitted(row, self.change)
        if why is None:
            self._verdict.skip(row.detail or "", max(count, 1))
            self._verdict.settled(begin, end)
        else:
            self._verdict.add_violation(UNPERMITTED, begin, why, end, max(count, 1))

    def _ran(self, row: LedgerRow) -> None:
        self._verdict.ran += 1
        self._verdict.settled(row.scheduled_time, row.end)

    def _check_begin(self, row: LedgerRow) -> None:
        """Report a run that began before its time, or later than the question allows."""
        if row.started is None:
            return
        time, change = row.scheduled_time, self.change
        regular = time + change.rule.delay
        earliest = self._earliest.begin if time == self._earliest.first else regular
        if row.started < earliest - _BEGIN_TOLERANCE and row.detail != RUN_NOW:
            self._verdict.add_violation(EARLY, time, f"it began {earliest - row.started:.3f} s before its time")
        latest = max(regular, change.due) if time == change.first and change.due < change.at + _FAR_FUTURE else regular
        late = row.started - latest
        if self._question.late is not None and late > self._question.late:
            self._verdict.add_violation(LATE, time, f"it began {late:.3f} s after its time, at attempt {row.attempts}")

    def _next(self, after: float) -> float:
        return _next(self.change.rule, after, self._dialect)


class _Repeats:
    """Finds occurrences that were settled twice although no change asked for them again."""

    def __init__(self, changes: Sequence[Change], question: Question, verdict: Verdict) -> None:
        self._changes = changes
        self._question = question
        self._verdict = verdict
        self._same: deque[LedgerRow] = deque(maxlen=_MAX_NEIGHBOURS)

    def see(self, row: LedgerRow) -> bool:
        """Compare the next entry; True, after reporting it, when its occurrence was settled before."""
        if self._same and self._same[-1].scheduled_time != row.scheduled_time:
            self._same.clear()
        before = next((other for other in self._same if self._repeats(other, row)), None)
        self._same.append(row)
        if before is None:
            return False
        if self._question.since <= row.scheduled_time <= self._question.until:
            ends = f"{_settled(before)}, and {_settled(row)}"
            self._verdict.add_violation(DOUBLED, row.scheduled_time, f"it is on record twice: {ends}")
        return True

    def _repeats(self, before: LedgerRow, row: LedgerRow) -> bool:
        """Return whether both settle the same run: no change between them asked to run it again."""
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
    """Finds runs that overlap in time, among neighbouring runs."""

    def __init__(self, question: Question, verdict: Verdict) -> None:
        self._question = question
        self._verdict = verdict
        self._near: deque[LedgerRow] = deque(maxlen=_MAX_NEIGHBOURS)
        self._latest: LedgerRow | None = None

    def see(self, row: LedgerRow) -> None:
        """Compare the next entry with those before it."""
        if row.started is None:
            return
        others = [*self._near, *([] if self._latest is None else [self._latest])]
        shared = max((_shared(row, other) for other in others), default=0.0)
        if shared > 0 and self._question.since <= row.scheduled_time <= self._question.until:
            what = f"it ran for {shared:.3f} s beside the run of another occurrence"
            self._verdict.add_violation(OVERLAPPING, row.scheduled_time, what)
        self._near.append(row)
        if self._latest is None or row.ended > self._latest.ended:
            self._latest = row


class _ReckoningChanges:
    """Notes changes of the cron dialect or tz database, which may explain missing and extra occurrences."""

    def __init__(self, verdict: Verdict) -> None:
        self._verdict = verdict
        self._noted = 0
        self.last: str | None = None

    def see(self, reckoning: str, time: float) -> None:
        """Note a change if `reckoning` differs from the entry before."""
        if self.last not in (None, reckoning) and self._noted < _MAX_RECKONINGS:
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

    Each lasts from one `pause` to the `resume` after it. The recorded time of a change counts unless it is before that
    of the change before it: no pause begins or ends before the previous change.
    """
    found: list[tuple[float, float]] = []
    begin: float | None = None
    for before, change in pairwise([None, *changes]):
        if change is None:
            continue
        if change.action == PAUSE and begin is None:
            begin = _took_effect_at(change.paused_from, before, change)
        elif change.action in (RESUME, DELETE, ADD) and begin is not None:
            found.append((begin, _took_effect_at(change.paused_until, before, change)))
            begin = None
    return found if begin is None else [*found, (begin, math.inf)]


def _took_effect_at(recorded: float | None, before: Change | None, change: Change) -> float:
    """Return when a change took effect: `recorded`, if that is between the change `before` it and its own writing."""
    if recorded is None or recorded > change.at or (before is not None and recorded < before.at):
        return change.at
    return recorded


def _terms(policy: Policy) -> str:
    bound = "no max_lateness" if policy.max_lateness is None else f"max_lateness={policy.max_lateness:g}"
    return f"catch_up={policy.catch_up}, {bound}"


def _count(rule: Rule, dialect: str, first: int, end: float) -> tuple[int, int]:
    """Return how many occurrences there are from `first`, itself one, to before `end`, and the last of them."""
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
