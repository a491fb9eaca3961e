"""Routers find the handler for a type of task. An `Application` asks its routers in order."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from psched.application.handler_base import Handler, HandlerFactory
from psched.errors import ConfigError
from psched.keys import check_key
from psched.schedules_file.declared import DeclaredSchedules
from psched.store.type_filter import Pattern, TypeFilter
from psched.task import Task

_MOST_TYPES = 1000
"""The maximum number of types whose handlers are cached."""


Routes = Mapping[Pattern, HandlerFactory | str]
"""Handlers by pattern. A string names a class that is looked up later."""


class Router(ABC):
    """Finds the handler for a type of task.

    An App is a router; so is a Dispatch class, of which no instance is created.
    """

    @abstractmethod
    def route(self, type: str) -> HandlerFactory | None:
        """Return the factory of handlers for this type, or None if this router does not handle the type."""

    @abstractmethod
    def routed_types(self) -> Collection[Pattern] | None:
        """Return the patterns of all routes. Only rows of matching types are acquired. None means any type."""

    def with_options(self, options: Mapping[str, Any]) -> Router:
        """Return a router with the options given in `app:`. Raises ConfigError for unknown options."""
        raise ConfigError("this application takes no options in `app:`; remove them")

    def check(self) -> None:  # noqa: B027 – a router may have nothing to check
        """Raise ConfigError if a route has no handler."""

    def declared_schedules(self) -> list[DeclaredSchedules]:
        """Return the schedules that this router declares, grouped by owner. Raises ConfigError."""
        return []

    def close(self) -> None:  # noqa: B027 – most routers keep nothing between tasks
        """Close the resources of the calling handler thread. Called when that thread ends."""


@dataclass(frozen=True, slots=True)
class Application:
    """The routers of a daemon, in the order in which they are asked. A section may have an application of its own."""

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
        """Return a handler for `task`, or None if no router handles its type. The answers of the routers are cached."""
        factory = self._routes.get(task.type)
        if factory is None:
            factory = next(filter(None, (router.route(task.type) for router in self.routers)), None)
            if factory is None:
                return None
            if len(self._routes) >= _MOST_TYPES:
                self._routes.clear()
            self._routes[task.type] = factory
        return factory(task)

    def declared_schedules(self) -> list[DeclaredSchedules]:
        """Return the schedules that the routers declare. Raises ConfigError."""
        return [declared for router in self.routers for declared in router.declared_schedules()]

    def close(self) -> None:
        """Close the resources of the calling handler thread, such as its event loop."""
        for router in self.routers:
            router.close()


def check_pattern(pattern: object) -> Pattern:
    """Return `pattern`. Raises ConfigError unless it is a valid task type, or a regular expression for text."""
    if isinstance(pattern, str) and pattern:
        try:
            return check_key(pattern, "a task type")
        except ValueError as error:
            raise ConfigError(str(error)) from None
    if isinstance(pattern, re.Pattern) and isinstance(pattern.pattern, str):
        return pattern
    raise ConfigError(f"a task type must be a non-empty string or a compiled regular expression, got {pattern!r}")
