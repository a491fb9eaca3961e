"""Routes the types of Django's tasks to their functions, and runs these functions, in workers and in tests."""

from __future__ import annotations

import logging
import os
import re
import socket
from collections.abc import Awaitable, Collection
from functools import partial
from inspect import signature
from typing import Any

from django.utils import timezone

from psched.application.event_loop import EventLoops
from psched.application.handler_base import CallingHandler, DefaultDecider, HandlerFactory
from psched.application.router import Router
from psched.contrib.django.backend import PschedBackend, error_of, result_of, task_of
from psched.contrib.django.django_tasks_compat import (
    InvalidTask,
    Task,
    TaskContext,
    TaskResultStatus,
    normalize_json,
    task_backends,
    task_finished,
    task_started,
)
from psched.error_messages import one_line
from psched.errors import UnstorableResultError
from psched.model import ScheduleRow, TaskRow
from psched.retry_wait import Backoff
from psched.store.type_filter import Pattern
from psched.task import NO_RESULT
from psched.task import Task as Run

log = logging.getLogger(__name__)

_ANY_FUNCTION = r"[A-Za-z_]\w*(\.\w+)+$"


def psched_backends() -> list[PschedBackend]:
    """Return the backends of TASKS that enqueue to psched."""
    return [backend for backend in task_backends.all() if isinstance(backend, PschedBackend)]


class DjangoTasks(Router):
    """Routes the types that `PschedBackend` submits, such as `default:polls.tasks.remind`."""

    def __init__(self, loops: EventLoops | None = None) -> None:
        self._loops = EventLoops() if loops is None else loops

    def routed_types(self) -> Collection[Pattern]:
        """Return the types of each queue of the backends as regular expressions.

        If a backend accepts any queue, return one expression for all queues.
        """
        return self._patterns()

    def _patterns(self) -> list[re.Pattern[str]]:
        queues = [backend.queues for backend in psched_backends()]
        names = ["[^:]+"] if not all(queues) else sorted({re.escape(name) for each in queues for name in each})
        return [re.compile(f"^{name}:{_ANY_FUNCTION}") for name in names]

    def route(self, type: str) -> HandlerFactory | None:
        """Return the handler of a function; None if the function cannot be imported.

        A worker with newer code may have the function.
        """
        if not any(pattern.search(type) for pattern in self._patterns()):
            return None
        try:
            task = task_of(type)
        except (ImportError, InvalidTask) as error:
            log.warning("type=%s no function for this type on this worker: %s", type, one_line(error))
            return None
        return None if task is None else partial(TaskHandler, django_task=task, loops=self._loops)

    def close(self) -> None:
        """Close the event loop of the calling thread."""
        self._loops.close()


class TaskDecider(DefaultDecider):
    """Retries a task that raises an error if `max_attempts` allows this. Otherwise gives the task up."""

    handler: TaskHandler

    def unexpected_error_raised(self, error: Exception) -> None:
        self.task.max_attempts = self.handler.attempts_allowed
        super().unexpected_error_raised(error)
        if self.task.outcome == "failed":
            self.handler.report_end(TaskResultStatus.FAILED, error)


class TaskHandler(CallingHandler):
    """One run of a function that is decorated by `@task`."""

    decider = TaskDecider

    def __init__(self, task: Run, django_task: Task[..., Any], loops: EventLoops) -> None:
        super().__init__(task, loops)
        self._django_task = django_task
        self._backend = django_task.get_backend()
        self.retry_wait = self._option("retry_wait")
        if self.retry_wait is not None:
            self.retry_wait = Backoff.of(self.retry_wait)
        row = task.row
        self._result = result_of(_as_task(row, task) if isinstance(row, ScheduleRow) else row, django_task)

    @property
    def attempts_allowed(self) -> int:
        """The number of attempts after which a task that raises an error has failed.

        An attempt that ends because its worker dies does not count.
        """
        most: int | None = self._option("max_attempts")
        return 1 if most is None else most

    def perform(self) -> None:
        """Call the function, and finish the task with its result."""
        now = timezone.now()
        worker = f"{socket.gethostname()}/{os.getpid()}"
        self._set(status=TaskResultStatus.RUNNING, started_at=now, last_attempted_at=now)
        self._set(worker_ids=[worker] * self.task.attempts)
        task_started.send_robust(type(self._backend), task_result=self._result)
        value = self.awaited(self._call())
        stored = self._storable(value)
        self._set(_return_value=stored)
        self.task.conclude(NO_RESULT if stored is None or self.task.result_problem is not None else stored)
        self.report_end(TaskResultStatus.SUCCESSFUL)

    def report_end(self, status: TaskResultStatus, error: Exception | None = None) -> None:
        """Send the signal `task_finished`."""
        self._set(status=status, finished_at=timezone.now())
        if error is not None:
            self._set(errors=[error_of(error)])
        task_finished.send_robust(type(self._backend), task_result=self._result)

    def _storable(self, value: Any) -> Any:
        try:
            return normalize_json(value)
        except (TypeError, ValueError) as error:
            raise UnstorableResultError(f"{self._django_task.module_path}: the result is not JSON: {error}") from error

    def _call(self) -> Any | Awaitable[Any]:
        result, function = self._result, self._django_task.func
        first = (TaskContext(task_result=result),) if self._django_task.takes_context else ()
        try:
            signature(function).bind(*first, *result.args, **result.kwargs)
        except TypeError as error:
            path = self._django_task.module_path
            raise TypeError(f"{path} has changed since the task was enqueued: {error}") from None
        return function(*first, *result.args, **result.kwargs)

    def _option(self, name: str) -> Any:
        own = getattr(self._django_task, name, None)
        return self._backend.options.get(name) if own is None else own

    def _set(self, **values: Any) -> None:
        """Change attributes of the frozen result, as Django's own backends do."""
        for name, value in values.items():
            object.__setattr__(self._result, name, value)


def _as_task(row: ScheduleRow, run: Run) -> TaskRow:
    return TaskRow(
        run.enqueued_key, row.type, row.data, "running", row.scheduled_time, None, row.attempts, row.last_error
    )


tasks = DjangoTasks()
"""The router that PSCHED adds to `app`."""
