"""App: `@app.task()` turns a function into a task. Used in child processes, and in clients that submit tasks."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Mapping
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Concatenate, ParamSpec, Protocol, Self, TypeVar, Unpack, overload

from psched.application.default_queue import AppQueue, Config, open_configured_queue
from psched.application.event_loop import EventLoops
from psched.application.handler_base import CallingHandler, HandlerFactory
from psched.application.router import Router, check_pattern
from psched.application.schedule_declarations import Declaration, check_names, cron_of, declared_by_owner
from psched.application.task_function import TaskFunction, TaskFunctionWithRun, TypeOptions
from psched.error_messages import shown
from psched.errors import ConfigError, UnstorableResultError
from psched.keys import check_owner
from psched.queue.queue import Queue, check_priority
from psched.retry_wait import Backoff, check_attempts, check_wait
from psched.schedules.validation import Terms
from psched.schedules_file.declared import DeclaredSchedules
from psched.store.type_filter import Pattern, matches
from psched.task import NO_RESULT, Task

P = ParamSpec("P")
R = TypeVar("R")
F = TypeVar("F", bound=Callable[..., Any])


class _Undeclared:
    """A class that no function uses as an annotation.

    The first overload of `Decorator` uses it to match only functions whose first parameter accepts any object.
    """


class Decorator(Protocol):
    """Turns a function into a task.

    If the function's first parameter is annotated as Task, that parameter gets the Task.
    """

    @overload
    def __call__(self, function: Callable[Concatenate[_Undeclared, P], R], /) -> TaskFunction[..., R]: ...

    @overload
    def __call__(self, function: Callable[Concatenate[Task, P], R], /) -> TaskFunctionWithRun[P, R]: ...

    @overload
    def __call__(self, function: Callable[P, R], /) -> TaskFunction[P, R]: ...


class App(Router):
    """The tasks of an application. Decorating a function registers it. One daemon can run several Apps."""

    def __init__(self, *, owner: str | None = None) -> None:
        """`owner`: the default owner of schedules that the App declares. Raises ConfigError for an invalid owner."""
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
        """Register the decorated function as the handler for tasks of one type, or of all types that match.

        `type`: a type, or a regular expression that matches types. The default type is the module and name of the
        function: `module.function`. The function is called with the data of the task as its arguments. If the
        function's first parameter is named `task` or annotated as Task, that parameter gets the Task. The decorated
        function can still be called directly, and has `submit` (see `TaskFunction`).

        When the function returns, the task is finished, unless `finish` is False or the function itself settled the
        task. A daemon writes the end of the task within 0.2 s, or within 1 s while the database is slow, together with
        other tasks. Call `task.finish()` to finish the task immediately.

        When the function raises, the task is due again after a wait.

        - `retry_wait`: the wait in seconds. For a growing wait give a `psched.backoff(...)`, or a dict such as
          `{"first": 1, "limit": 300}`. A wait of the schedule takes precedence. None: the configured wait.
        - `max_attempts`: the task fails for good if this many attempts fail. A limit of the task or its schedule takes
          precedence. None: the configured limit.
        - `timeout`: a run is stopped after this many seconds, and tried again. A timeout of the schedule takes
          precedence. None: the configured `task_timeout`.
        - `priority`: the priority of submitted tasks.
        - `store_result`: whether the return value is stored with the task for `QueuedTask.result`, as JSON of at most
          65,536 bytes. None: the value is stored if the annotated return type is not None. If a value cannot be stored,
          the task fails for good.
        - `retention_time`, `failed_retention_time`: how many seconds a finished or a failed task is kept. None: as long
          as configured.

        `store_result`, `retention_time` and `failed_retention_time` have no effect on runs of schedules.

        An `async def` function runs on the event loop of its thread. The loop is kept between tasks. A timeout, a
        cancel request, a lost lease or an immediate stop of the worker cancels the function. Other functions must check
        `task.stop_reason`.

        Raises:
            ConfigError: an option is wrong, the type has a handler already, or the object cannot be a handler.
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
        """Declare a schedule that runs the decorated task. `psched plan` shows the change, `psched apply` writes it.

        The decorator may stand above or below `task`, and may be used several times.

        - `cron`, `every` (such as `5m`), `at` (such as `2027-03-01T09:00`): when the schedule is due. Give one of the
          three.
        - `key`: the default is the type of the task.
        - `type`: the type of the task, needed if the function handles several types.
        - `data`: the arguments of the function.
        - `owner`: the default is the owner of the App.

        All other options are those of `ScheduleCollection.add`. Times are unix seconds, durations are seconds.

        Raises ConfigError here or later, in `declared_schedules`.
        """
        check_names(terms)
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
        """Return the schedules declared by `schedule`, grouped by owner.

        Raises ConfigError if a function is not a task of the app or does not accept the data, if a schedule has no
        owner, or if two schedules have the same key.
        """
        tasks = {task.function: task for task in self._functions.values()}
        return list(declared_by_owner(self._declarations, tasks.get))

    def open(self, config: Config, environment: str | None = None) -> Queue:
        """Open the queue that `config` describes. The tasks of this app are then submitted to this queue.

        Raises like `psched.open_queue`. An app that opens no queue submits to the first of these queues that exists:
        the queue of `psched.configure`, the queue of the worker that the app runs in, the queue in the file that
        $PSCHED_CONFIG names (default: etc/psched.yml).
        """
        self._queue.own = open_configured_queue(config, environment)
        return self._queue.own

    def route(self, type: str) -> HandlerFactory | None:
        """Return the factory of handlers for this type, or None.

        If several registered types match, the first one counts.
        """
        return next((factory for pattern, factory in self._routes.items() if matches(pattern, type)), None)

    def routed_types(self) -> Collection[Pattern] | None:
        """Return the registered types and expressions. None means any type.

        The result is None if a subclass overrides `route`.
        """
        return tuple(self._routes) if type(self).route is App.route else None

    def check(self) -> None:
        """Raise ConfigError if nothing is registered, or if a function cannot be called with the data of a task."""
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
            both = f"by {before.parameters.name} and by {made.parameters.name}"
            raise ConfigError(f"{wanted!r} is handled twice: {both}; give one of them another type")
        self._functions[wanted] = made
        self._routes[wanted] = partial(FunctionHandler.of(made), loops=self._loops)
        return made


class FunctionHandler(CallingHandler):
    """Runs the function of one task. The options of the task's type are class attributes."""

    _function: ClassVar[TaskFunction[..., Any]]
    _finishes: ClassVar[bool]
    _stores_result: ClassVar[bool]

    @classmethod
    def of(cls, function: TaskFunction[..., Any]) -> type[Self]:
        """Return a handler class for this function."""
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
        """Call the function, and await the result if it is awaitable. Then finish the task."""
        value = self.awaited(self._function.parameters.call(self.task))
        if self._finishes and not self.task.settled:
            self.task.conclude(self._result(value) if self._stores_result else NO_RESULT)

    def _result(self, value: Any) -> Any:
        """Return the result to store, or NO_RESULT if the run cannot store one."""
        if self.task.result_problem is not None:
            return NO_RESULT
        try:
            return self._function.stored_result(value)
        except ValueError as error:
            raise UnstorableResultError(f"the result cannot be stored: {error}") from error


def default_type(function: Callable[..., Any]) -> str:
    """Return the type of a function's tasks: its module and name. Raises ConfigError for an object without a name.

    A function of the main program gets the module name that a worker would import, not `__main__`.
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
        if options.store_result is not None and not isinstance(options.store_result, bool):
            raise ValueError(f"store_result of {name} must be True, False or None, got {shown(options.store_result)}")
    except ValueError as error:
        raise ConfigError(str(error)) from error
    return options
