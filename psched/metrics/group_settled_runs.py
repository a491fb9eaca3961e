"""Groups the runs of a `settle` event, for the listeners that count them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from psched.histogram import DurationSums, sums_of

SettledRuns = Sequence[tuple[str, Any, int, DurationSums, DurationSums]]
"""For each type and outcome: the number of runs, their durations, and the known waits (`Task.waited`).

The outcome is one of `RunOutcome`, or `lost` for runs that could not be settled.
"""


def settled_runs(fields: dict[str, Any]) -> SettledRuns:
    """Return the runs of a `settle` event. `fields`: the fields of the event.

    All listeners get the same `fields`, so the first call stores its result there for the other listeners.
    """
    runs: SettledRuns | None = fields.get("_runs")
    if runs is None:
        runs = fields["_runs"] = group_runs(fields["tasks"], fields["error"] is not None)
    return runs


def group_runs(tasks: Iterable[Any], is_lost: bool) -> SettledRuns:
    """Group the runs of tasks by type and outcome. The loop is simple, because a whole task may take only 50 µs."""
    groups: dict[tuple[str, Any], tuple[list[float], list[float]]] = {}
    type_: str | None = None
    outcome: str | None = None
    for task in tasks:
        if task.type != type_ or task.outcome != outcome:
            type_, outcome = task.type, task.outcome
            kind = task.type, "lost" if is_lost or outcome is None else outcome
            durations, waits = groups.setdefault(kind, ([], []))
        durations.append(task.duration)
        waited = task.waited
        if waited is not None:
            waits.append(waited)
    return [(*kind, len(lists[0]), sums_of(lists[0]), sums_of(lists[1])) for kind, lists in groups.items()]
