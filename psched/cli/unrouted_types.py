"""Rows that no worker of psched runs: what `list`, `doctor`, `add` and `submit` say of them. Command line only."""

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

_LOOKED_AT = 10_000
"""Rows of a table shared with Ruby workers that `doctor` reads, at the most."""

_NAMED = 3
"""Rows that psched cannot run of which it is said why."""


def unrouted_types(store: LeaseStore, nodes: Sequence[Node]) -> list[str]:
    """Return the types that have rows, but that none of `nodes` routes."""
    return sorted(type_ for type_ in store.due_by_type() if not any(node.types.accepts(type_) for node in nodes))


def note_unrouted_types(store: LeaseStore) -> None:
    """Name on stderr the types that have rows but that no live worker routes, while there is any live worker."""
    nodes = [] if store.nodes is None else store.nodes.alive()
    unrouted = unrouted_types(store, nodes) if nodes else []
    if unrouted:
        click.echo(f"no live worker routes: {', '.join(unrouted)}", err=True)


def routing_findings(store: LeaseStore) -> list[Finding]:
    """Return which workers are alive, and whether they route every type that has rows."""
    if store.nodes is None:
        return []
    nodes = store.nodes.alive()
    unrouted = ", ".join(unrouted_types(store, nodes))
    if not nodes:
        waiting = f"; rows of these types wait for one: {unrouted}" if unrouted else ""
        return [Finding("workers", True, f"none is running{waiting}")]
    alive = "; ".join(f"{node.name} routes {node.types.describe()}" for node in nodes)
    if not unrouted:
        return [Finding("workers", True, alive)]
    words = f"no live worker routes {unrouted}; deploy an application that does, or widen `types` ({alive})"
    return [Finding("workers", False, words)]


class LeftToRuby:
    """Counts the rows of an `rdb_compat` table that psched leaves to Ruby workers, while they are read."""

    def __init__(self, section: Section, types: TypeFilter | None) -> None:
        """`types`: what the application routes; None where that is not known."""
        self._dialect = section.cron_dialect
        self._types = types
        self._read = 0
        self._problems: dict[str, str] = {}
        self._count = 0
        self._unrouted: dict[str, int] = {}

    def seen(self, rows: Iterable[R]) -> Iterator[R]:
        """Yield `rows`, counting."""
        for row in rows:
            self._look_at(row)
            yield row

    def sentence(self) -> str | None:
        """Return how many rows of those read are left to Ruby workers, and why; None when there are none."""
        unrouted = sum(self._unrouted.values())
        left = self._count + unrouted
        if not left:
            return None
        reasons = [f"{key!r}: {problem}" for key, problem in self._problems.items()]
        if self._count > len(reasons):
            reasons.append(f"{self._count - len(reasons)} more that it cannot run")
        if unrouted:
            names = ", ".join(sorted(self._unrouted))
            reasons.append(f"{unrouted} of types that the configured application does not route: {names}")
        why = "; ".join(reasons)
        return f"psched leaves {left} of {self._read} rows to Ruby workers, since it cannot run them ({why})"

    def _look_at(self, row: ScheduleRow | TaskRow) -> None:
        if isinstance(row, TaskRow) and row.due is None:
            return  # it is finished
        self._read += 1
        problem = row.problem
        if problem is None and isinstance(row, ScheduleRow):
            problem = rule_problem(row, self._dialect)
        if problem is not None:
            self._count += 1
            if len(self._problems) < _NAMED:
                self._problems[row.key] = problem
        elif self._types is not None and not self._types.accepts(row.type):
            self._unrouted[row.type] = self._unrouted.get(row.type, 0) + 1


def left_to_ruby(chosen: Chosen, settings: Settings, name: str) -> LeftToRuby | None:
    """Return what counts rows of the section that are left to Ruby workers; None unless it is `rdb_compat`."""
    section = dict(settings.named_sections)[name]
    if section.type != "rdb_compat":
        return None
    application = _loaded(settings.with_application((), chosen.include, chosen.require, chosen.types))
    return LeftToRuby(section, None if application is None else application.of(name).types().serving(section.types))


def note_left_to_ruby(left: LeftToRuby | None) -> None:
    """Say on stderr how many rows were left to Ruby workers, if any were."""
    sentence = None if left is None else left.sentence()
    if sentence is not None:
        click.echo(sentence, err=True)


def left_to_ruby_finding(left: LeftToRuby, collection: ScheduleCollection | Queue) -> Finding:
    """Return how many of the first rows are left to Ruby workers."""
    rows: Iterable[ScheduleRow | TaskRow] = collection.list()
    for _ in left.seen(islice(rows, _LOOKED_AT)):
        pass
    return Finding("Ruby's rows", True, left.sentence() or "psched leaves none to Ruby workers: it can run all")


def warn_unless_routed(chosen: Chosen, settings: Settings, section: str, store: LeaseStore, type_: str) -> None:
    """Warn on stderr when neither the configured application, if it loads, nor a live worker routes this type."""
    application = _loaded(settings.with_application((), chosen.include, chosen.require, chosen.types))
    own = dict(settings.named_sections)[section]
    if application is None or application.of(section).types().serving(own.types).accepts(type_):
        return
    if any(node.types.accepts(type_) for node in (() if store.nodes is None else store.nodes.alive())):
        return
    click.echo(f"warning: the configured application does not route the type {type_!r}: no worker runs it", err=True)


def _loaded(settings: Settings) -> Application | None:
    """Return the configured application; None where there is none, or it cannot be loaded (`doctor` says why)."""
    spec = configured_application(settings)
    if not spec.names:
        return None
    try:
        return load(spec)
    except ConfigError:
        return None
