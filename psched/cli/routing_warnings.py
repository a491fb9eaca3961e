"""Warns if neither the configured application nor a live node routes a type."""

from __future__ import annotations

import click

from psched.application import load
from psched.cli.opened_sections import required_section
from psched.cli.options import Chosen
from psched.config import SectionName
from psched.errors import ConfigError
from psched.insight.nodes import live_nodes
from psched.store import LeaseStore
from psched.store.type_filter import TypeFilter
from psched.supervisor.loaded_config import configured_application


def warn_unless_routed(chosen: Chosen, name: SectionName, store: LeaseStore, type_: str) -> None:
    """Print a warning if neither the configured application nor a live node routes the type.

    Prints nothing if the application cannot be loaded.
    """
    types = routed_types(chosen, name)
    if types is None or types.accepts(type_) or any(node.types.accepts(type_) for node in live_nodes(store)):
        return
    click.echo(f"warning: neither the configured application nor a live node routes the type {type_!r}", err=True)


def routed_types(chosen: Chosen, name: SectionName) -> TypeFilter | None:
    """Return the types that the application routes; None if there is no application, or if it cannot be loaded.

    Prints no error, because `doctor` reports why the application cannot be loaded.
    """
    settings = chosen.settings(name)
    try:
        loaded = load(configured_application(settings))
    except ConfigError:
        return None
    return loaded.of(name).types().serving(required_section(settings, name).types)
