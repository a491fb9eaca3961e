"""Opens the schedules or the queue of the configuration for a command, and parses the arguments KEY and DATA."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import wraps
from typing import Any

import click

from psched.cli.errors import database_errors
from psched.cli.options import Chosen, common_options
from psched.config import Section, SectionName, Settings
from psched.errors import ConfigError
from psched.payload import long_number
from psched.queue.queue import Queue, open_queue
from psched.schedules.collection import ScheduleCollection, open_schedules
from psched.store import holder_name

_OPEN: dict[SectionName, Callable[[Section, str], ScheduleCollection | Queue]] = {
    "schedules": open_schedules,
    "queue": open_queue,
}


def required_section(settings: Settings, name: SectionName) -> Section:
    section = dict(settings.named_sections).get(name)
    if section is None:
        raise ConfigError(f"{settings.path}:{settings.environment}: there is no section `{name}:`; add one")
    return section


@contextmanager
def opened_section(chosen: Chosen, name: SectionName, check: bool = True) -> Iterator[Any]:
    """Raises ConfigError, and within the context DatabaseError. `check`: the tables must exist."""
    section = required_section(chosen.settings(name), name)
    holder = holder_name(f"psched-{os.getpid()}")
    with _OPEN[name](section, holder) as collection, database_errors(section, collection.store):
        if check:
            collection.store.check_tables()
        yield collection


def opened(chosen: Chosen) -> AbstractContextManager[ScheduleCollection]:
    return opened_section(chosen, "schedules")


def opened_queue(chosen: Chosen) -> AbstractContextManager[Queue]:
    return opened_section(chosen, "queue")


def key_command(name: SectionName) -> Callable[[Callable[[Any], None]], click.Command]:
    """Make a command with the argument KEY of a function, which gets a reference to that row of the section."""

    def decorate(function: Callable[[Any], None]) -> click.Command:
        @click.command()
        @click.argument("key")
        @common_options()
        @wraps(function)
        def command(chosen: Chosen, key: str) -> None:
            with opened_section(chosen, name) as collection:
                function(collection[key])

        return command

    return decorate


def parse_data(text: str) -> dict[str, Any]:
    """Return the JSON object in `text`. Raises ValueError with the mistake and its position."""
    try:
        data = json.loads(text, parse_constant=_refuse, object_pairs_hook=_unique)
    except json.JSONDecodeError as error:
        found = text[error.pos : error.pos + 20] or "the end"
        raise ValueError(f"data is not valid JSON: {error.msg} at character {error.pos + 1} ({found})") from error
    except RecursionError:
        raise ValueError("data is not usable: nested too deeply") from None
    except ValueError as error:
        problem = long_number(text)
        raise ValueError(str(error) if problem is None else f"data is not usable: {problem}") from None
    if not isinstance(data, dict):
        raise ValueError(f'data must be a JSON object like {{"key": "value"}}, got {text[:40]}')
    return data


def _refuse(constant: str) -> None:
    raise ValueError(f"data is not valid JSON: {constant} is no JSON number; give a finite number, or null")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    data = dict(pairs)
    if len(data) < len(pairs):
        twice, _ = Counter(name for name, _ in pairs).most_common(1)[0]
        raise ValueError(f"data holds the key {twice!r} twice; leave one of them out")
    return data
