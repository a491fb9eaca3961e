"""Opens the schedules or the queue of the configuration for a command, and parses the DATA argument."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, TypeVar

from psched.cli.errors import database_errors
from psched.cli.options import Chosen
from psched.config import Reader, Section, Settings
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
def _opened(
    chosen: Chosen, name: Reader, open_section: Callable[[Section, str], Opened], check: bool
) -> Iterator[Opened]:
    section = required_section(chosen.settings(name), name)
    holder = holder_name(f"psched-{os.getpid()}")
    with open_section(section, holder) as collection, database_errors(section, collection.store):
        if check:
            collection.store.check_tables()
        yield collection


def opened(chosen: Chosen, check: bool = True) -> AbstractContextManager[ScheduleCollection]:
    """Raises ConfigError, and within the context DatabaseError. `check`: the tables must exist."""
    return _opened(chosen, "schedules", open_schedules, check)


def opened_queue(chosen: Chosen, check: bool = True) -> AbstractContextManager[Queue]:
    return _opened(chosen, "queue", open_queue, check)


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
