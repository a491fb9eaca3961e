"""Finds the occurrences of a range that were skipped outside of a pause, had a failed attempt, or started late."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import islice

from psched.model import NEVER
from psched.store.ledger import Definition, DefinitionTimes, Ledger, LedgerFilter, LedgerRow

BATCH = 500
"""How many entries are read at a time."""


def troubled_runs(ledger: Ledger, wanted: LedgerFilter, seconds: float) -> Iterator[LedgerRow]:
    """Yield occurrences that have `had_trouble` or started more than `seconds` late, in the order of the ledger.

    Reads all entries that `wanted` selects. `wanted.failed` and `wanted.last` must not be set.
    """
    rows = ledger.rows(replace(wanted, page=BATCH))
    while batch := list(islice(rows, BATCH)):
        definitions = ledger.run_times({Definition(row.key, row.version) for row in batch if row.started is not None})
        for row in batch:
            if row.had_trouble or _lateness(row, definitions) > seconds:
                yield row


def due_time(row: LedgerRow, definitions: Mapping[Definition, DefinitionTimes]) -> float | None:
    """Return when an occurrence should run; None if the definition of the occurrence is not kept.

    A run of a backfill has no such time. Then return the start of the run, or its end if no start is known.
    """
    change = definitions.get(Definition(row.key, row.version))
    if change is None:
        return None
    if change.is_backfill:
        return row.ended if row.started is None else row.started
    due = row.scheduled_time + (0.0 if row.extra else change.delay)
    if row.scheduled_time == change.first and change.due < NEVER:  # the first run may have been given another time
        due = max(due, change.due)
    return due


def _lateness(row: LedgerRow, definitions: Mapping[Definition, DefinitionTimes]) -> float:
    """Return how many seconds late the last attempt started; 0 if no attempt started, or if this is unknown."""
    due = due_time(row, definitions)
    return 0.0 if row.started is None or due is None else row.started - due
