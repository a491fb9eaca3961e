"""What an audit used: a hash of the records, and the time ranges that they cover."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Literal

from psched.store.ledger import FAILED, SKIPPED, Change, LedgerRow

_MOST_STRETCHES = 2000

StretchKind = Literal["settled", "skipped", "failed"]


@dataclass(frozen=True, slots=True)
class Stretch:
    """Occurrences from `first` to `last` (unix seconds) that follow each other without a gap.

    Their ledger entries show this, because each entry names the occurrence before it.
    """

    kind: StretchKind
    first: int
    last: int


class AuditEvidence:
    """The records that an audit of one schedule read: changes of its definition, and entries of its ledger.

    `sha256` is the hash of the records as lines of JSON, each followed by a newline, in this order:

    - for each part of the schedule's backfills, in the order of keys: the part's changes, then its entries;
    - the changes of the schedule, the oldest first;
    - the entries of the schedule, in the order of occurrences.

    A line is a JSON object with all fields of a record, except the field `backfill` of an entry. The fields are sorted
    by name. There are no spaces, and characters outside of ASCII are escaped.

    The hash leaves out other records that the audit uses, because they change with time: the current rows of the
    schedule and its backfills, the oldest entry of the schedule, and, with `max_runs` or `overlap: skip`, entries
    before the span.

    `reached`: the next occurrence according to the schedule's row when the audit read it; None if the schedule no
    longer exists.
    """

    def __init__(self, keep: bool = False) -> None:
        """With `keep`, the object keeps the lines of JSON, and not only their hash."""
        self._keeps_lines = keep
        self.reached: int | None = None
        self.changes = self.entries = 0
        self.stretches: list[Stretch] = []
        self.lines: list[str] = []
        self._hash = hashlib.sha256()

    @property
    def sha256(self) -> str:
        return self._hash.hexdigest()

    def of(self, changes: Sequence[Change], rows: Iterable[LedgerRow]) -> Iterator[LedgerRow]:
        """Add `changes`, then each entry of `rows`, to the hash.

        Yield the entries, and extend `stretches` by those that are not extra runs.
        """
        for row in self.of_backfill(changes, rows):
            if not row.extra:
                self._extend(row)
            yield row

    def of_backfill(self, changes: Sequence[Change], rows: Iterable[LedgerRow]) -> Iterator[LedgerRow]:
        """Do the same as `of` for a part of a backfill, but do not extend `stretches`."""
        self.changes += len(changes)
        for change in changes:
            self._add(asdict(change))
        for row in rows:
            self.entries += 1
            self._add({name: getattr(row, name) for name in _FIELDS})
            yield row

    def _add(self, record: dict[str, Any]) -> None:
        line = json.dumps(record, sort_keys=True, separators=(",", ":"))
        self._hash.update(line.encode() + b"\n")
        if self._keeps_lines:
            self.lines.append(line)

    def _extend(self, row: LedgerRow) -> None:
        kind: StretchKind = "failed" if row.outcome == FAILED else "skipped" if row.outcome == SKIPPED else "settled"
        before = self.stretches[-1] if self.stretches else None
        is_next = before is not None and row.previous == before.last
        if before is not None and is_next and (before.kind == kind or len(self.stretches) >= _MOST_STRETCHES):
            self.stretches[-1] = replace(before, last=row.end)
        elif len(self.stretches) < _MOST_STRETCHES:
            self.stretches.append(Stretch(kind, row.scheduled_time, row.end))


_FIELDS = tuple(field.name for field in fields(LedgerRow) if field.name != "backfill")
