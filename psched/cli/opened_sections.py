"""Opens a section of the configuration (schedules or queue) for a command."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from psched.cli.errors import database_errors
from psched.cli.options import Chosen
from psched.config import Section, SectionName, Settings
from psched.errors import ConfigError
from psched.insight import ScheduleInsight, TaskInsight
from psched.queue.queue import Queue, open_queue
from psched.schedules.collection import ScheduleCollection, open_schedules
from psched.store import holder_name

_OPEN: dict[SectionName, Callable[..., ScheduleCollection | Queue]] = {
    "schedules": open_schedules,
    "queue": open_queue,
}


def required_section(settings: Settings, name: SectionName) -> Section:
    section = dict(settings.named_sections).get(name)
    if section is None:
        raise ConfigError(f"{settings.path}:{settings.environment}: the section `{name}:` is missing; add it")
    return section


@contextmanager
def opened_section(chosen: Chosen, name: SectionName, check: bool = True, **access: bool) -> Iterator[Any]:
    """Open the schedules or the queue. Within the context, a driver's errors become DatabaseError. Raises ConfigError.

    `check`: require that the tables exist. `access`: `read_only` and `long_reads`, see `StoreSettings`.
    """
    with opened_as(required_section(chosen.settings(name), name), name, check, **access) as collection:
        yield collection


@contextmanager
def opened_as(section: Section, name: SectionName, check: bool = True, **access: bool) -> Iterator[Any]:
    """Open the schedules or the queue that `section` configures. Otherwise like `opened_section`."""
    holder = holder_name(f"psched-{os.getpid()}")
    with _OPEN[name](section, holder, **access) as collection, database_errors(section, collection.store):
        if check:
            collection.store.check_tables()
        yield collection


def opened(chosen: Chosen) -> AbstractContextManager[ScheduleCollection]:
    return opened_section(chosen, "schedules")


@contextmanager
def listed_schedules(chosen: Chosen) -> Iterator[ScheduleInsight]:
    """Open the schedules to read lists of any length. Raises the errors of `opened_section`."""
    with opened_section(chosen, "schedules", read_only=True, long_reads=True) as schedules:
        yield ScheduleInsight(schedules)


@contextmanager
def listed_tasks(chosen: Chosen) -> Iterator[TaskInsight]:
    """Open the queue to read lists of any length. Raises the errors of `opened_section`."""
    with opened_section(chosen, "queue", read_only=True, long_reads=True) as tasks:
        yield TaskInsight(tasks)


def opened_queue(chosen: Chosen) -> AbstractContextManager[Queue]:
    return opened_section(chosen, "queue")
