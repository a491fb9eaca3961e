"""Counts and reports the rows that psched leaves to Ruby workers, in a table shared with Ruby."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import TypeVar

import click

from psched.cli.opened_sections import required_section
from psched.cli.options import Chosen
from psched.cli.routing_warnings import routed_types
from psched.config import SectionName
from psched.insight.table_insight import TableInsight
from psched.model import ScheduleRow, TaskRow
from psched.queue.queue import Queue
from psched.schedules.collection import ScheduleCollection
from psched.store import Finding

R = TypeVar("R", bound=ScheduleRow | TaskRow)

_MAX_ROWS_READ = 10_000
"""The maximum number of rows that `doctor` reads in a table shared with Ruby workers."""
_MAX_PROBLEMS_SHOWN = 3


class LeftToRuby:
    """Counts the rows of an `rdb_compat` table that psched leaves to Ruby workers."""

    def __init__(self, chosen: Chosen, name: SectionName) -> None:
        section = required_section(chosen.settings(name), name)
        self._is_shared = section.type == "rdb_compat"
        self._types = routed_types(chosen, name) if self._is_shared else None
        self._read = 0
        self._problems: dict[str, str] = {}
        self._unrunnable = 0
        self._unrouted = Counter[str]()

    def seen(self, row: R) -> R:
        """Count a row and return it."""
        if self._is_shared and (not isinstance(row, TaskRow) or row.due is not None):
            self._count(row)
        return row

    def _summary(self) -> str | None:
        unrouted = self._unrouted.total()
        left = self._unrunnable + unrouted
        if not left:
            return None
        reasons = [f"{key!r}: {problem}" for key, problem in self._problems.items()]
        if self._unrunnable > len(reasons):
            reasons.append(f"and {self._unrunnable - len(reasons)} more")
        if unrouted:
            names = ", ".join(sorted(self._unrouted))
            reasons.append(f"{unrouted} not routed by the configured application: {names}")
        why = "; ".join(reasons)
        return f"psched cannot run {left} of {self._read} rows and leaves them to Ruby workers ({why})"

    def findings(self, collection: ScheduleCollection | Queue) -> Iterator[Finding]:
        if not self._is_shared:
            return
        rows: Iterable[ScheduleRow | TaskRow] = collection.list()
        for row in islice(rows, _MAX_ROWS_READ):
            self.seen(row)
        yield Finding(
            "Ruby's rows", True, self._summary() or "psched can run all rows, and leaves none to Ruby workers"
        )

    def note(self, insight: TableInsight) -> None:
        """Print the types that no live node routes, and the rows that psched leaves to Ruby workers."""
        unrouted = insight.unrouted()
        if unrouted is not None:
            click.echo(f"types that no live node routes: {unrouted}", err=True)
        summary = self._summary()
        if summary is not None:
            click.echo(summary, err=True)

    def _count(self, row: ScheduleRow | TaskRow) -> None:
        self._read += 1
        if row.problem is not None:
            self._unrunnable += 1
            if len(self._problems) < _MAX_PROBLEMS_SHOWN:
                self._problems[row.key] = row.problem
        elif self._types is not None and not self._types.accepts(row.type):
            self._unrouted[row.type] += 1
