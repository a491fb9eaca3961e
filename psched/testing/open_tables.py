"""The tables of one test: a queue and schedules, and the application that runs their rows."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from psched.application import App, Application, ApplicationSpec, load
from psched.config import Section, Settings, coerce
from psched.errors import ConfigError
from psched.queue.queue import Queue, open_queue
from psched.schedules.collection import ScheduleCollection, open_schedules
from psched.store import holder_name

Config = Settings | Mapping[str, Any] | str | Path

Table = TypeVar("Table", ScheduleCollection, Queue)

NAME_APP = "name the App in the fixture psched_app, or as psched_app in pytest's configuration (module:NAME)"

_KEPT = "3650d"


def config_of(url: str) -> dict[str, Any]:
    """Return a configuration for tests. With it, finished tasks are kept, however far a test moves the clock."""
    return {"type": "rdb", "url": url, "schedules": {}, "queue": {"retention_time": _KEPT}}


class OpenTables:
    """The queue and the schedules of one test. They are opened at their first use, and must be empty then."""

    def __init__(self, config: Config, application: Iterable[object] | None) -> None:
        """`application`: Apps and Dispatch classes, or their names (`module:NAME`). None: all loaded Apps."""
        self.settings = coerce(config, None)
        self._names = None if application is None else tuple(application)
        self._application: Application | None = None
        self._queue: Queue | None = None
        self._schedules: ScheduleCollection | None = None

    @property
    def application(self) -> Application:
        """The application that runs the rows. Raises ConfigError."""
        if self._application is None:
            names = _loaded_apps() if self._names is None else self._names
            if not names:
                raise ConfigError(f"no App is loaded to run tasks; {NAME_APP}")
            self._application = load(ApplicationSpec(names))
        return self._application

    @property
    def clock_refusal(self) -> str | None:
        """Why a test cannot set the clock of these tables; None if it can."""
        kinds = sorted({section.type for section in self.settings.sections} - {"rdb"})
        return f"psched_clock sets the clock of tables of type: rdb, not of type: {kinds[0]}" if kinds else None

    @property
    def queue(self) -> Queue:
        """The queue. Raises ConfigError."""
        if self._queue is None:
            self._queue = _made_empty("psched_queue", self.open_queue("tests"), self.settings.queue)
        return self._queue

    @property
    def schedules(self) -> ScheduleCollection:
        """The schedules. Raises ConfigError."""
        if self._schedules is None:
            section = self.settings.schedules
            if section is None:
                raise ConfigError("psched_schedules: psched_config has no section `schedules:`; add it")
            self._schedules = _made_empty("psched_schedules", open_schedules(section, _holder("tests")), section)
            if self.settings.queue is not None:
                self._schedules.submit_to(self.queue.store)
        return self._schedules

    @property
    def opened(self) -> list[ScheduleCollection | Queue]:
        """The tables that the test has used."""
        return [table for table in (self._schedules, self._queue) if table is not None]

    def open_queue(self, role: str) -> Queue:
        """Return another client of the queue. It counts as another worker. Raises ConfigError.

        `role`: distinguishes the names of such workers.
        """
        section = self.settings.queue
        if section is None:
            raise ConfigError("psched_queue: psched_config has no section `queue:`; add it")
        return open_queue(section, _holder(role))

    def empty(self) -> None:
        for table in self.opened:
            keys = [row.key for row in table.list()]
            for key in keys:
                table.store.delete(key)

    def close(self) -> None:
        """Delete all rows, and close the connections and the event loop of this thread."""
        self.empty()
        for table in self.opened:
            table.close()
        if self._application is not None:
            self._application.close()


def _loaded_apps() -> tuple[App, ...]:
    """Return the Apps that are variables of loaded modules, in the order in which these modules were imported."""
    values = [value for module in list(sys.modules.values()) for value in list(vars(module).values())]
    return tuple(dict.fromkeys(value for value in values if type(value) is App))


def _holder(role: str) -> str:
    return holder_name(f"{os.getpid()}/{role}")


def _made_empty(fixture: str, table: Table, section: Section | None) -> Table:
    """Create the table if it is missing, and return it. Raises ConfigError if it has rows."""
    table.store.create_tables()
    row = next(iter(table.list()), None)
    if row is None or section is None:
        return table
    table.close()
    raise ConfigError(
        f"{fixture}: the table {section.table!r} of {section.masked_url} has rows, such as {row.key!r}; the test "
        "would run and delete them; let psched_config name a table for tests only"
    )
