"""A router made of functions: `@app.task()` makes a function a task. In children, and in clients that submit."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Mapping
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Concatenate, ParamSpec, Protocol, Self, TypeVar, Unpack, overload

from psched.application.default_queue import AppQueue, Config, open_configured_queue
from psched.application.event_loop import EventLoops
from psched.application.handler import CallingHandler, HandlerFactory
from psched.application.router import Router, check_pattern
from psched.application.schedule_declarations import Declaration, cron_of, declared_by_owner
from psched.application.task_function import TaskFunction, TaskFunctionWithRun, TypeOptions
from psched.errors import ConfigError, UnstorableResultError
from psched.queue.queue import Queue, check_priority
from psched.retry_wait import Backoff, check_attempts, check_wait
from psched.schedule_options import check_owner
from psched.schedules.validation import Terms
from psched.schedules_file.declared import DeclaredSchedules
from psched.store.type_filter import Pattern, matches
from psched.task import NO_RESULT, Task

P = ParamSpec("P")
R = TypeVar("R")
F = TypeVar("F", bound=Callable[..., Any])


class _Undeclared:
    """Accepted as first argument only by functions that accept any object there, such as one without annotations."""


class Decorator(Protocol):
    """Makes a function a task. The first parameter of a function that takes a Task gets the run."""

    @overload
    def __call__(self, function: Callable[Concatenate[_Undeclared, P], R], /) -> TaskFunction[..., R]: ...

    @overload
    def __call__(self, function: Callable[Concatenate[Task, P], R], /) -> TaskFunctionWithRun[P, R]: ...

    @overload
    def __call__(self, function: Callable[P, R], /) -> TaskFunction[P, R]: ...


class App(Router):
    """The tasks of an application, registered by decorating functions. Several may serve one daemon."""

    def __init__(self, *, owner: str | None = None) -> None:
        """`owner`: of the schedules that it declares."""
        try:
            self._owner = check_owner(owner)
        except ValueError as error:
            raise ConfigError(str(error)) from error
        self._declarations: list[Declaration] = []
        self._routes: dict[Pattern, HandlerFactory] = {}
        self._functions: dict[Pattern, TaskFunction[..., Any]] = {}
        self._loops = EventLoops()
        self._queue = AppQueue()

    @overload
    def task(self, function: Callable[Concatenate[_Undeclared, P], R], /) -> TaskFunction[..., R]: ...

    @overload
    def task(self, function: Callable[Concatenate[Task, P], R], /) -> TaskFunctionWithRun[P, R]: ...

    @overload
    def task(self, function: Callable[P, R], /) -> TaskFunction[P, R]: ...

    @overload
    def task(
        self,
        type: Pattern | None = None,
        *,
        retry_wait: float | Mapping[str, Any] | Backoff | None = None,
        max_attempts: int | None = None,
        priority: int = 0,
        timeout: float | None = None,
        finish: bool = True,
        store_result: bool | None = None,
        retention_time: float | None = None,
        failed_retention_time: float | None = None,
    ) -> Decorator: ...

    def task(
        self,
        type: Any = None,
        *,
        retry_wait: float | Mapping[str, Any] | Backoff | None = None,
        max_attempts: int | None = None,
        priority: int = 0,
        timeout: float | None = None,
        finish: bool = True,
        store_result: bool | None = None,
        retention_time: float | None = None,
        failed_retention_time: float | None = None,
    ) -> Any:
        """Make the decorated function handle tasks of this type, or of all types that the expression matches.

        The type defaults to the function's name after that of its module: `module.function`. The function is called
        with the data of the task as its arguments. A first parameter that is named `task`, or annotated as a Task, gets
        the run. The decorated function may be called as before, and has `submit` (see `TaskFunction`).

        When the function returns, the task is finished, unless `finish` is False or the function has settled the task.
        A daemon writes this moments later, together with other tasks; call `task.finish()` to finish at once.

        When the function raises, the task is due again `retry_wait` seconds later. None is the configured wait; a
        `psched.backoff(...)`, or a dict such as `{"first": 1, "limit": 300}`, is a wait that grows. After
        `max_attempts` attempts the task has failed, unless the task or its schedule has a limit of its own (None: the
        configured limit). After `timeout` seconds a run is stopped and tried again (None: the configured
        `task_timeout`). `priority`: of the tasks that are submitted.

        `store_result`: whether the return value, as JSON of at most 65,536 bytes, is stored with the task, for
        `QueuedTask.result`; None stores it if the function is annotated to return anything but None. A value that
        cannot be stored makes the task fail for good. A finished task is kept for `retention_time` seconds, a failed
        one for `failed_retention_time` (None: as configured). None of this applies to the runs of schedules.

        An `async def` function runs on an event loop of its thread, which is kept between tasks; `kill` cancels it.
        Other functions have to look at `task.stop_reason`.

        Raises:
            ConfigError: the type has a handler already, or the decorated object cannot be a handler.
        """
        if callable(type):
            return self.task()(type)
        pattern = None if type is None else check_pattern(type)
        options = _checked_options(
            "the task" if pattern is None else repr(pattern),
            TypeOptions(
                _wait(retry_wait),
                max_attempts,
                priority,
                timeout,
                finish,
                store_result,
                retention_time,
                failed_retention_time,
            ),
        )
        return lambda function: self._register(function, pattern, options)

    def schedule(
        self,
        cron: str | None = None,
        *,
        every: str | float | None = None,
        at: str | None = None,
        key: str | None = None,
        type: str | None = None,
        data: Mapping[str, Any] | None = None,
        delay: float = 0,
        timezone: str | None = None,
        **terms: Unpack[Terms],
    ) -> Callable[[F], F]:
        """Declare a schedule that runs the decorated task; `psched plan` and `apply` bring it into the database.

        Stands above or below `task`, and may be used several times. One of `cron`, `every` (such as `5m`) and `at`
        (such as `2027-03-01T09:00`) says when it is due. `key` defaults to the type of the task, `type` names it for a
        function that handles several. `data`: the arguments of the function. `owner` defaults to that of the App. All
        other options are those of `ScheduleCollection.add`. Times in the options are unix seconds, durations seconds.

        Raises ConfigError, also later in `declared_schedules`.
        """
        options: dict[str, Any] = {"delay": delay, "timezone": timezone, **terms}
        owner = options.pop("owner", None)
        expression = cron_of(cron, every, at)

        def declare(function: F) -> F:
            given = function.function if isinstance(function, TaskFunction) else function
            who = self._owner if owner is None else owner
            self._declarations.append(Declaration(given, key, type, who, expression, data or {}, options))
            return function

        return declare

    def declared_schedules(self) -> list[DeclaredSchedules]:
        """Return the schedules that `schedule` has declared, by owner.

        Raises ConfigError: a function is no task of the app or does not take the data, a schedule has no owner, or two
        have one key.
        """
        tasks = {task.function: task for task in self._functions.values()}
        return list(declared_by_owner(self._declarations, tasks.get))

    def open(self, config: Config, environment: str | None = None) -> Queue:
        """Open the queue that `config` names, and submit the tasks of this app to it. Raises like `psched.open_queue`.

        An app that opens no queue submits to that of `psched.configure`, of the worker that it runs in, or of the file
        that $PSCHED_CONFIG names (etc/psched.yml).
        """
        self._queue.own = open_configured_queue(config, environment)
        return self._queue.own

    def route(self, type: str) -> HandlerFactory | None:
        """Return the factory of handlers for this type: the first match in the order of registration, or None."""
        return next((factory for pattern, factory in self._routes.items() if matches(pattern, type)), None)

    def routed_types(self) -> Collection[Pattern] | None:
        """Return the types and expressions that are registered; None, for any type, if `route` is overridden."""
        return tuple(self._routes) if type(self).route is App.route else None

    def check(self) -> None:
        """Raise ConfigError when nothing is registered, or a function cannot be called with what a task stores."""
        if not self._routes:
            raise ConfigError("the App handles no task; decorate a function with @app.task()")
        for function in self._functions.values():
            function.parameters.check(function.stores_result)

    def close(self) -> None:
        """Close the event loop of the calling thread."""
        self._loops.close()

    def _register(
        self, given: Callable[..., Any], pattern: Pattern | None, options: TypeOptions
    ) -> TaskFunction[..., Any]:
        function = given.function if isinstance(given, TaskFunction) else given
        if not callable(function):
            raise ConfigError(f"{function!r} cannot be called; decorate a function with @app.task()")
        wanted = default_type(function) if pattern is None else pattern
        made: TaskFunction[..., Any] = TaskFunction(function, wanted, options, self._queue)
        before = self._functions.get(wanted)
        if before is not None:
            raise ConfigError(f"{wanted!r} is handled twice: by {before.parameters.name} and by {made.parameters.name}")
        self._functions[wanted] = made
        self._routes[wanted] = partial(FunctionHandler.of(made), loops=self._loops)
        return made


class FunctionHandler(CallingHandler):
    """Runs the function of one task. The options of a type are attributes of a subclass: no run has to set them."""

    _function: ClassVar[TaskFunction[..., Any]]
    _finishes: ClassVar[bool]
    _stores_result: ClassVar[bool]

    @classmethod
    def of(cls, function: TaskFunction[..., Any]) -> type[Self]:
        """Return the class of the handlers of this function."""
        options = function.options
        attributes = {
            "_function": function,
            "_finishes": options.finish,
            "_stores_result": function.stores_result,
            "retry_wait": options.retry_wait,
            "max_attempts": options.max_attempts,
            "timeout": options.timeout,
            "retention_time": options.retention_time,
            "failed_retention_time": options.failed_retention_time,
        }
        return type(cls.__name__, (cls,), attributes)

    def perform(self) -> None:
        """Call the function, await its result if that is awaitable, and conclude the task."""
        value = self.call(self._function.call, self.task)
        if self._finishes and not self.task.settled:
            self.task.conclude(self._result(value) if self._stores_result else NO_RESULT)

    def _result(self, value: Any) -> Any:
        """Return the result to be stored, if any: a run of a schedule has none, nor has a run on `rdb_compat`."""
        if self.task.result_problem is not None:
            return NO_RESULT
        try:
            return self._function.stored_result(value)
        except ValueError as error:
            raise UnstorableResultError(f"its result cannot be stored: {error}") from error


def default_type(function: Callable[..., Any]) -> str:
    """Return the type of a function's tasks: its module and name. Raises ConfigError for an object without a name.

    A program that is run has the name of its module, as a worker imports it: not `__main__`.
    """
    module, name = getattr(function, "__module__", None), getattr(function, "__qualname__", None)
    if not module or not name:
        raise ConfigError(f"{function!r} has no name; give its tasks a type, as in @app.task('report')")
    if module == "__main__":
        main = sys.modules["__main__"]
        spec, file = getattr(main, "__spec__", None), getattr(main, "__file__", None)
        module = spec.name.removesuffix(".__main__") if spec else Path(file).stem if file else module
    return f"{module}.{name}"


def _wait(wait: float | Mapping[str, Any] | Backoff | None) -> float | Backoff | None:
    try:
        return Backoff.of(wait) if isinstance(wait, Mapping) else wait
    except (TypeError, ValueError) as error:
        raise ConfigError(f"retry_wait: {error}") from error


def _checked_options(name: str, options: TypeOptions) -> TypeOptions:
    """Raises ConfigError."""
    try:
        check_priority(f"priority of {name}", options.priority)
        if options.retry_wait is not None and not isinstance(options.retry_wait, Backoff):
            check_wait(f"retry_wait of {name}", options.retry_wait)
        for option in ("timeout", "retention_time", "failed_retention_time"):
            seconds = getattr(options, option)
            if seconds is not None:
                check_wait(f"{option} of {name}", seconds)
        if options.timeout == 0:
            raise ValueError(f"timeout of {name} must be more than 0 seconds; None leaves it to the configuration")
        if options.max_attempts is not None:
            check_attempts(f"max_attempts of {name}", options.max_attempts)
    except ValueError as error:
        raise ConfigError(str(error)) from error
    return options
