"""What the data of a task says that one of psched's own handlers is to do: read, or one line with every fault in it.

In children.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from attrs import AttrsInstance, fields_dict
from cattrs import ClassValidationError

from psched.config.structuring import faults, structure
from psched.config.validators import LONGEST
from psched.suggest import did_you_mean

Made = TypeVar("Made", bound=AttrsInstance)
T = TypeVar("T")


def read(kind: type[Made], data: Mapping[str, Any]) -> Made:
    """Return the instruction that `data` is; a null is as good as what may be null by default. Raises ValueError."""
    known = fields_dict(kind)
    wrong = [f"unknown key {key!r}{did_you_mean(key, known)}" for key in data if key not in known]
    try:
        made = structure(
            kind, {name: data[name] for name in known.keys() & data if data[name] is not known[name].default}
        )
    except ClassValidationError as error:
        wrong = [f"{name}: {fault}" for name, fault in faults(error)] + wrong
    if wrong:
        raise ValueError("; ".join(wrong))
    return made


def text(value: Any) -> str:
    """Accept text."""
    if not isinstance(value, str):
        raise ValueError("expected text")
    return value


def number(value: Any) -> int:
    """Accept a whole number."""
    if not isinstance(value, int) or isinstance(value, bool):
        raise ValueError("expected a whole number")
    return value


def flag(value: Any) -> bool:
    """Accept true or false."""
    if not isinstance(value, bool):
        raise ValueError("expected true or false")
    return value


def seconds(value: Any) -> float:
    """Accept a number of seconds above 0."""
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value <= LONGEST:
        raise ValueError(f"expected a number of seconds > 0 and ≤ {LONGEST:.0f}")
    return float(value)


def mapping(value: Any) -> dict[str, Any]:
    """Accept a JSON object."""
    if not isinstance(value, dict):
        raise ValueError("expected an object")
    return value


def listed(test: Callable[[Any], T]) -> Callable[[Any], list[T]]:
    """Return a test for a list of what `test` accepts that is not empty."""

    def check(value: Any) -> list[T]:
        if not isinstance(value, list) or not value:
            raise ValueError("expected a list that is not empty")
        return [_named(f"item {place}", test, item) for place, item in enumerate(value)]

    return check


def named(name: Callable[[Any], str], test: Callable[[Any], T]) -> Callable[[Any], dict[str, T]]:
    """Return a test for a JSON object with names that `name` accepts, of what `test` accepts."""

    def check(value: Any) -> dict[str, T]:
        return {name(key): _named(repr(key), test, item) for key, item in mapping(value).items()}

    return check


def _named(where: str, test: Callable[[Any], T], value: Any) -> T:
    try:
        return test(value)
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from None
