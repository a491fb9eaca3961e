"""psched: distributed cron, and a queue, on the database a team already has.

with psched.open("etc/psched.yml") as schedules:
    schedules.add("report", "report.daily", cron="0 7 * * *", timezone="Europe/Berlin")
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from psched.application.app import App
from psched.config import Settings, coerce
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
from psched.model import NewSchedule, NewTask, Policy, Rule, ScheduleRow, TaskRow
from psched.queue.queue import Queue, QueuedTask
from psched.queue.queue import open_queue as _open_queue
from psched.scheduler import Scheduler, create_scheduler
from psched.schedules.collection import Schedule, ScheduleCollection, open_schedules
from psched.store import holder_name
from psched.task import Task

__all__ = [
    "AlreadyExistsError",
    "AlreadyFinishedError",
    "App",
    "CancelRequestedError",
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
    "Scheduler",
    "Task",
    "TaskError",
    "TaskRow",
    "create_scheduler",
    "open",
    "open_queue",
]


def open(config: Settings | Mapping[str, Any] | str | Path, environment: str | None = None) -> ScheduleCollection:  # noqa: A001
    """Open the schedules that `config` names: settings, one environment as a dict, or the path of a YAML file.

    `environment` of the file defaults to $PSCHED_ENV, then `development`.

    Raises:
        ConfigError: the configuration cannot be used, or the table is missing (`psched init` makes it).
    """
    section = coerce(config, environment).schedules
    if section is None:
        raise ConfigError("the configuration has no schedules: give it type and url, or a section `schedules:`")
    collection = open_schedules(section, holder_name(str(os.getpid())))
    try:
        collection.store.check_tables()
    except BaseException:
        collection.close()
        raise
    return collection


def open_queue(config: Settings | Mapping[str, Any] | str | Path, environment: str | None = None) -> Queue:
    """Open the queue that `config` names: settings, one environment as a dict, or the path of a YAML file.

    `environment` of the file defaults to $PSCHED_ENV, then `development`.

    Raises:
        ConfigError: the configuration cannot be used, or the table is missing (`psched queue init` makes it).
    """
    section = coerce(config, environment, reader="queue").queue
    if section is None:
        raise ConfigError("the configuration has no queue: give it type and url, or a section `queue:`")
    queue = _open_queue(section, holder_name(str(os.getpid())))
    try:
        queue.store.check_tables()
    except BaseException:
        queue.close()
        raise
    return queue
