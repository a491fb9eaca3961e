"""psched: distributed cron, and a queue, on the database a team already has.

with psched.open("etc/psched.yml") as schedules:
    schedules.add("report", "report.daily", cron="0 7 * * *", timezone="Europe/Berlin")

Most names are imported when they are first used: `import psched` is quick and loads no database library.
"""

from __future__ import annotations

import os
from importlib import import_module

from psched.errors import (
    AlreadyExistsError,
    AlreadyFinishedError,
    CancelRequestedError,
    ConfigError,
    GracefulProcessStopError,
    IdempotentAlreadyExistsError,
    IdempotentAlreadyFinishedError,
    IdempotentError,
    IdempotentNotFoundError,
    ImmediateProcessStopError,
    NotFoundError,
    NotSupportedError,
    OutcomeUnknownError,
    PreemptedError,
    ProcessStopError,
    ScheduleError,
    TaskError,
)

TYPE_CHECKING = False  # type checkers take it as true; importing typing would double the time of `import psched`
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path
    from typing import Any, TypeVar

    from psched.application.app import App
    from psched.config import Section, Settings
    from psched.model import (
        CatchUp,
        NewSchedule,
        NewTask,
        Policy,
        Rule,
        ScheduleRow,
        ScheduleStatus,
        TaskRow,
        TaskStatus,
    )
    from psched.queue.queue import Queue, QueuedTask
    from psched.scheduler import Scheduler, create_scheduler
    from psched.schedules.collection import ScheduleCollection
    from psched.schedules.schedule import Schedule
    from psched.task import Task

    Opened = TypeVar("Opened", ScheduleCollection, Queue)

__all__ = [
    "AlreadyExistsError",
    "AlreadyFinishedError",
    "App",
    "CancelRequestedError",
    "CatchUp",
    "ConfigError",
    "GracefulProcessStopError",
    "IdempotentAlreadyExistsError",
    "IdempotentAlreadyFinishedError",
    "IdempotentError",
    "IdempotentNotFoundError",
    "ImmediateProcessStopError",
    "NewSchedule",
    "NewTask",
    "NotFoundError",
    "NotSupportedError",
    "OutcomeUnknownError",
    "Policy",
    "PreemptedError",
    "ProcessStopError",
    "Queue",
    "QueuedTask",
    "Rule",
    "Schedule",
    "ScheduleCollection",
    "ScheduleError",
    "ScheduleRow",
    "ScheduleStatus",
    "Scheduler",
    "Task",
    "TaskError",
    "TaskRow",
    "TaskStatus",
    "create_scheduler",
    "open",
    "open_queue",
]

_LAZY = {
    "psched.application.app": ("App",),
    "psched.model": (
        "CatchUp",
        "NewSchedule",
        "NewTask",
        "Policy",
        "Rule",
        "ScheduleRow",
        "ScheduleStatus",
        "TaskRow",
        "TaskStatus",
    ),
    "psched.queue.queue": ("Queue", "QueuedTask"),
    "psched.scheduler": ("Scheduler", "create_scheduler"),
    "psched.schedules.collection": ("ScheduleCollection",),
    "psched.schedules.schedule": ("Schedule",),
    "psched.task": ("Task",),
}
"""Names that are imported when they are first used, by their modules."""


def __getattr__(name: str) -> Any:
    for module, names in _LAZY.items():
        if name in names:
            value = globals()[name] = getattr(import_module(module), name)
            return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def open(config: Settings | Mapping[str, Any] | str | Path, environment: str | None = None) -> ScheduleCollection:  # noqa: A001
    """Open the schedules that `config` names: settings, one environment as a dict, or the path of a YAML file.

    `environment` of the file defaults to $PSCHED_ENV, then $RAILS_ENV, then `development`.

    Raises:
        ConfigError: the configuration cannot be used, or the table is missing (`psched init` makes it).
    """
    from psched.config import coerce
    from psched.schedules.collection import open_schedules

    return _opened("schedules", coerce(config, environment).schedules, open_schedules)


def open_queue(config: Settings | Mapping[str, Any] | str | Path, environment: str | None = None) -> Queue:
    """Open the queue that `config` names: settings, one environment as a dict, or the path of a YAML file.

    `environment` of the file defaults to $PSCHED_ENV, then $RAILS_ENV, then `development`.

    Raises:
        ConfigError: the configuration cannot be used, or the table is missing (`psched queue init` makes it).
    """
    from psched.config import coerce
    from psched.queue.queue import open_queue

    return _opened("queue", coerce(config, environment, reader="queue").queue, open_queue)


def _opened(name: str, section: Section | None, open_section: Callable[[Section, str], Opened]) -> Opened:
    from psched.store import holder_name

    if section is None:
        raise ConfigError(f"the configuration has no {name}: give it type and url, or a section `{name}:`")
    opened = open_section(section, holder_name(str(os.getpid())))
    try:
        opened.store.check_tables()
    except BaseException:
        opened.close()
        raise
    return opened
