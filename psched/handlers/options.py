"""Reads the data of a task into the options of one of psched's own handlers. In children."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from attrs import AttrsInstance, fields_dict
from cattrs import ClassValidationError

from psched.config.structuring import faults, structure
from psched.config.validators import MAX_SECONDS
from psched.suggest import did_you_mean

Made = TypeVar("Made", bound=AttrsInstance)
T = TypeVar("T")


def read(kind: type[Made], data: Mapping[str, Any]) -> Made:
    """Return `data` as `kind`; null stands for a default of None. Raises ValueError: one line with every fault."""
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
    if not isinstance(value, str):
        raise ValueError("expected text")
    return value


def number(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise ValueError("expected a whole number")
    return value


def flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError("expected true or false")
    return value


def seconds(value: Any) -> float:
    """Accept a number of seconds above 0."""
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value <= MAX_SECONDS:
        raise ValueError(f"expected a number of seconds > 0 and ≤ {MAX_SECONDS:.0f}")
    return float(value)


def mapping(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError("expected an object")
    return value


def list_of(test: Callable[[Any], T]) -> Callable[[Any], list[T]]:
    """Return a test for a non-empty list of values that `test` accepts."""

    def check(value: Any) -> list[T]:
        if not isinstance(value, list) or not value:
            raise ValueError("expected a list that is not empty")
        return [_checked(f"item {place}", test, item) for place, item in enumerate(value)]

    return check


def mapping_of(name: Callable[[Any], str], test: Callable[[Any], T]) -> Callable[[Any], dict[str, T]]:
    """Return a test for a JSON object whose names `name` accepts and whose values `test` accepts."""

    def check(value: Any) -> dict[str, T]:
        return {name(key): _checked(repr(key), test, item) for key, item in mapping(value).items()}

    return check


def _checked(where: str, test: Callable[[Any], T], value: Any) -> T:
    try:
        return test(value)
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from None
