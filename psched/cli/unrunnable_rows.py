"""Rows that no worker of psched runs, as `list`, `doctor`, `add` and `submit` report them.

Their type is not routed by any live worker; or psched leaves them to Ruby workers, on `rdb_compat`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import TypeVar

import click

from psched.application import load
from psched.application.routing import Application
from psched.cli.options import Chosen
from psched.config import Section, Settings
from psched.errors import ConfigError
from psched.model import ScheduleRow, TaskRow
from psched.queue.queue import Queue
from psched.schedules.advance import rule_problem
from psched.schedules.collection import ScheduleCollection
from psched.store import Finding, LeaseStore
from psched.store.node_registry import Node
from psched.store.type_filter import TypeFilter
from psched.supervisor.reload import configured_application

R = TypeVar("R", bound=ScheduleRow | TaskRow)

_MAX_ROWS_READ = 10_000
"""Rows of a table shared with Ruby workers that `doctor` reads."""
_MAX_PROBLEMS_SHOWN = 3


def unrouted_types(store: LeaseStore, nodes: Sequence[Node]) -> list[str]:
    """Return the types that have rows but are routed by none of `nodes`."""
    return sorted(type_ for type_ in store.due_by_type() if not any(node.types.accepts(type_) for node in nodes))


def note_unrouted_types(store: LeaseStore) -> None:
    """Print to stderr the types that have rows but are routed by no live worker, if there is a live worker."""
    nodes = [] if store.nodes is None else store.nodes.alive()
    unrouted = unrouted_types(store, nodes) if nodes else []
    if unrouted:
        click.echo(f"no live worker routes: {', '.join(unrouted)}", err=True)


def routing_findings(store: LeaseStore) -> list[Finding]:
    """Return the live workers, and whether they route every type that has rows."""
    if store.nodes is None:
        return []
    nodes = store.nodes.alive()
    unrouted = ", ".join(unrouted_types(store, nodes))
    if not nodes:
        waiting = f"; rows of these types wait: {unrouted}" if unrouted else ""
        return [Finding("workers", True, f"no worker is running{waiting}")]
    alive = "; ".join(f"{node.name} routes {node.types.describe()}" for node in nodes)
    if not unrouted:
        return [Finding("workers", True, alive)]
    words = f"no live worker routes {unrouted}; deploy an application that does, or widen `types` ({alive})"
    return [Finding("workers", False, words)]


class LeftToRuby:
    """Counts, among the rows read from an `rdb_compat` table, those that psched leaves to Ruby workers."""

    def __init__(self, section: Section, types: TypeFilter | None) -> None:
        """`types`: the types that the application routes; None if unknown."""
        self._dialect = section.cron_dialect
        self._types = types
        self._read = 0
        self._problems: dict[str, str] = {}
        self._unrunnable = 0
        self._unrouted: dict[str, int] = {}

    def counted(self, rows: Iterable[R]) -> Iterator[R]:
        """Yield `rows`, counting."""
        for row in rows:
            self._count_row(row)
            yield row

    def summary(self) -> str | None:
        """Return how many of the rows read are left to Ruby workers, and why; None for none."""
        unrouted = sum(self._unrouted.values())
        left = self._unrunnable + unrouted
        if not left:
            return None
        reasons = [f"{key!r}: {problem}" for key, problem in self._problems.items()]
        if self._unrunnable > len(reasons):
            reasons.append(f"{self._unrunnable - len(reasons)} more that it cannot run")
        if unrouted:
            names = ", ".join(sorted(self._unrouted))
            reasons.append(f"{unrouted} of types that the configured application does not route: {names}")
        why = "; ".join(reasons)
        return f"psched leaves {left} of {self._read} rows to Ruby workers, since it cannot run them ({why})"

    def _count_row(self, row: ScheduleRow | TaskRow) -> None:
        if isinstance(row, TaskRow) and row.due is None:
            return  # finished
        self._read += 1
        problem = row.problem
        if problem is None and isinstance(row, ScheduleRow):
            problem = rule_problem(row, self._dialect)
        if problem is not None:
            self._unrunnable += 1
            if len(self._problems) < _MAX_PROBLEMS_SHOWN:
                self._problems[row.key] = problem
        elif self._types is not None and not self._types.accepts(row.type):
            self._unrouted[row.type] = self._unrouted.get(row.type, 0) + 1


def left_to_ruby(chosen: Chosen, settings: Settings, name: str) -> LeftToRuby | None:
    """Return a counter for the rows of the section; None unless its type is `rdb_compat`."""
    section = dict(settings.named_sections)[name]
    if section.type != "rdb_compat":
        return None
    application = _loaded(settings.with_application((), chosen.include, chosen.require, chosen.types))
    return LeftToRuby(section, None if application is None else application.of(name).types().serving(section.types))


def note_left_to_ruby(left: LeftToRuby | None) -> None:
    """Print to stderr how many rows are left to Ruby workers, if any."""
    summary = None if left is None else left.summary()
    if summary is not None:
        click.echo(summary, err=True)


def left_to_ruby_finding(left: LeftToRuby, collection: ScheduleCollection | Queue) -> Finding:
    """Return how many of the first 10,000 rows are left to Ruby workers."""
    rows: Iterable[ScheduleRow | TaskRow] = collection.list()
    for _ in left.counted(islice(rows, _MAX_ROWS_READ)):
        pass
    return Finding("Ruby's rows", True, left.summary() or "psched leaves none to Ruby workers: it can run all")


def warn_unless_routed(chosen: Chosen, settings: Settings, section: str, store: LeaseStore, type_: str) -> None:
    """Print a warning if neither the configured application nor a live worker routes this type.

    No warning if the application cannot be loaded.
    """
    application = _loaded(settings.with_application((), chosen.include, chosen.require, chosen.types))
    own = dict(settings.named_sections)[section]
    if application is None or application.of(section).types().serving(own.types).accepts(type_):
        return
    if any(node.types.accepts(type_) for node in (() if store.nodes is None else store.nodes.alive())):
        return
    click.echo(f"warning: the configured application does not route the type {type_!r}: no worker runs it", err=True)


def _loaded(settings: Settings) -> Application | None:
    """Return the configured application; None without one, or if it cannot be loaded (`doctor` reports why)."""
    spec = configured_application(settings)
    if not spec.names:
        return None
    try:
        return load(spec)
    except ConfigError:
        return None
