"""The handlers of an embedded scheduler that call the functions bound to tasks."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from functools import partial
from typing import Any

from psched.application.app import App, FunctionHandler
from psched.application.event_loop import EventLoops
from psched.application.handler_base import CallingHandler, takes_one_argument
from psched.application.task_function import TaskFunction
from psched.errors import NotFoundError
from psched.scheduler.task_data import TaskData
from psched.task import Task

log = logging.getLogger(__name__)

Function = Callable[[Any], Any]
"""A bound function. It is called with the data of the task. It fails by returning False or by raising."""

MIN_LEASE = 3.0
"""The shortest lease of a running task, in seconds, even if the task's retry_timeout is shorter."""
current: ContextVar[Task | None] = ContextVar("psched_scheduler_task", default=None)
"""The task that the calling handler is running."""


def check_function(name: str, function: object) -> None:
    if not callable(function):
        raise ValueError(f"{name!r}: expected a function to bind, got {function!r}")
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise ValueError(f"{name!r}: {function!r} is a generator, which would never run; use return, not yield")
    if not takes_one_argument(function):
        raise ValueError(f"{name!r}: {function!r} must take one argument, the data of its task")


class JobHandler(CallingHandler):
    def __init__(self, task: Task, function: Function, loops: EventLoops) -> None:
        super().__init__(task, loops)
        self._function = function
        self._task_data = TaskData.of(task.data)
        self.retry_wait = self._task_data.retry_timeout if self._task_data.retry else None

    def perform(self) -> None:
        if self._task_data.retry:
            # If this process dies, the task is due again when its lease ends: after about retry_timeout.
            self.task.alive_time = max(self._task_data.retry_timeout, MIN_LEASE)
            self.task.heartbeat()
        token = current.set(self.task)
        try:
            result = self.awaited(self._function(self._task_data.data))
        finally:
            current.reset(token)
        try:
            if result is False:
                self._retry()
            else:
                self.task.finish()
        except NotFoundError as error:
            self._stop_without_row(error)

    def decide(self, decision: str, **options: Any) -> Any:
        """Do the same as the base class. If the task was removed while it ran, log this instead of raising."""
        try:
            return super().decide(decision, **options)
        except NotFoundError as error:
            self._stop_without_row(error)

    def _stop_without_row(self, error: NotFoundError) -> None:
        log.warning("key=%s type=%s was removed while it ran: %s", self.task.key, self.task.type, error)
        self.task.stop_reason = error

    def _retry(self) -> None:
        then = f"next attempt in {self._task_data.retry_timeout:g} s" if self._task_data.retry else "no further attempt"
        log.warning("key=%s type=%s failed: the handler returned False; %s", self.task.key, self.task.type, then)
        self.task.retry(self.retry_wait, error="the handler returned False")


class TaskFunctionHandler(FunctionHandler):
    def perform(self) -> None:
        token = current.set(self.task)
        try:
            super().perform()
        finally:
            current.reset(token)


class FunctionRouter(App):
    def __init__(self, bindings: Mapping[str, Function]) -> None:
        super().__init__()
        for name, function in bindings.items():
            if isinstance(function, TaskFunction):
                self._routes[name] = partial(TaskFunctionHandler.of(function), loops=self._loops)
            else:
                self._routes[name] = partial(JobHandler, function=function, loops=self._loops)
