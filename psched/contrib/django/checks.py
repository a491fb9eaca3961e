"""System checks: whether the settings can be used, and whether the tables exist."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django.core.checks import CheckMessage, Error, Tags, Warning, register  # noqa: A004 – Django's names
from django.db import connections, router
from django.db.migrations.recorder import MigrationRecorder

from psched.contrib.django import clients, configuration
from psched.errors import ConfigError


@register
def check_settings(app_configs: Any, **options: Any) -> list[CheckMessage]:
    """Report each fault of PSCHED."""
    try:
        configuration.settings()
    except ConfigError as error:
        return [Error(line, id="psched.E001") for line in str(error).splitlines()]
    alias = configuration.database_alias()
    found: list[CheckMessage] = []
    if alias is not None and not router.allow_migrate(alias, "psched"):
        problem = f"PSCHED: no router lets the app psched migrate on {alias!r}, so `migrate` creates no tables there"
        found.append(Warning(problem, hint=f"Let allow_migrate return True for {alias!r}.", id="psched.W001"))
    if alias is not None and connections[alias].settings_dict["NAME"] in ("", ":memory:"):
        problem = f"PSCHED: the database {alias!r} is in memory, so only this process can run the tasks"
        found.append(Warning(problem, hint="Give the database a file.", id="psched.W002"))
    return found


@register(Tags.database)
def check_tables(app_configs: Any, databases: Sequence[str] | None = None, **options: Any) -> list[CheckMessage]:
    """Report tables that the migration created and that can no longer be used.

    `migrate` reports missing migrations.
    """
    try:
        settings, alias = configuration.settings(), configuration.database_alias()
        if alias not in (databases or ()) or ("psched", "0001_initial") not in _applied(alias):
            return []
        for name, _ in settings.named_sections:
            with clients.django_errors(name):
                clients.of(name).store.check_tables()
    except ConfigError as error:
        return [Error(str(error), id="psched.E002")]
    return []


def _applied(alias: str | None) -> Any:
    return MigrationRecorder(connections[str(alias)]).applied_migrations()
