"""Opens the schedules or the queue of the configuration for a command, and parses the DATA argument."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from psched.cli.errors import database_errors
from psched.cli.options import Chosen
from psched.config import Section, Settings
from psched.errors import ConfigError
from psched.payload import long_number
from psched.queue.queue import Queue, open_queue
from psched.schedules.collection import ScheduleCollection, open_schedules
from psched.store import holder_name

Opened = TypeVar("Opened", ScheduleCollection, Queue)


def required_section(settings: Settings, name: str) -> Section:
    section = dict(settings.named_sections).get(name)
    if section is None:
        raise ConfigError(f"{settings.path}:{settings.environment}: there is no section `{name}:`; add one")
    return section


@contextmanager
def opened(chosen: Chosen, check: bool = True) -> Iterator[ScheduleCollection]:
    """Open the configured schedules; `check`: their tables must exist.

    Raises ConfigError, and within the context DatabaseError for the driver's errors.
    """
    section = required_section(chosen.settings(), "schedules")
    with _usable(open_schedules(section, _holder()), section, check) as schedules:
        yield schedules


@contextmanager
def opened_queue(chosen: Chosen, check: bool = True) -> Iterator[Queue]:
    section = required_section(chosen.settings("queue"), "queue")
    with _usable(open_queue(section, _holder()), section, check) as queue:
        yield queue


@contextmanager
def _usable(collection: Opened, section: Section, check: bool) -> Iterator[Opened]:
    with collection, database_errors(section, collection.store):
        if check:
            collection.store.check_tables()
        yield collection


def _holder() -> str:
    return holder_name(f"psched-{os.getpid()}")


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
