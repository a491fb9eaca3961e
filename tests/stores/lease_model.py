"""The promises of leases without a database: a model with which stores are compared.

The test sets the time. A grant is one acquire of one row. The worker with the latest grant that is not settled holds
the row, however long ago its lease ended, until another worker acquires the row.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

APART = 5.0
"""Seconds by which two due times must differ, so that their order is certain although a test takes some time."""


@dataclass
class Row:
    """One row.

    `due`: when it is due; `occurrence`: the next one; `grant`: the number of the grant that holds it (0: none).
    """

    due: float
    occurrence: int
    grant: int = 0


@dataclass
class LeaseModel:
    """All rows, and the present time in seconds."""

    now: float = 0.0
    rows: dict[str, Row] = field(default_factory=dict)
    grants: int = 0

    def add(self, key: str, due: float, occurrence: int) -> None:
        """Create a row."""
        self.rows[key] = Row(due, occurrence)

    def acquire(self, given: Collection[str], limit: int, alive_time: float) -> dict[str, int]:
        """Check which keys a store has acquired, and return their grants.

        Raises AssertionError if a key was not due, or if others were due earlier.
        """
        due = {key for key, row in self.rows.items() if row.due <= self.now}
        assert set(given) <= due, f"given {set(given) - due}, which is not due"
        assert len(given) == len(set(given)) == min(limit, len(due)), f"given {len(given)} of {len(due)} due, {limit=}"
        latest = max((self.rows[key].due for key in given), default=self.now)
        passed_over = [key for key in due - set(given) if self.rows[key].due < latest - APART]
        assert not passed_over, f"{passed_over} were due before"
        grants = {}
        for key in given:
            self.grants += 1
            self.rows[key].due, self.rows[key].grant = self.now + alive_time, self.grants
            grants[key] = self.grants
        return grants

    def holds(self, key: str, grant: int) -> bool:
        """Return whether this grant may still extend and settle the row."""
        return key in self.rows and self.rows[key].grant == grant

    def extend(self, key: str, alive_time: float) -> None:
        """Extend the lease of the row's holder."""
        self.rows[key].due = self.now + alive_time

    def settle(self, key: str, due: float, occurrence: int | None = None) -> None:
        """Settle the row: it is then due at `due`. `occurrence`: the next one; None: unchanged."""
        row = self.rows[key]
        row.due, row.grant = due, 0
        row.occurrence = row.occurrence if occurrence is None else occurrence
