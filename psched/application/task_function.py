"""Decorated functions: a call runs the function, and `submit` stores a call as a task of the queue."""

from __future__ import annotations

import functools
import secrets
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Generic, ParamSpec, TypeVar
from uuid import UUID

from psched.application.default_queue import AppQueue
from psched.application.parameters import Parameters
from psched.async_methods import run_in_thread
from psched.config.validators import seconds
from psched.error_messages import shown
from psched.errors import ConfigError
from psched.model import Compression, NewTask
from psched.queue.queue import QueuedTask
from psched.retry_wait import Backoff
from psched.store.type_filter import Pattern
from psched.task import Task

P = ParamSpec("P")
R_co = TypeVar("R_co", covariant=True)


@dataclass(frozen=True, slots=True)
class TypeOptions:
    """How the tasks of one type are submitted, run and settled. `App.task` describes the options."""

    retry_wait: float | Backoff | None = None
    max_attempts: int | None = None
    priority: int = 0
    timeout: float | None = None
    finish: bool = True
    store_result: bool | None = None
    retention_time: float | None = None
    failed_retention_time: float | None = None


class TaskFunction(Generic[P, R_co]):
    """A function that runs as tasks of an app.

    A call of this object runs the function directly; `submit` submits the call as a task.
    """

    __name__: str

    def __init__(self, function: Callable[..., Any], type: Pattern, options: TypeOptions, queue: AppQueue) -> None:
        functools.update_wrapper(self, function)
        self.function = function
        """The function that was decorated."""
        self.type = type
        """The type of the function's tasks, or the regular expression that matches the types of these tasks."""
        self.options = options
        self.parameters = Parameters(function)
        self.queue = queue

    def __call__(self, /, *args: P.args, **kwargs: P.kwargs) -> R_co:
        """Call the function directly, in this process."""
        result: R_co = self.function(*args, **kwargs)
        return result

    def __repr__(self) -> str:
        return f"<TaskFunction {self.parameters.name} type={self.type!r}>"

    def __reduce__(self) -> str:
        """Pickle the function by its name, like ordinary functions."""
        return str(getattr(self, "__qualname__", self.parameters.name))

    @property
    def stores_result(self) -> bool:
        """Whether the return value is stored. If `store_result` is None, the annotated return type decides."""
        given = self.options.store_result
        return self.parameters.returns_value if given is None else given

    def submit(self, /, *args: P.args, **kwargs: P.kwargs) -> QueuedTask[R_co]:
        """Submit a task that calls the function with these arguments. Return a reference to the task.

        For options see `using`.
        """
        return Submission(self).submit(*args, **kwargs)

    async def asubmit(self, /, *args: P.args, **kwargs: P.kwargs) -> QueuedTask[R_co]:
        """Like `submit`, without blocking the event loop."""
        return await Submission(self).asubmit(*args, **kwargs)

    def submit_many(self, calls: Iterable[Mapping[str, Any] | NewTask]) -> list[QueuedTask[R_co]]:
        """Submit one task for each of `calls`, in one transaction.

        A call is a mapping of arguments or a result of `new_task`.
        """
        return Submission(self).submit_many(calls)

    async def asubmit_many(self, calls: Iterable[Mapping[str, Any] | NewTask]) -> list[QueuedTask[R_co]]:
        """Like `submit_many`, without blocking the event loop."""
        return await Submission(self).asubmit_many(calls)

    def new_task(self, /, *args: P.args, **kwargs: P.kwargs) -> NewTask:
        """Return the task that `submit` would submit."""
        return Submission(self).new_task(*args, **kwargs)

    def using(
        self,
        *,
        key: str | None = None,
        user: str | None = None,
        run_at: datetime | float | None = None,
        delay: float | str | timedelta | None = None,
        priority: int | None = None,
        max_running: int | None = None,
        max_attempts: int | None = None,
        compression: Compression | None = None,
        headers: Mapping[str, Any] | None = None,
        connection: Any = None,
    ) -> Submission[P, R_co]:
        """Return an object whose `submit` uses these options; see `Queue.submit`.

        - `key`: the default is a new UUIDv7.
        - `run_at`: a datetime with a time zone, or unix seconds.
        - `delay`: how long after now the task runs, by the database's clock: seconds, a text such as `5m`, or a
          timedelta. Give `run_at` or `delay`, not both.

        Raises ValueError.
        """
        if run_at is not None and delay is not None:
            raise ValueError("run_at and delay both define when the task runs; leave out one of them")
        due = None if run_at is None else _unix_seconds(run_at)
        wait = None if delay is None else _seconds(delay)
        return Submission(
            self, key, user, due, wait, priority, max_running, max_attempts, compression, headers, connection
        )

    def call(self, task: Task) -> Any:
        """Call the function with the arguments in the task's data. Raises ArgumentsError."""
        return self.parameters.call(task)

    def stored_result(self, value: Any) -> Any:
        """Return `value`, a result of the function, as a JSON value. Raises ValueError."""
        return self.parameters.stored_result(value)

    def restored_result(self, stored: Any) -> Any:
        """Convert the JSON value of a result back. Raises ValueError."""
        return self.parameters.restored_result(stored)


class TaskFunctionWithRun(TaskFunction[P, R_co]):
    """A TaskFunction whose function takes the Task as its first argument. It exists for type checkers.

    The parameters `P` do not include this argument.
    """

    def __call__(self, task: Task, /, *args: P.args, **kwargs: P.kwargs) -> R_co:  # type: ignore[override]
        """Call the function directly, in this process. Any Task can be its first argument."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class Submission(Generic[P, R_co]):
    """The options for submitting tasks of one function. `TaskFunction.using` creates it."""

    function: TaskFunction[P, R_co]
    key: str | None = None
    user: str | None = None
    run_at: float | None = None
    delay: float | None = None
    priority: int | None = None
    max_running: int | None = None
    max_attempts: int | None = None
    compression: Compression | None = None
    headers: Mapping[str, Any] | None = None
    connection: Any = None

    def submit(self, /, *args: P.args, **kwargs: P.kwargs) -> QueuedTask[R_co]:
        """Submit a task that calls the function with these arguments. Return a reference to the task.

        Raises:
            AlreadyExistsError: a task has this key.
            TypeError: the function cannot be called with these arguments.
            ValueError: an argument or an option cannot be stored. The error names the argument by its path.
            ConfigError: there is no queue to submit to, or the function handles several types.
        """
        task = self._new_task(args, kwargs, self._due())
        queue = self.function.queue.get()
        return self._typed(queue.submit(**task._asdict(), connection=self.connection))

    async def asubmit(self, /, *args: P.args, **kwargs: P.kwargs) -> QueuedTask[R_co]:
        """Like `submit`, without blocking the event loop."""
        task = self._new_task(args, kwargs, await self._due_async())
        queue = await self.function.queue.get_async()
        return self._typed(await queue.asubmit(**task._asdict(), connection=self.connection))

    def submit_many(self, calls: Iterable[Mapping[str, Any] | NewTask]) -> list[QueuedTask[R_co]]:
        """Submit one task for each of `calls`, in one transaction.

        A call is a mapping of arguments or a result of `new_task`. If a task's key exists already, the existing task is
        not changed. Raises like `submit`, but never AlreadyExistsError. Also raises ValueError if `using` was called
        with a key.
        """
        tasks = self._new_tasks(calls, self._due())
        queue = self.function.queue.get()
        queue.submit_many(tasks, self.connection)
        return [self._typed(queue[task.key]) for task in tasks]

    async def asubmit_many(self, calls: Iterable[Mapping[str, Any] | NewTask]) -> list[QueuedTask[R_co]]:
        """Like `submit_many`, without blocking the event loop."""
        tasks = self._new_tasks(calls, await self._due_async())
        queue = await self.function.queue.get_async()
        await queue.asubmit_many(tasks, self.connection)
        return [self._typed(queue[task.key]) for task in tasks]

    def new_task(self, /, *args: P.args, **kwargs: P.kwargs) -> NewTask:
        """Return the task that `submit` would submit. With a `delay`, read the time from the database."""
        return self._new_task(args, kwargs, self._due())

    def _due(self) -> float | None:
        """Return when the task is due. With a `delay`, read the time from the database."""
        return self.run_at if self.delay is None else self.function.queue.get().store.now() + self.delay

    async def _due_async(self) -> float | None:
        return self.run_at if self.delay is None else await run_in_thread(self._due)

    def _new_tasks(self, calls: Iterable[Mapping[str, Any] | NewTask], due: float | None) -> list[NewTask]:
        if self.key is not None:
            raise ValueError("submit_many submits many tasks, which cannot share one key; leave out key=")
        given: object = calls
        if not isinstance(given, Iterable) or isinstance(given, Mapping | str | bytes):
            raise ValueError(f"submit_many takes a list of mappings of arguments, got {shown(given)}")
        tasks = [call if isinstance(call, NewTask) else self._new_task((), _arguments(call), due) for call in calls]
        if strange := [task.key for task in tasks if task.type != self.function.type]:
            raise ValueError(f"the task {strange[0]!r} was not made by {self.function.parameters.name}.new_task")
        return tasks

    def _new_task(self, args: tuple[Any, ...], kwargs: Mapping[str, Any], due: float | None) -> NewTask:
        function = self.function
        if not isinstance(function.type, str):
            raise ConfigError(
                f"{function.parameters.name} handles the types that match {function.type.pattern!r}; "
                "submit with queue.submit(key, type, data)"
            )
        return NewTask(
            uuid7() if self.key is None else self.key,
            function.type,
            function.parameters.stored(args, kwargs),
            due,
            self.user,
            self.max_running,
            function.options.priority if self.priority is None else self.priority,
            self.max_attempts,
            self.compression,
            {} if self.headers is None else self.headers,
        )

    def _typed(self, queued: QueuedTask[Any]) -> QueuedTask[R_co]:
        return queued.of_type(self.function)


def _arguments(call: object) -> Mapping[str, Any]:
    if not isinstance(call, Mapping):
        raise ValueError(f"each call must be a mapping of arguments, or a result of new_task, got {shown(call)}")
    return call


def _unix_seconds(moment: object) -> float:
    if isinstance(moment, int | float) and not isinstance(moment, bool):
        return moment
    if not isinstance(moment, datetime):
        raise ValueError(f"run_at must be a datetime with a time zone, or unix seconds, got {shown(moment)}")
    if moment.tzinfo is None:
        raise ValueError(f"run_at has no time zone: {moment}; write datetime(..., tzinfo=ZoneInfo('Europe/Paris'))")
    return moment.timestamp()


def _seconds(delay: object) -> float:
    try:
        return float(seconds(0)(delay.total_seconds() if isinstance(delay, timedelta) else delay))
    except ValueError as error:
        raise ValueError(f"delay: {error}, got {shown(delay)}") from None


def uuid7() -> str:
    """Return a new UUIDv7 (RFC 9562). It begins with the time, so that an index stores new keys next to each other."""
    milliseconds, chance = time.time_ns() // 1_000_000, secrets.randbits(74)
    return str(UUID(int=milliseconds << 80 | 7 << 76 | chance >> 62 << 64 | 2 << 62 | chance & (1 << 62) - 1))
