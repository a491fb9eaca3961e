"""The part of the audit that checks a schedule's backfills. Pure functions; occurrences are unix seconds.

A backfill promises to settle each of its occurrences once. The ledger must have exactly one entry for each occurrence
that the parts have passed, and no other entries.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from psched.cron import CronDialect
from psched.errors import ConfigError
from psched.keys import backfill_of
from psched.model import Rule, ScheduleRow, Span
from psched.schedules import rule_occurrences
from psched.schedules.audit_result import Kind, Verdict
from psched.schedules.backfill_spans import clipped, count, spans_left, spans_passed
from psched.store.ledger import FAILED, Change, LedgerRow
from psched.stored_error_summary import error_summary


@dataclass(frozen=True, slots=True)
class PartRecords:
    """The records of one part of a backfill.

    - `present`: the row of the part, read before `rows`; None if it was deleted.
    - `changes`: the recorded changes, the oldest first.
    - `rows`: the entries of the audited occurrences, as a stream.
    - `is_complete`: whether no entry was deleted because of its age or the number of entries.
    """

    key: str
    changes: Sequence[Change]
    present: ScheduleRow | None
    rows: Iterable[LedgerRow]
    is_complete: bool

    @property
    def rule(self) -> Rule | None:
        """The rule with which the part was started."""
        return self.changes[0].rule if self.changes else None if self.present is None else self.present.rule


class LastRun(NamedTuple):
    """The last run of an occurrence by a backfill, from the ledger.

    `ended`: unix seconds. `why`: how the run failed for good; None if it did not fail.
    """

    ended: float
    why: str | None


def judge_backfills(
    parts: Iterable[PartRecords], since: int, until: int, verdict: Verdict, dialect: CronDialect
) -> Mapping[int, LastRun]:
    """Check the occurrences of backfills from `since` to `until`, and report to `verdict`.

    For each occurrence that a backfill settled, return its last run.
    """
    last: dict[int, LastRun] = {}
    left: dict[str, list[int]] = {}
    for part in parts:
        name = "{}:{}".format(*backfill_of(part.key))
        settled = set[int]()
        for row in part.rows:
            time = row.scheduled_time
            if time in settled:
                verdict.add_violation(Kind.DOUBLED, time, f"the backfill {name} has settled this occurrence twice")
            elif not _is_wanted(part.rule, time, dialect):
                verdict.add_violation(Kind.EXTRA, time, f"the backfill {name} should not have run this occurrence")
            settled.add(time)
            if row.outcome != FAILED:
                verdict.ran += 1
                verdict.backfilled += 1
                verdict.settled(time, time)
            if time not in last or last[time].ended <= row.ended:
                last[time] = LastRun(row.ended, _why(row, name) if row.outcome == FAILED else None)
        for time in _missing(part, settled, since, until, dialect):
            verdict.add_violation(
                Kind.MISSING, time, f"the backfill {name} has passed this occurrence, but left no entry"
            )
        if part.present is not None and part.present.rule.backfill is not None:
            spans = clipped(spans_left(part.present), since, until)
            if spans:
                left.setdefault(name, []).append(spans[0][0])
    for time, run in last.items():
        if run.why is not None:
            verdict.add_violation(Kind.FAILED, time, run.why)
    verdict.notes += [(f"the backfill {name} has occurrences left, the first at", min(of)) for name, of in left.items()]
    return last


def _is_wanted(rule: Rule | None, time: int, dialect: CronDialect) -> bool:
    if rule is None or rule.backfill is None or not clipped(rule.backfill.spans, time, time):
        return False
    try:
        return rule_occurrences.first_time(rule, time, dialect) == time
    except ConfigError:  # the rule is invalid by now
        return True


def _missing(part: PartRecords, settled: set[int], since: int, until: int, dialect: CronDialect) -> Iterator[int]:
    """Yield the occurrences that the part has passed without an entry in the ledger."""
    rule = part.rule
    if not part.is_complete or rule is None or rule.backfill is None:
        return
    spans: Sequence[Span] = ()
    if part.present is not None:
        spans = spans_passed(part.present)
    elif settled and rule.backfill.reverse:
        spans = clipped(rule.backfill.spans, min(settled), until)
    elif settled:
        spans = clipped(rule.backfill.spans, since, max(settled))
    spans = clipped(spans, since, until)
    try:
        if count(rule, spans, dialect) == sum(bool(clipped(spans, time, time)) for time in settled):
            return
        for first, last in spans:
            time = rule_occurrences.first_time(rule, first, dialect)
            while time <= last:
                if time not in settled:
                    yield time
                time = rule_occurrences.next_time(rule, time, dialect)
    except ConfigError:  # the rule is invalid by now
        return


def _why(row: LedgerRow, name: str) -> str:
    error = "" if row.error is None else f": {error_summary(row.error)}"
    return f"given up by the backfill {name} after {row.attempts} attempts{error}"
