"""A router made of functions: `@app.task("type")` turns a function that takes a Task into a handler. In children."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Any, TypeVar

from psched.application.event_loop import EventLoops
from psched.application.handler import (
    FunctionHandler,
    HandlerFactory,
    Router,
    TaskFunction,
    check_pattern,
    takes_one_argument,
)
from psched.backoff import Backoff, check_attempts, check_wait
from psched.errors import ConfigError
from psched.store.type_filter import Pattern, matches

F = TypeVar("F", bound=TaskFunction)


class App(Router):
    """The tasks of an application, registered by decorating functions. Several may serve one daemon."""

    def __init__(self) -> None:
        self._routes: dict[Pattern, HandlerFactory] = {}
        self._names: dict[Pattern, str] = {}
        self._loops = EventLoops()

    def task(
        self,
        type: Pattern,
        *,
        retry_wait: float | Mapping[str, Any] | Backoff | None = None,
        max_attempts: int | None = None,
        finish: bool = True,
    ) -> Callable[[F], F]:
        """Make the decorated function handle tasks of this type, or of all types that the expression matches.

        When the function returns, the task is finished, unless `finish` is False or the function has settled the task.
        A daemon writes this moments later, together with other tasks; call `task.finish()` to finish at once.

        When the function raises, the task is due again `retry_wait` seconds later. None is the configured wait; a
        Backoff, or a dict of its fields such as `{"first": 1, "limit": 300}`, is a wait that grows. After
        `max_attempts` attempts the task has failed, unless the task or its schedule has a limit of its own (None: the
        configured limit).

        An `async def` function runs on an event loop of its thread, which is kept between tasks; `kill` cancels it.
        Other functions have to look at `task.stop_reason`.

        Raises:
            ConfigError: the type has a handler already, or the decorated object cannot be a handler.
        """
        if callable(type):
            raise ConfigError(f"{_name(type)} is decorated with @app.task; write @app.task('type')")
        pattern = check_pattern(type)
        try:
            wait = _checked_wait(f"retry_wait of {pattern!r}", retry_wait)
            if max_attempts is not None:
                check_attempts(f"max_attempts of {pattern!r}", max_attempts)
        except ValueError as error:
            raise ConfigError(str(error)) from error

        def register(function: F) -> F:
            self._check(pattern, function)
            self._names[pattern] = _name(function)
            self._routes[pattern] = partial(
                FunctionHandler,
                function=function,
                loops=self._loops,
                finish=finish,
                retry_wait=wait,
                max_attempts=max_attempts,
            )
            return function

        return register

    def route(self, type: str) -> HandlerFactory | None:
        """Return the factory of handlers for this type: the first match in the order of registration, or None."""
        return next((factory for pattern, factory in self._routes.items() if matches(pattern, type)), None)

    def routed_types(self) -> Collection[Pattern] | None:
        """Return the types and expressions that are registered; None, for any type, if `route` is overridden."""
        return tuple(self._routes) if type(self).route is App.route else None

    def check(self) -> None:
        """Raise ConfigError when nothing is registered."""
        if not self._routes:
            raise ConfigError("the App handles no task; decorate a function with @app.task('type')")

    def close(self) -> None:
        """Close the event loop of the calling thread."""
        self._loops.close()

    def _check(self, pattern: Pattern, function: TaskFunction) -> None:
        if pattern in self._routes:
            raise ConfigError(f"{pattern!r} is handled twice: by {self._names[pattern]} and by {_name(function)}")
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise ConfigError(f"{_name(function)} is a generator, which would never run; use return, not yield")
        if not takes_one_argument(function):
            raise ConfigError(f"{_name(function)} must take one argument, the task, as in: def handler(task)")


def _checked_wait(name: str, wait: float | Mapping[str, Any] | Backoff | None) -> float | Backoff | None:
    if wait is None or isinstance(wait, Backoff):
        return wait
    if not isinstance(wait, Mapping):
        check_wait(name, wait)
        return wait
    try:
        return Backoff.of(wait)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{name}: {error}") from error


def _name(function: object) -> str:
    return getattr(function, "__qualname__", repr(function))
