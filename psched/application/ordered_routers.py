"""The application of a daemon. It asks its routers in order."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from psched.application.handler_base import Handler, HandlerFactory
from psched.application.router import Router
from psched.schedules_file.declared import DeclaredSchedules
from psched.store.type_filter import TypeFilter
from psched.task import Task

_MOST_TYPES = 1000
"""The maximum number of types for which the answers of the routers are cached."""


@dataclass(frozen=True, slots=True)
class Application:
    """The routers of a daemon, in the order in which they are asked. A section may have its own application."""

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
