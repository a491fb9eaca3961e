"""The base class of `ScheduleCollection` and `Queue`, and the function that opens a table."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Sequence
from typing import Self, TypeVar

from psched.acquisition.task_source import TaskSource
from psched.async_methods import async_twin
from psched.config import Section, SectionName, Settings, attach_listeners
from psched.error_messages import shown
from psched.errors import ConfigError
from psched.keys import check_key
from psched.model import LeaseTimes
from psched.settlement_base import Settlement
from psched.store import LeaseStore, holder_name
from psched.task import Task

Opened = TypeVar("Opened", bound="TableBase")


class TableBase:
    """Base class of `ScheduleCollection` and `Queue`. It acquires rows of one table as tasks, and is a context manager.

    Safe to use from several threads, but not across a fork.
    """

    def __init__(self, store: LeaseStore, settlement: Settlement, times: LeaseTimes) -> None:
        self.store = store
        self.source = TaskSource(store, settlement, times)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.aclose()

    def poll(self, types: Collection[str] | None = None) -> Task | None:
        """Acquire the row that is due first. Return None if no row is due, or if `max_running` delays all due rows.

        The lease lasts `alive_time`. A caller that needs more time calls `task.heartbeat()`. `types`: acquire only rows
        of these types. On `rdb_compat`, `types` raises NotSupportedError.
        """
        tasks = self.poll_multi(1, types)
        return tasks[0] if tasks else None

    def poll_multi(self, max_acquire: int = 1, types: Collection[str] | None = None) -> Sequence[Task]:
        """Acquire up to `max_acquire` due rows, in the order in which to run them. The rest is as for `poll`."""
        if types is not None and (isinstance(types, str) or not isinstance(types, Collection)):
            raise ValueError(f"types must be a collection of types like ['report'], got {shown(types)}")
        for each in () if types is None else types:
            check_key(each, "type")
        return self.source.poll_multi(max_acquire, types)

    def close(self) -> None:
        """Close all connections to the database. The next call of another method connects again."""
        self.store.close()

    aclose = async_twin(close)


def open_table(name: SectionName, settings: Settings, open_section: Callable[[Section, str], Opened]) -> Opened:
    """Open the table of a configured section. Telemetry listeners see the tasks that are submitted to the table.

    Raises ConfigError if the section or the table is missing.
    """
    section = dict(settings.named_sections).get(name)
    if section is None:
        raise ConfigError(f"the configuration has no section `{name}:`; add it, with `type:` and `url:`")
    attach_listeners(settings)
    opened = open_section(section, holder_name(str(os.getpid())))
    try:
        opened.store.check_tables()
    except BaseException as error:
        if isinstance(error, Exception) and opened.store.is_unavailable(error):
            error.add_note(
                f"{name}: the database {section.masked_url} is not available; does it run, and is `url:` right?"
            )
        opened.close()
        raise
    return opened
