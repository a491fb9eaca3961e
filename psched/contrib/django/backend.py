"""The backend for Django's tasks. It enqueues `@task` functions as tasks of psched's queue."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from inspect import signature
from traceback import format_exception
from typing import Any

from django.apps import apps
from django.conf import ENVIRONMENT_VARIABLE, settings
from django.core.checks import CheckMessage, Error
from django.db import DEFAULT_DB_ALIAS, transaction
from django.utils import timezone
from django.utils.module_loading import import_string

from psched.application.task_function import uuid7
from psched.contrib.django import clients, configuration
from psched.contrib.django.django_tasks_compat import (
    BaseTaskBackend,
    InvalidTask,
    Task,
    TaskError,
    TaskResult,
    TaskResultDoesNotExist,
    TaskResultStatus,
    task_enqueued,
)
from psched.error_messages import did_you_mean, shown
from psched.errors import NotFoundError
from psched.model import TaskRow, TaskStatus
from psched.payload import encode
from psched.retry_wait import Backoff, check_attempts

__all__ = ["PschedBackend"]

_STATUSES: dict[TaskStatus, TaskResultStatus] = {
    "waiting": TaskResultStatus.READY,
    "running": TaskResultStatus.RUNNING,
    "finished": TaskResultStatus.SUCCESSFUL,
    "failed": TaskResultStatus.FAILED,
    "cancelled": TaskResultStatus.FAILED,
}
_OPTIONS = ("max_attempts", "on_commit", "retry_wait")
_LAST_LINE = re.compile(r"^((?:\w+\.)*(\w+))(?::|$)", re.MULTILINE)
"""A line of a traceback that begins with the full name of an exception. The second group is the name of its class."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PschedTask(Task):  # type: ignore[type-arg]  # Django's own class is not generic
    """A task of Django with two more arguments of `@task`.

    `max_attempts`: the task fails for good if this many attempts fail. `retry_wait`: seconds before the next attempt,
    or `psched.backoff(...)`. If one of them is None, the OPTIONS of the backend apply.
    """

    max_attempts: int | None = None
    retry_wait: float | Mapping[str, Any] | Backoff | None = None


class PschedBackend(BaseTaskBackend):
    """Enqueues to the queue that PSCHED configures.

    OPTIONS may have these keys:

    - `max_attempts`: the default is 1.
    - `retry_wait`: the default is the value in PSCHED.
    - `on_commit`: whether to enqueue a task only after the transaction has committed. If False, it is enqueued within
      the transaction. The default is False if the queue is in a database of DATABASES, otherwise True.
    """

    task_class = PschedTask
    supports_defer = True
    supports_async_task = True
    supports_get_result = True
    supports_priority = True

    def check(self, **kwargs: Any) -> list[CheckMessage]:
        """Report OPTIONS that cannot be used."""
        problem = _problem(self.options)
        return [Error(f"TASKS[{self.alias!r}]: OPTIONS: {problem}", id="psched.E003")] if problem else []

    def validate_task(self, task: Task[..., Any]) -> None:
        """Raise InvalidTask for a task that the backend cannot run."""
        if not isinstance(task, Task):
            raise InvalidTask(
                f"{task!r} is a task of the package django_tasks; on Django 6 write: from django.tasks import task"
            )
        super().validate_task(task)
        module = task.module_path.rpartition(".")[0]
        if not belongs_to_project(module):
            remedy = "workers import only modules of installed apps; add its app to INSTALLED_APPS"
            raise InvalidTask(f"{task.module_path}: {module} belongs to no app of INSTALLED_APPS: {remedy}")
        problem = _problem({name: getattr(task, name, None) for name in ("max_attempts", "retry_wait")})
        if problem:
            raise InvalidTask(f"{task.module_path}: {problem}")

    def enqueue(self, task: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Enqueue a task.

        Raises:
            InvalidTask: the backend cannot run the task.
            TypeError: the function cannot be called with these arguments, or an argument cannot be JSON.
            ValueError: an argument is wrong.
            ConfigError: PSCHED is wrong, or a table is missing.

        Errors of `django.db` are raised, too.
        """
        self.validate_task(task)
        self._check_arguments(task, args, kwargs)
        result: TaskResult[..., Any] = TaskResult(
            task=task,
            id=uuid7(),
            status=TaskResultStatus.READY,
            enqueued_at=timezone.now(),
            started_at=None,
            finished_at=None,
            last_attempted_at=None,
            args=list(args),
            kwargs=dict(kwargs),
            backend=self.alias,
            errors=[],
            worker_ids=[],
        )
        alias = configuration.alias_of("queue")
        if self.options.get("on_commit", alias is None):
            transaction.on_commit(partial(self._submit, result), using=alias or DEFAULT_DB_ALIAS)
        else:
            self._submit(result)
        return result

    def get_result(self, result_id: str) -> TaskResult[..., Any]:
        """Return the result of the task with this id.

        Raises:
            TaskResultDoesNotExist: there is no such task, or the task was deleted after `retention_time`.
            ImportError: the function of the task cannot be imported.
        """
        try:
            with clients.django_errors("queue"):
                row = clients.queue()[result_id].metadata()
        except (NotFoundError, ValueError):
            raise TaskResultDoesNotExist(result_id) from None
        task = task_of(row.type)
        if task is None:
            raise TaskResultDoesNotExist(result_id)
        return result_of(row, task)

    def _check_arguments(self, task: Task[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        context = (None,) if task.takes_context else ()
        try:
            signature(task.func).bind(*context, *args, **kwargs)
        except TypeError as error:
            raise TypeError(f"{task.module_path}: {error}") from None
        try:
            encode({"args": list(args), "kwargs": dict(kwargs)})
        except ValueError as error:
            raise TypeError(f"{task.module_path}: {error}") from None

    def _submit(self, result: TaskResult[..., Any]) -> None:
        task = result.task
        with clients.django_errors("queue"):
            clients.queue().submit(
                result.id,
                type_of(task),
                {"args": result.args, "kwargs": result.kwargs},
                run_at=None if task.run_after is None else task.run_after.timestamp(),
                priority=task.priority,
            )
        task_enqueued.send(type(self), task_result=result)


def type_of(task: Task[..., Any]) -> str:
    """Return psched's type for a task: the queue and the function, as in `default:polls.tasks.remind`."""
    return f"{task.queue_name}:{task.module_path}"


def task_of(type: str) -> Task[..., Any] | None:
    """Return the task for a type; None if the type does not belong to a task of Django. Raises ImportError.

    Only modules of the project are imported, because any user who can write to the table can choose the type.
    """
    queue_name, _, path = type.rpartition(":")
    if not queue_name or "." not in path:
        return None
    module = path.rpartition(".")[0]
    if not belongs_to_project(module):
        raise ImportError(f"{module} belongs to no app of INSTALLED_APPS")
    found = import_string(path)
    return found.using(queue_name=queue_name) if isinstance(found, Task) else None


def belongs_to_project(module: str) -> bool:
    """Return whether `module` is part of an installed app, or of the package with the settings."""
    packages = {app.name for app in apps.get_app_configs()}
    packages.add(os.environ.get(ENVIRONMENT_VARIABLE, "").partition(".")[0])
    return any(module == package or module.startswith(f"{package}.") for package in packages)


def result_of(row: TaskRow, task: Task[..., Any]) -> TaskResult[..., Any]:
    """Return a row as a TaskResult of Django. psched keeps only the last error and the last worker."""
    result: TaskResult[..., Any] = TaskResult(
        task=task.using(priority=row.priority, run_after=_time(row.run_at) if row.run_at != row.created_at else None),
        id=row.key,
        status=_STATUSES[row.status],
        enqueued_at=_time(row.created_at),
        started_at=None,
        finished_at=_time(row.finished_at),
        last_attempted_at=None,
        args=row.data.get("args", []),
        kwargs=row.data.get("kwargs", {}),
        backend=task.backend,
        errors=_errors(row),
        worker_ids=[row.node or ""] * row.attempts,
    )
    # the class is frozen; Django's own backends set attributes in the same way
    object.__setattr__(result, "_return_value", row.result)
    return result


def _time(seconds: float | None) -> datetime | None:
    if seconds is None:
        return None
    moment = datetime.fromtimestamp(seconds, UTC)
    return moment if settings.USE_TZ else timezone.make_naive(moment)


def _errors(row: TaskRow) -> list[TaskError]:
    if row.status == "cancelled":
        return [TaskError(exception_class_path="psched.errors.CancelRequestedError", traceback="cancelled")]
    if row.last_error is None:
        return []
    name = row.last_error.partition("(")[0]
    paths = [path for path, last in _LAST_LINE.findall(row.last_error) if last == name]
    path = paths[-1] if paths else "psched.errors.TaskError"
    if "." not in path:
        path = f"builtins.{path}"
    return [TaskError(exception_class_path=path, traceback=row.last_error.partition("\n")[2] or row.last_error)]


def error_of(error: BaseException) -> TaskError:
    """Return an exception in the form in which Django stores it."""
    kind = type(error)
    trace = "".join(format_exception(error))
    return TaskError(exception_class_path=f"{kind.__module__}.{kind.__qualname__}", traceback=trace)


def _problem(options: Mapping[str, Any]) -> str | None:
    """Return an error message if the options cannot be used. Return None if they can."""
    for name in options:
        if name not in _OPTIONS:
            hint = did_you_mean(name, _OPTIONS, more_follows=True)
            return f"unknown option {name!r}{hint}; expected one of {', '.join(_OPTIONS)}"
    if not isinstance(options.get("on_commit", False), bool):
        return f"on_commit must be True or False, got {shown(options['on_commit'])}"
    try:
        if options.get("max_attempts") is not None:
            check_attempts("max_attempts", options["max_attempts"])
        if options.get("retry_wait") is not None:
            Backoff.of(options["retry_wait"])
    except ValueError as error:
        return str(error)
    return None
