"""Opens a section of the configuration, the schedules or the queue, for a command."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial, wraps
from itertools import islice
from typing import Any

import click

from psched.cli.errors import database_errors
from psched.cli.options import Chosen, common_options
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

_MOST_COMPLETIONS = 1000


def required_section(settings: Settings, name: SectionName) -> Section:
    section = dict(settings.named_sections).get(name)
    if section is None:
        raise ConfigError(f"{settings.path}:{settings.environment}: there is no section `{name}:`; add one")
    return section


@contextmanager
def opened_section(chosen: Chosen, name: SectionName, check: bool = True, **access: bool) -> Iterator[Any]:
    """Raises ConfigError, and within the context DatabaseError. `check`: the tables must exist.

    `access`: `read_only` and `long_reads`, as in `StoreSettings`.
    """
    with opened_as(required_section(chosen.settings(name), name), name, check, **access) as collection:
        yield collection


@contextmanager
def opened_as(section: Section, name: SectionName, check: bool = True, **access: bool) -> Iterator[Any]:
    """Open a section as schedules or queue, as `opened_section`."""
    holder = holder_name(f"psched-{os.getpid()}")
    with _OPEN[name](section, holder, **access) as collection, database_errors(section, collection.store):
        if check:
            collection.store.check_tables()
        yield collection


def opened(chosen: Chosen) -> AbstractContextManager[ScheduleCollection]:
    return opened_section(chosen, "schedules")


@contextmanager
def listed_schedules(chosen: Chosen) -> Iterator[ScheduleInsight]:
    """Open the schedules for lists of any length. Raises as `opened_section`."""
    with opened_section(chosen, "schedules", read_only=True, long_reads=True) as schedules:
        yield ScheduleInsight(schedules)


@contextmanager
def listed_tasks(chosen: Chosen) -> Iterator[TaskInsight]:
    """Open the queue for lists of any length. Raises as `opened_section`."""
    with opened_section(chosen, "queue", read_only=True, long_reads=True) as tasks:
        yield TaskInsight(tasks)


def opened_queue(chosen: Chosen) -> AbstractContextManager[Queue]:
    return opened_section(chosen, "queue")


def completed_keys(name: SectionName) -> Callable[[click.Context, click.Parameter, str], list[str]]:
    """Return what completes a key in the shell: the keys of the section that begin with what is typed."""
    return partial(_completions, name, lambda row: row.key)


def completed_types(name: SectionName) -> Callable[[click.Context, click.Parameter, str], list[str]]:
    """Return what completes a type in the shell: those of the first rows of the section."""
    return partial(_completions, name, lambda row: row.type)


def _completions(
    name: SectionName,
    word: Callable[[Any], str | None],
    context: click.Context,
    parameter: click.Parameter,
    incomplete: str,
) -> list[str]:
    """Return at most 1,000 words. Nothing may be printed at a prompt: without a database there are no words."""
    prefix = incomplete if parameter.name == "key" and incomplete else None
    try:
        with opened_section(context.find_object(Chosen) or Chosen(), name, read_only=True) as collection:
            words = {word(row) for row in islice(collection.list(prefix=prefix), _MOST_COMPLETIONS)}
    except Exception:  # noqa: BLE001 – whatever is wrong, the command itself tells it
        return []
    return sorted(each for each in words if each is not None and each.startswith(incomplete))


def key_command(name: SectionName) -> Callable[[Callable[[Any], None]], click.Command]:
    """Make a command with the argument KEY of a function, which gets a reference to that row of the section."""

    def decorate(function: Callable[[Any], None]) -> click.Command:
        @click.command()
        @click.argument("key", shell_complete=completed_keys(name))
        @common_options()
        @wraps(function)
        def command(chosen: Chosen, key: str) -> None:
            with opened_section(chosen, name) as collection:
                function(collection[key])

        return command

    return decorate
