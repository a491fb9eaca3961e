"""Which types of rows a worker acquires: the types that its application routes, restricted to the configured types."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

Pattern = str | re.Pattern[str]
"""The pattern of a route. A string is the whole type. A regular expression is searched in the type, as in PerfectQueue.
"""

_MATCHES_ANYTHING = frozenset(["", ".*", "^.*", ".*$"])
"""Expressions that match every type. `^.*$` does not match a type with two lines."""

_WILDCARDS = frozenset("*?[")
_LONGEST_LIST = 300
"""The maximum number of characters of the list of routed types in a warning."""


def matches(pattern: Pattern, type: str) -> bool:
    """Return whether a route for `pattern` matches this type."""
    if isinstance(pattern, str):
        return pattern == type
    return pattern.search(type) is not None


@dataclass(frozen=True)
class TypeFilter:
    """Accepts the types that a route matches and that are also served.

    - `routes`: the patterns of the application; None: the application may route any type.
    - `served`: globs such as `video.*` (`fnmatch`, case-sensitive). A type must match one of them; without globs, every
      type is served.
    - `names`: the accepted types that are known by name, without a query.
    """

    routes: tuple[Pattern, ...] | None = None
    served: tuple[str, ...] = ()
    names: frozenset[str] = field(init=False, repr=False, compare=False)
    _exact: frozenset[str] = field(init=False, repr=False, compare=False)
    _expressions: tuple[re.Pattern[str], ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        routes = self.routes or ()
        exact = frozenset(route for route in routes if isinstance(route, str))
        object.__setattr__(self, "_exact", exact)
        object.__setattr__(self, "_expressions", tuple(route for route in routes if isinstance(route, re.Pattern)))
        named = exact.union(glob for glob in self.served if _WILDCARDS.isdisjoint(glob))
        object.__setattr__(self, "names", frozenset(filter(self.accepts, named)))

    def accepts(self, type: str) -> bool:
        """Return whether rows of this type are acquired."""
        return self._is_routed(type) and self._is_served(type)

    def serving(self, globs: Iterable[str]) -> TypeFilter:
        """Return this filter, restricted to types that match one of `globs`. No globs mean no restriction."""
        return TypeFilter(self.routes, tuple(globs))

    @property
    def is_everything(self) -> bool:
        """Whether every type is accepted."""
        return self._routes_everything and (not self.served or "*" in self.served)

    @property
    def is_exact(self) -> bool:
        """Whether only `names` are accepted."""
        is_routed_by_name = self.routes is not None and not self._expressions
        is_served_by_name = bool(self.served) and all(_WILDCARDS.isdisjoint(glob) for glob in self.served)
        return is_routed_by_name or is_served_by_name

    def describe(self) -> str:
        """Return the accepted types as text for people."""
        routes = ["any type"] if self._routes_everything else sorted(map(_shown, self.routes or ()))
        return ", ".join(routes or ["no type"]) + (f" (only {', '.join(self.served)})" if self.served else "")

    @property
    def idle_globs(self) -> tuple[str, ...]:
        """The globs of `served` that certainly match no routed type.

        If a route is a regular expression, a glob with wildcards is never among them.
        """
        return tuple(glob for glob in self.served if not self._may_match(glob))

    @property
    def is_nothing(self) -> bool:
        """Whether certainly no type is accepted, because no glob matches a routed type."""
        return bool(self.served) and self.idle_globs == self.served

    def encode(self) -> str:
        """Return the filter as text for another process; see `decode`."""
        routes = None if self._routes_everything else [_encoded(route) for route in self.routes or ()]
        return json.dumps({"routes": routes, "served": self.served}, ensure_ascii=False)

    @classmethod
    def decode(cls, text: str) -> TypeFilter:
        """Return the filter that `encode` has encoded. Raises ValueError."""
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

    def _may_match(self, glob: str) -> bool:
        if self._routes_everything or any(fnmatchcase(route, glob) for route in self._exact):
            return True
        is_name = _WILDCARDS.isdisjoint(glob)
        return any(route.search(glob) is not None if is_name else True for route in self._expressions)

    def _is_served(self, type: str) -> bool:
        return not self.served or any(fnmatchcase(type, glob) for glob in self.served)

    @property
    def _routes_everything(self) -> bool:
        return self.routes is None or any(route.pattern in _MATCHES_ANYTHING for route in self._expressions)


def mismatch(filters: Collection[TypeFilter]) -> str | None:
    """Return a message, with the remedy, about globs that match no routed type of any section; else None.

    `filters`: the filters of the sections that one worker serves.
    """
    served = dict.fromkeys(glob for each in filters for glob in each.served)
    idle = [glob for glob in served if not any(glob in each.served and glob not in each.idle_globs for each in filters)]
    if not idle:
        return None
    routed = ", ".join(sorted({_shown(route) for each in filters for route in each.routes or ()}))
    end = ", so this worker runs no task" if all(each.is_nothing for each in filters) else ""
    return (
        f"types: {', '.join(idle)} matches no type that the application routes "
        f"({routed[:_LONGEST_LIST]}){end}; correct `types:` or --types"
    )


def _shown(route: Pattern) -> str:
    return route if isinstance(route, str) else f"/{route.pattern}/"


def _encoded(route: Pattern) -> str | list[Any]:
    return route if isinstance(route, str) else [route.pattern, route.flags]


def _decoded(route: Any) -> Pattern:
    if isinstance(route, str):
        return route
    pattern, flags = route
    return re.compile(pattern, flags)
