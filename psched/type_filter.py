"""Which types of rows a worker claims: what its application routes, restricted to what it is told to serve."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cached_property
from typing import Any

Pattern = str | re.Pattern[str]
"""What a route is chosen by: a string is the whole type, an expression is searched in it (as in PerfectQueue)."""

_MATCHES_ANYTHING = frozenset(["", ".*", "^.*", ".*$"])
"""Expressions that are found in every type; `^.*$` is not found in one of two lines."""

_WILDCARDS = frozenset("*?[")


def matches(pattern: Pattern, type: str) -> bool:
    """Return whether a route for `pattern` takes this type."""
    if isinstance(pattern, str):
        return pattern == type
    return pattern.search(type) is not None


@dataclass(frozen=True)
class TypeFilter:
    """Accepts a type that some route takes, if it is also one to be served.

    `routes`: of the application; None: it may take any type. `served`: globs as `video.*`, of which a type must match
    one (`fnmatch`, case-sensitive); none: every type is served.
    """

    routes: tuple[Pattern, ...] | None = None
    served: tuple[str, ...] = ()

    def accepts(self, type: str) -> bool:
        """Tell whether rows of this type are claimed."""
        return self._is_routed(type) and self._is_served(type)

    def serving(self, globs: Iterable[str]) -> TypeFilter:
        """Return this filter restricted to types that match one of `globs`; none restricts nothing."""
        return TypeFilter(self.routes, tuple(globs))

    @cached_property
    def is_everything(self) -> bool:
        """Whether it accepts every type."""
        return self._routes_everything and (not self.served or "*" in self.served)

    @cached_property
    def names(self) -> frozenset[str]:
        """The types that it is known to accept, without looking at what types there are."""
        routed = [route for route in self.routes or () if isinstance(route, str)]
        served = [glob for glob in self.served if _WILDCARDS.isdisjoint(glob)]
        return frozenset(name for name in (*routed, *served) if self.accepts(name))

    def describe(self) -> str:
        """Return for people what it accepts."""
        routes = ["any type"] if self._routes_everything else sorted(map(_shown, self.routes or ()))
        return ", ".join(routes or ["no type"]) + (f" (only {', '.join(self.served)})" if self.served else "")

    def encode(self) -> str:
        """Return it as text for another process; see `decode`."""
        routes = None if self._routes_everything else [_encoded(route) for route in self.routes or ()]
        return json.dumps({"routes": routes, "served": self.served}, ensure_ascii=False)

    @classmethod
    def decode(cls, text: str) -> TypeFilter:
        """Return the filter that `encode` made this text of. Raises ValueError."""
        try:
            found: Any = json.loads(text)
            routes = found["routes"]
            return cls(None if routes is None else tuple(map(_decoded, routes)), tuple(found["served"]))
        except (KeyError, TypeError, re.error) as error:
            raise ValueError(f"expected a stored type filter (JSON), got {text[:100]!r}") from error

    def _is_routed(self, type: str) -> bool:
        if self.routes is None or type in self._exact:
            return True
        return any(route.search(type) is not None for route in self._expressions)

    def _is_served(self, type: str) -> bool:
        return not self.served or any(fnmatchcase(type, glob) for glob in self.served)

    @cached_property
    def _exact(self) -> frozenset[str]:
        return frozenset(route for route in self.routes or () if isinstance(route, str))

    @cached_property
    def _expressions(self) -> tuple[re.Pattern[str], ...]:
        return tuple(route for route in self.routes or () if isinstance(route, re.Pattern))

    @cached_property
    def _routes_everything(self) -> bool:
        return self.routes is None or any(route.pattern in _MATCHES_ANYTHING for route in self._expressions)


def _shown(route: Pattern) -> str:
    return route if isinstance(route, str) else f"/{route.pattern}/"


def _encoded(route: Pattern) -> str | list[Any]:
    return route if isinstance(route, str) else [route.pattern, route.flags]


def _decoded(route: Any) -> Pattern:
    if isinstance(route, str):
        return route
    pattern, flags = route
    return re.compile(pattern, flags)
