"""Types that nobody runs: what `list`, `doctor`, `add` and `submit` say of them. Command line only."""

from __future__ import annotations

from collections.abc import Sequence

import click

from psched.application import load
from psched.application.routing import Application
from psched.cli.options import Chosen
from psched.config import Settings
from psched.daemon.plan import configured_application
from psched.errors import ConfigError
from psched.nodes import Node
from psched.store import Finding, LeaseStore


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
