"""Caches of the SQL that all stores on tables of the same names share, per process.

SQLAlchemy takes some 10 ms to build it for a store, longer than most clients then use it. Shared objects only gain
entries, so threads need no lock.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

from sqlalchemy import MetaData, Table

_KEPT = 256
"""Results that are kept of each kind; a process has a handful of tables."""

S = TypeVar("S")
T = TypeVar("T")
P = ParamSpec("P")


@lru_cache(_KEPT)
def table_named(make: Callable[..., Table], name: str, *options: object) -> Table:
    """Return the table that `make(metadata, name, *options)` makes, the same for every store."""
    return make(MetaData(), name, *options)


def cached(make: Callable[P, T], *parts: P.args, **named: P.kwargs) -> T:
    """Return `make(*parts)`, the same for the same parts. It must keep nothing that is one store's."""
    made: T = _made(make, *parts, **named)
    return made


def cached_on_class(build: Callable[Concatenate[S, P], None]) -> Callable[Concatenate[S, P], None]:
    """Let a method that makes attributes of its arguments alone do so once for all objects that give it the same."""

    def build_blank(kind: type[S], *parts: P.args, **named: P.kwargs) -> dict[str, Any]:
        blank = object.__new__(kind)  # nothing of one object can get into what all of them share
        build(blank, *parts, **named)
        return vars(blank)

    built: Callable[..., dict[str, Any]] = lru_cache(_KEPT)(build_blank)

    @wraps(build)
    def take_over(self: S, /, *parts: P.args, **named: P.kwargs) -> None:
        vars(self).update(built(type(self), *parts, **named))

    return take_over


def _make(make: Callable[..., Any], *parts: Any, **named: Any) -> Any:
    return make(*parts, **named)


_made: Callable[..., Any] = lru_cache(_KEPT)(_make)
