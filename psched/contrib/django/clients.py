"""Returns the queue and the schedules that PSCHED configures, for views, commands, tests and handlers in Django."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache, partial
from typing import Any

from django.core.signals import setting_changed
from django.db import connections
from sqlalchemy.exc import DBAPIError

from psched.config import SectionName, attach_listeners
from psched.contrib.django import configuration
from psched.contrib.django.django_connection import DjangoDatabase
from psched.errors import ConfigError
from psched.queue.queue import Queue, open_queue
from psched.schedules.collection import ScheduleCollection, open_schedules
from psched.store import holder_name

__all__ = ["queue", "schedules"]

_OPEN: dict[SectionName, Any] = {"schedules": open_schedules, "queue": open_queue}


def queue() -> Queue:
    """Return the queue.

    If the queue is in a database of DATABASES, its statements join the transaction of Django's connection.

    Raises ConfigError.
    """
    found: Queue = of("queue")
    return found


def schedules() -> ScheduleCollection:
    """Return the schedules. Their statements join Django's transaction, as those of `queue` do. Raises ConfigError."""
    found: ScheduleCollection = of("schedules")
    return found


@contextmanager
def django_errors(section: SectionName) -> Iterator[None]:
    """Raise a driver's errors as errors of `django.db`, as Django does. Raise ConfigError for a missing table."""
    try:
        yield
    except DBAPIError as error:
        alias = configuration.alias_of(section)
        if alias is None or error.orig is None:
            raise
        if of(section).store._database.dialect.is_missing_table(error):
            command = f"manage.py migrate --database {alias}"
            raise ConfigError(f"psched's tables do not exist in the database {alias!r}; run: {command}") from error
        with connections[alias].wrap_database_errors:
            raise error.orig from error


def of(section: SectionName) -> Any:
    """Return the queue or the schedules. Raises ConfigError."""
    alias = configuration.alias_of(section)
    return _opened(section, alias, None if alias is None else str(connections[alias].settings_dict["NAME"]))


@cache
def _opened(name: SectionName, alias: str | None, database_name: str | None) -> Any:
    """Return the open queue or the open schedules; cached for each combination of arguments.

    `database_name`: distinguishes the databases of tests from others with the same alias.
    """
    settings = configuration.settings()
    section = dict(settings.named_sections).get(name)
    if section is None:
        raise ConfigError(f'PSCHED: the section {name!r} is missing; add "{name}": {{}}')
    attach_listeners(settings)
    made = None if alias is None else partial(DjangoDatabase, alias=alias)
    return _OPEN[name](section, holder_name(str(os.getpid())), database=made)


def _forget(*, setting: str, **_: Any) -> None:
    if setting in ("PSCHED", "DATABASES"):
        _opened.cache_clear()


setting_changed.connect(_forget)
