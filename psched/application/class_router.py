"""Dispatch: a router that maps task types to handler classes.

Used in child processes, commands and tests, but never in the master.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Mapping
from typing import Any, ClassVar, cast

from psched.application.handler_base import HandlerFactory, takes_one_argument
from psched.application.loader import find, import_module
from psched.application.router import Router, Routes, check_pattern
from psched.errors import ConfigError
from psched.store.type_filter import Pattern, matches


class Dispatch(Router):
    """Routes tasks by their type. Subclass it and set `routes`; no instance is created.

    The first route that matches wins. A string names a handler that is looked up when all modules are loaded:
    `"Handler"` in the module that defines `routes`, `"pkg.mod:Handler"` in any module.
    """

    routes: ClassVar[Routes] = {}

    @classmethod
    def route(cls, type: str) -> HandlerFactory | None:
        """Return the handler class for this type, or None."""
        for pattern, target in cls.routes.items():
            if matches(pattern, type):
                return cls._handler(target)
        return None

    @classmethod
    def routed_types(cls) -> Collection[Pattern] | None:
        """Return the patterns of `routes`. Only rows of matching types are acquired. None means any type.

        The result is None if a subclass overrides `route`. Such a subclass may also override `routed_types`.
        """
        is_ours = getattr(cls.route, "__func__", None) is Dispatch.__dict__["route"].__func__
        return tuple(cls.routes) if is_ours else None

    @classmethod
    def with_options(cls, options: Mapping[str, Any]) -> Router:
        """Return a subclass with the options of the key `app` in the configuration.

        A Dispatch class with options overrides this method. The method of Dispatch itself raises ConfigError.
        """
        raise ConfigError("this application takes no options in `app:`; remove them")

    @classmethod
    def check(cls) -> None:
        """Raise ConfigError if a route is malformed, or if its handler does not exist."""
        for pattern, target in cls.routes.items():
            try:
                check_pattern(pattern)
                cls._handler(target)
            except ConfigError as error:
                raise ConfigError(f"{cls.__name__}.routes[{pattern!r}]: {error}") from error

    @classmethod
    def close(cls) -> None:
        """Do nothing, because Dispatch keeps no state between tasks."""

    @classmethod
    def _handler(cls, target: HandlerFactory | str) -> HandlerFactory:
        found: object = target
        if isinstance(target, str):
            module_name, _, attribute = target.rpartition(":")
            owner = next(parent for parent in cls.__mro__ if "routes" in vars(parent))
            home = import_module(module_name) if module_name else sys.modules[owner.__module__]
            found = find(home, attribute)
        if not isinstance(found, type) or not all(callable(getattr(found, verb, None)) for verb in ("run", "kill")):
            raise ConfigError(f"a handler must be a subclass of psched.application.Base, got {found!r}")
        if not takes_one_argument(found):
            raise ConfigError(f"{found.__name__} must take one argument, the task, as in: def __init__(self, task)")
        return cast(HandlerFactory, found)
