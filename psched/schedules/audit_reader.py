"""An audit of several schedules together: a few statements read the records of all of them."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice
from typing import NamedTuple

from psched import cron
from psched.clock import monotonic
from psched.model import ScheduleRow
from psched.schedules.audit_result import Verdict
from psched.schedules.audited_records_hash import AuditEvidence
from psched.schedules.backfill_audit import PartRecords
from psched.schedules.backfills import part_keys_of
from psched.schedules.ledger_audit import AuditRecords, AuditScope, audit, versions_at
from psched.store import ScheduleStore
from psched.store.ledger import SKIPPED, Change, Definition, Ledger, LedgerFilter, LedgerRow

_TOGETHER = 32
"""The maximum number of schedules that are audited together."""
_LONGEST = 1.0
"""Records that were read together are used for this many seconds. For the schedules that are not audited by then,
records are read again.
"""
_AUDITS = 5
"""The maximum number of audits of a schedule that is changed during each audit."""
_BEFORE_SCOPE = 32
"""How many entries before the audited span are searched for the run that precedes the first entry of the span."""
_FIRST_ROWS = 200
"""How many entries of each schedule are read together with those of other schedules. A week of hourly runs has fewer.
"""


class AuditedSchedule(NamedTuple):
    """The audit of one schedule. `verdict`: None if reading the schedule's ledger took too long."""

    key: str
    verdict: Verdict | None
    evidence: AuditEvidence | None


@dataclass(frozen=True, slots=True)
class _SharedRecords:
    """The records of several schedules, read together; see `AuditRecords`.

    `rows`: the first entries of each schedule in the audited span.
    """

    now: float
    changes: Mapping[str, Sequence[Change]]
    present: Mapping[str, ScheduleRow]
    oldest: Mapping[str, Sequence[LedgerRow]]
    before: Mapping[Definition, LedgerRow]
    earlier: Mapping[str, Sequence[LedgerRow]]
    parts: Mapping[str, Sequence[str]]
    rows: Mapping[str, Sequence[LedgerRow]]


class AuditReader:
    def __init__(self, store: ScheduleStore, ledger: Ledger, dialect: cron.CronDialect, retention: float) -> None:
        """`retention`: for how many seconds the ledger keeps entries."""
        self._store = store
        self._ledger = ledger
        self._dialect = dialect
        self._retention = retention

    def audits(
        self,
        keys: Iterable[str],
        scope: AuditScope,
        new_evidence: Callable[[], AuditEvidence | None] = lambda: None,
        seconds: float = math.inf,
    ) -> Iterator[AuditedSchedule]:
        """Yield the audits of schedules, in the order of `keys`. The keys must be distinct.

        The records of up to 32 schedules are read together. `new_evidence`: makes the object that records what the
        audit of one schedule reads. `seconds`: the longest time for reading the ledger of one schedule.
        """
        source, wanted = iter(keys), list[str]()
        while wanted := [*wanted, *islice(source, _TOGETHER - len(wanted))]:
            done = self._audit_together(wanted, scope, new_evidence, seconds)
            yield from done
            wanted = wanted[len(done) :]

    def _audit_together(
        self,
        keys: Sequence[str],
        scope: AuditScope,
        new_evidence: Callable[[], AuditEvidence | None],
        seconds: float,
    ) -> list[AuditedSchedule]:
        """Audit the first of these schedules: at least one, then more for about a second.

        Entries are read page by page. A schedule that is changed meanwhile is audited again.
        """
        changes, begun = self._ledger.changes_of(keys), monotonic()
        done: dict[str, AuditedSchedule] = {}
        ends: dict[str, float] = {}
        wanted = keys
        for _ in range(_AUDITS):
            shared = self._read_together(wanted, changes, scope)
            for key in wanted:
                if done and key not in done and monotonic() > begun + _LONGEST:
                    break
                end = ends.setdefault(key, monotonic() + seconds)
                done[key] = self._audit(key, shared, scope, new_evidence(), end)
            audited = [key for key in wanted if key in done and done[key].verdict is not None]
            before, changes = changes, self._ledger.changes_of(audited)
            wanted = [key for key in audited if changes[key][-1:] != before[key][-1:]]
            if not wanted:
                break
        return list(done.values())

    def _audit(
        self, key: str, shared: _SharedRecords, scope: AuditScope, evidence: AuditEvidence | None, end: float
    ) -> AuditedSchedule:
        """Audit one schedule. The result has no verdict if reading the ledger takes until `end` (monotonic)."""
        try:
            records = self._records_of(key, shared, scope, end)
            if evidence is not None:
                evidence.reached = None if records.present is None else records.present.regular().next_time
                note = evidence.of_backfill
                parts = [replace(part, rows=note(part.changes, part.rows)) for part in records.parts]
                records = replace(records, rows=evidence.of(records.changes, records.rows), parts=parts)
            return AuditedSchedule(key, audit(records, scope), evidence)
        except TimeoutError:
            return AuditedSchedule(key, None, None)

    def _read_together(
        self, keys: Sequence[str], changes: Mapping[str, Sequence[Change]], scope: AuditScope
    ) -> _SharedRecords:
        """Read the records of schedules.

        Ledger entries are read after the schedules' rows. So an occurrence that is settled in between does not seem to
        be missing.
        """
        ledger, now = self._ledger, self._store.now()
        present = {row.key: row for row in self._store.get_many(keys)}
        oldest = ledger.first_rows(keys, 1)
        before = ledger.rows_before(
            scope.since,
            {Definition(key, version) for key in keys for version in versions_at(changes[key], scope.since)},
        )
        skipping = [key for key in keys if any(change.policy.overlap == "skip" for change in changes[key])]
        earlier = ledger.last_rows(skipping, _BEFORE_SCOPE, until=scope.since - 1)
        parts = part_keys_of(ledger, keys) if self._store.keeps_policies else {}
        plain = [key for key in keys if not parts.get(key) and not _has_max_runs(changes[key])]
        rows = ledger.first_rows(plain, _FIRST_ROWS, scope.since, scope.until)
        return _SharedRecords(now, changes, present, oldest, before, earlier, parts, rows)

    def _records_of(self, key: str, shared: _SharedRecords, scope: AuditScope, end: float) -> AuditRecords:
        """Return the records of one schedule. After `end` (monotonic), reading its entries raises TimeoutError."""
        ledger, changes = self._ledger, shared.changes[key]
        found = [shared.before.get(Definition(key, version)) for version in versions_at(changes, scope.since)]
        before = sorted((row for row in found if row is not None), key=lambda row: (row.scheduled_time, row.fence))
        runs_before: Mapping[int, int] = {}
        if _has_max_runs(changes):
            earlier = _read_until(end, ledger.rows(LedgerFilter(key, until=scope.since - 1)))
            runs_before = Counter(row.version for row in earlier if not row.extra and row.outcome != SKIPPED)
        return AuditRecords(
            key=key,
            changes=changes,
            rows=chain(before, _read_until(end, self._rows_of(key, shared.rows.get(key), scope))),
            oldest=next(iter(shared.oldest[key]), None),
            present=shared.present.get(key),
            now=shared.now,
            kept_since=shared.now - self._retention,
            reckoning=cron.reckoning(self._dialect),
            runs_before=runs_before,
            earlier=shared.earlier.get(key, ()),
            parts=[self._part_records(part, scope, end) for part in shared.parts.get(key, ())],
        )

    def _rows_of(self, key: str, first: Sequence[LedgerRow] | None, scope: AuditScope) -> Iterator[LedgerRow]:
        """Yield the entries in the span. `first`: up to `_FIRST_ROWS` entries that were read before, or None."""
        if first is None:
            yield from self._ledger.rows(LedgerFilter(key, since=scope.since, until=scope.until))
            return
        yield from first
        if len(first) < _FIRST_ROWS:
            return
        last = first[-1].scheduled_time
        known = {row.fence for row in first if row.scheduled_time == last}
        for row in self._ledger.rows(LedgerFilter(key, since=last, until=scope.until)):
            if row.scheduled_time != last or row.fence not in known:
                yield row

    def _part_records(self, key: str, scope: AuditScope, end: float) -> PartRecords:
        """Return the records of a part of a backfill.

        The part's entries are read after its row. After `end` (monotonic), reading entries raises TimeoutError.
        """
        ledger = self._ledger
        present, changes = self._store.get(key), ledger.changes(key)
        backfill = changes[0].rule.backfill if changes else None
        is_reverse = backfill is not None and backfill.reverse
        first = next(ledger.rows(LedgerFilter(key, last=1) if is_reverse else LedgerFilter(key, page=1)), None)
        rows = _read_until(end, ledger.rows(LedgerFilter(key, since=scope.since, until=scope.until)))
        kept_since = self._store.now() - self._retention
        is_complete = first.previous is None if first else bool(changes) and changes[0].at >= kept_since
        return PartRecords(key, changes, present, rows, is_complete)


def _has_max_runs(changes: Sequence[Change]) -> bool:
    return any(change.rule.max_runs is not None for change in changes)


def _read_until(end: float, rows: Iterable[LedgerRow]) -> Iterator[LedgerRow]:
    """Yield the entries. Raises TimeoutError after `end` (monotonic)."""
    for row in rows:
        if monotonic() > end:
            raise TimeoutError("the ledger has too many entries in this range")
        yield row
