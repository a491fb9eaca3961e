"""What an audit used: a hash of the records, and which stretches of time they cover."""

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
    """Occurrences from `first` to `last` (unix seconds), each recorded as the next one of the one before."""

    kind: StretchKind
    first: int
    last: int


class AuditEvidence:
    """The records that an audit of one schedule read: changes of its definition, and entries of its ledger.

    `sha256` is the hash of their lines of JSON, each followed by a newline: first the changes, the oldest first, then
    the entries by their occurrences. A line is an object of all fields with its names in order, without spaces, and
    characters outside ASCII as escapes. Before them come those of the lanes of its backfills, in the order of their
    keys. The schedule's present row, and the oldest entry that is kept, are used, too. The hash leaves them out, as
    they change with time. `reached`: the present next occurrence, None if the schedule is gone.
    """

    def __init__(self, keep: bool = False) -> None:
        """`keep`: keep the lines, too."""
        self._keeps_lines = keep
        self.reached: int | None = None
        self.forget()

    @property
    def sha256(self) -> str:
        return self._hash.hexdigest()

    def of(self, changes: Sequence[Change], rows: Iterable[LedgerRow]) -> Iterator[LedgerRow]:
        """Yield the entries, and note them and the changes."""
        for row in self.of_backfill(changes, rows):
            if not row.extra:
                self._extend(row)
            yield row

    def of_backfill(self, changes: Sequence[Change], rows: Iterable[LedgerRow]) -> Iterator[LedgerRow]:
        """As `of`, of a lane of a backfill, whose occurrences are not those of a definition."""
        self.changes += len(changes)
        for change in changes:
            self._add(asdict(change))
        for row in rows:
            self.entries += 1
            self._add({name: getattr(row, name) for name in _FIELDS})
            yield row

    def forget(self) -> None:
        """Forget all that was noted."""
        self.changes = self.entries = 0
        self.stretches: list[Stretch] = []
        self.lines: list[str] = []
        self._hash = hashlib.sha256()

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
