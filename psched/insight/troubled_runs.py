"""Finds the occurrences of a range that were skipped outside of a pause, had a failed attempt, or started late."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import islice

from psched.insight import pages
from psched.insight.pages import Page, first_page
from psched.model import NEVER
from psched.store.ledger import Definition, DefinitionTimes, Ledger, LedgerFilter, LedgerRow

BATCH = 500
"""How many entries are read at a time, if all entries are wanted."""

PageStart = tuple[float, int]
"""Where a page begins: the time that orders entries, and how many entries with this time precede the page."""


@dataclass(frozen=True, slots=True)
class TroubledRun:
    """An occurrence that was skipped outside of a pause, had a failed attempt, or started late.

    `late`: the seconds by which the last attempt started after the occurrence's time; None if no attempt started, or if
    the time is unknown.
    """

    row: LedgerRow
    late: float | None


def troubled_runs(ledger: Ledger, wanted: LedgerFilter, seconds: float) -> Iterator[TroubledRun]:
    """Yield occurrences that have `had_trouble` or started more than `seconds` late, in the order of the ledger.

    Reads all entries that `wanted` selects. `wanted.failed` and `wanted.last` must not be set.
    """
    return (run for run, _ in _measured(ledger, wanted, BATCH) if _is_troubled(run, seconds))


def troubled_runs_page(
    ledger: Ledger, wanted: LedgerFilter, seconds: float, after: PageStart | None, limit: int
) -> Page[TroubledRun, PageStart]:
    """Return the first `limit` occurrences that `troubled_runs` yields after `after`."""
    time, passed = (None, 0) if after is None else after
    begin = wanted if time is None else replace(wanted, since=time)
    runs = _measured(ledger, begin, pages.LOOKED_AT + 1, passed)
    found = first_page(runs, limit, lambda each: _is_troubled(each[0], seconds), lambda each: each[1])
    return Page([run for run, _ in found.rows], found.after)


def _is_troubled(run: TroubledRun, seconds: float) -> bool:
    return run.row.had_trouble or (run.late is not None and run.late > seconds)


def _measured(
    ledger: Ledger, wanted: LedgerFilter, size: int, passed: int = 0
) -> Iterator[tuple[TroubledRun, PageStart]]:
    """Yield all entries except the first `passed`, each with the place after it. Reads `size` entries at a time."""
    rows = ledger.rows(replace(wanted, page=size + passed))
    time, count = None, 0
    while batch := list(islice(rows, size)):
        definitions = ledger.run_times({Definition(row.key, row.version) for row in batch if row.started is not None})
        for row in batch:
            at = row.ended if wanted.key is None else row.scheduled_time
            count = count + 1 if at == time else 1
            time = at
            if passed:
                passed -= 1
            else:
                yield TroubledRun(row, _lateness(row, definitions)), (at, count)


def due_time(row: LedgerRow, definitions: Mapping[Definition, DefinitionTimes]) -> float | None:
    """Return when an occurrence should run.

    None if the occurrence's definition is not kept. The runs of a backfill have no fixed time: return the start of the
    run, or its end if no start is known.
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


def _lateness(row: LedgerRow, definitions: Mapping[Definition, DefinitionTimes]) -> float | None:
    due = due_time(row, definitions)
    return None if row.started is None or due is None else row.started - due
