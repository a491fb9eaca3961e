"""The base class of routers. A router finds the handler for a type of task."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from typing import Any

from psched.application.handler_base import HandlerFactory
from psched.errors import ConfigError
from psched.keys import check_key
from psched.schedules_file.declared import DeclaredSchedules
from psched.store.type_filter import Pattern

Routes = Mapping[Pattern, HandlerFactory | str]
"""Handlers by pattern. A string names a class that is looked up later."""


class Router(ABC):
    """Finds the handler for a type of task.

    An App is a router. A Dispatch class is a router itself; no instance of it is created.
    """

    @abstractmethod
    def route(self, type: str) -> HandlerFactory | None:
        """Return the factory of handlers for this type, or None if this router does not handle the type."""

    @abstractmethod
    def routed_types(self) -> Collection[Pattern] | None:
        """Return the patterns of all routes. Only rows of matching types are acquired. None means any type."""

    def with_options(self, options: Mapping[str, Any]) -> Router:
        """Return a router with the options of the key `app` in the configuration.

        Raises ConfigError for unknown options.
        """
        raise ConfigError("this application takes no options in `app:`; remove them")

    def check(self) -> None:  # noqa: B027 – a router may have nothing to check
        """Raise ConfigError if a route has no handler."""

    def declared_schedules(self) -> list[DeclaredSchedules]:
        """Return the schedules that this router declares, grouped by owner. Raises ConfigError."""
        return []

    def close(self) -> None:  # noqa: B027 – most routers keep nothing between tasks
        """Close the resources of the calling handler thread. Called when that thread ends."""


def check_pattern(pattern: object) -> Pattern:
    """Return `pattern`. Raises ConfigError if it is neither a valid task type nor a regular expression for text."""
    if isinstance(pattern, str) and pattern:
        try:
            return check_key(pattern, "a task type")
        except ValueError as error:
            raise ConfigError(str(error)) from None
    if isinstance(pattern, re.Pattern) and isinstance(pattern.pattern, str):
        return pattern
    raise ConfigError(f"a task type must be a non-empty string or a compiled regular expression, got {pattern!r}")
