"""Chooses the handler of a task: patterns, routers, and the application made of routers. In children and `doctor`."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from psched.errors import ConfigError
from psched.store.type_filter import Pattern, TypeFilter
from psched.task import Task

_MOST_TYPES = 1000
"""Types whose handlers are remembered."""


class Handler(Protocol):
    """One run of one task: the methods that the daemon calls."""

    def run(self) -> None:
        """Do the work and settle the task. In a handler thread; an exception ends this run only."""

    def kill(self, reason: Exception) -> None:
        """Bring `run` to its end soon, for `reason`. From another thread, at any time, at most once."""


HandlerFactory = Callable[[Task], Handler]


Routes = Mapping[Pattern, HandlerFactory | str]
"""Handlers by pattern; a string names a class that is looked up later."""


class Router(ABC):
    """Finds the handler of a type of task. Either an App, or a Dispatch class, which is never instantiated."""

    @abstractmethod
    def route(self, type: str) -> HandlerFactory | None:
        """Return the factory of handlers for this type, or None when this router does not know it."""

    @abstractmethod
    def routed_types(self) -> Collection[Pattern] | None:
        """Return the patterns of all routes, by which rows are acquired; None: rows of any type."""

    def check(self) -> None:  # noqa: B027 – a router may have nothing to check
        """Raise ConfigError when a route has no handler."""

    def close(self) -> None:  # noqa: B027 – most routers keep nothing between tasks
        """Close the resources of the calling handler thread. Called when that thread ends."""


@dataclass(frozen=True, slots=True)
class Application:
    """The routers of a daemon, asked in order; a section may have an application of its own."""

    routers: tuple[Router, ...]
    sections: Mapping[str, Application] = field(default_factory=dict)
    _routes: dict[str, HandlerFactory] = field(default_factory=dict, compare=False, repr=False)

    def of(self, section: str) -> Application:
        """Return the application that runs the rows of this section."""
        return self.sections.get(section, self)

    def types(self) -> TypeFilter:
        """Return the filter that accepts the types of all routers."""
        routed = [router.routed_types() for router in self.routers]
        if any(patterns is None for patterns in routed):
            return TypeFilter(None)
        return TypeFilter(tuple(dict.fromkeys(pattern for patterns in routed for pattern in patterns or ())))

    def handler(self, task: Task) -> Handler | None:
        """Return a handler for `task`, or None when no router knows its type. Remembers what the routers answer."""
        factory = self._routes.get(task.type)
        if factory is None:
            factory = next(filter(None, (router.route(task.type) for router in self.routers)), None)
            if factory is None:
                return None
            if len(self._routes) >= _MOST_TYPES:
                self._routes.clear()
            self._routes[task.type] = factory
        return factory(task)

    def close(self) -> None:
        """Close the resources of the calling handler thread, such as its event loop."""
        for router in self.routers:
            router.close()


def check_pattern(pattern: object) -> Pattern:
    """Return `pattern`. Raises ConfigError unless it is a non-empty string or a compiled expression for text."""
    if isinstance(pattern, str) and pattern:
        return pattern
    if isinstance(pattern, re.Pattern) and isinstance(pattern.pattern, str):
        return pattern
    raise ConfigError(f"a task type must be a non-empty string or a compiled regular expression, got {pattern!r}")
