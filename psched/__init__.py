"""psched: distributed cron and a task queue on the database that a team already has.

    with psched.open("etc/psched.yml") as schedules:
        schedules.add("report", "report.daily", cron="0 7 * * *", timezone="Europe/Berlin")

`import psched` is quick and loads no database library: most names are imported on first use.
"""

from __future__ import annotations

from importlib import import_module

from psched.errors import (
    AlreadyExistsError,
    AlreadyFinishedError,
    ArgumentsError,
    CancelRequestedError,
    ConfigError,
    GracefulProcessStopError,
    IdempotentAlreadyExistsError,
    IdempotentAlreadyFinishedError,
    IdempotentError,
    IdempotentNotFoundError,
    ImmediateProcessStopError,
    NoResultError,
    NotFoundError,
    NotSupportedError,
    OutcomeUnknownError,
    PreemptedError,
    ProcessStopError,
    ResultTimeoutError,
    ScheduleError,
    TaskCancelledError,
    TaskError,
    TaskFailedError,
    UnstorableResultError,
)

TYPE_CHECKING = False  # type checkers treat it as true; `import typing` would double the import time
if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path
    from typing import Any

    from psched.application.app import App
    from psched.application.default_queue import Config
    from psched.application.task_function import TaskFunction
    from psched.config import Settings
    from psched.model import (
        CatchUp,
        NewSchedule,
        NewTask,
        Overlap,
        Policy,
        Progress,
        Rule,
        ScheduleRow,
        ScheduleStatus,
        TaskRow,
        TaskStatus,
    )
    from psched.queue.queue import Queue, QueuedTask
    from psched.retry_wait import backoff
    from psched.scheduler import Scheduler, create_scheduler
    from psched.schedules.collection import ScheduleCollection
    from psched.schedules.schedule_handle import Schedule
    from psched.task import Task

__all__ = [
    "AlreadyExistsError",
    "AlreadyFinishedError",
    "App",
    "ArgumentsError",
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
    "NoResultError",
    "NotFoundError",
    "NotSupportedError",
    "OutcomeUnknownError",
    "Overlap",
    "Policy",
    "PreemptedError",
    "ProcessStopError",
    "Progress",
    "Queue",
    "QueuedTask",
    "ResultTimeoutError",
    "Rule",
    "Schedule",
    "ScheduleCollection",
    "ScheduleError",
    "ScheduleRow",
    "ScheduleStatus",
    "Scheduler",
    "Task",
    "TaskCancelledError",
    "TaskError",
    "TaskFailedError",
    "TaskFunction",
    "TaskRow",
    "TaskStatus",
    "UnstorableResultError",
    "backoff",
    "configure",
    "create_scheduler",
    "open",
    "open_queue",
]

_LAZY = {
    "psched.application.app": ("App",),
    "psched.application.task_function": ("TaskFunction",),
    "psched.model": (
        "CatchUp",
        "NewSchedule",
        "NewTask",
        "Overlap",
        "Policy",
        "Progress",
        "Rule",
        "ScheduleRow",
        "ScheduleStatus",
        "TaskRow",
        "TaskStatus",
    ),
    "psched.queue.queue": ("Queue", "QueuedTask"),
    "psched.retry_wait": ("backoff",),
    "psched.scheduler": ("Scheduler", "create_scheduler"),
    "psched.schedules.collection": ("ScheduleCollection",),
    "psched.schedules.schedule_handle": ("Schedule",),
    "psched.task": ("Task",),
}
"""Names that are imported on first use, grouped by module."""


def __getattr__(name: str) -> Any:
    for module, names in _LAZY.items():
        if name in names:
            value = globals()[name] = getattr(import_module(module), name)
            return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def open(config: Settings | Mapping[str, Any] | str | Path, environment: str | None = None) -> ScheduleCollection:  # noqa: A001
    """Open the schedules that `config` describes.

    `config`: settings, one environment as a dict, or the path of a YAML file. `environment`: which environment of the
    file to use; the default is $PSCHED_ENV, then $RAILS_ENV, then `development`.

    Raises:
        ConfigError: the configuration is not valid, or the table is missing (`psched init` creates it).
    """
    from psched.acquisition.table_base import open_table
    from psched.config import coerce
    from psched.schedules.collection import open_schedules

    return open_table("schedules", coerce(config, environment), open_schedules)


def open_queue(config: Settings | Mapping[str, Any] | str | Path, environment: str | None = None) -> Queue:
    """Open the queue that `config` describes.

    `config`: settings, one environment as a dict, or the path of a YAML file. `environment`: which environment of the
    file to use; the default is $PSCHED_ENV, then $RAILS_ENV, then `development`.

    Raises:
        ConfigError: the configuration is not valid, or the table is missing (`psched queue init` creates it).
    """
    from psched.acquisition.table_base import open_table
    from psched.config import coerce
    from psched.queue.queue import open_queue

    return open_table("queue", coerce(config, environment, reader="queue"), open_queue)


def configure(config: Config | Queue | Scheduler | None, environment: str | None = None) -> None:
    """Set the default queue. Functions submit to it if their app has no queue.

    `config`: a configuration as for `open_queue`, an open queue, or an embedded scheduler. None removes the default
    queue. If `config` is a configuration, its queue is opened at the first submit. Raises ConfigError.
    """
    from psched.application.default_queue import default_queue

    default_queue.configure(config, environment)
