"""Reads the data of a task as options of psched's own handlers. Used in child processes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from attrs import AttrsInstance, fields_dict
from cattrs import ClassValidationError

from psched.config.structuring import faults, structure
from psched.error_messages import did_you_mean

Made = TypeVar("Made", bound=AttrsInstance)
T = TypeVar("T")


def read(kind: type[Made], data: Mapping[str, Any]) -> Made:
    """Return `data` as a `kind`. JSON null means the default, if the default is None.

    Raises ValueError whose message has every error, on one line.
    """
    known = fields_dict(kind)
    wrong = [f"unknown key {key!r}{did_you_mean(key, known, more_follows=True)}" for key in data if key not in known]
    try:
        made = structure(
            kind, {name: data[name] for name in known.keys() & data if data[name] is not known[name].default}
        )
    except ClassValidationError as error:
        wrong = [f"{name}: {fault}" for name, fault in faults(error)] + wrong
    if wrong:
        raise ValueError("; ".join(wrong))
    return made


def instance_of(kind: type[T], expected: str) -> Callable[[Any], T]:
    """Return a check for values of this type. True and false do not count as numbers."""

    def check(value: Any) -> T:
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            raise ValueError(f"expected {expected}")
        return value

    return check


text = instance_of(str, "text")
number = instance_of(int, "a whole number")
flag = instance_of(bool, "true or false")
mapping = instance_of(dict, "an object")


def list_of(test: Callable[[Any], T]) -> Callable[[Any], list[T]]:

    def check(value: Any) -> list[T]:
        if not isinstance(value, list) or not value:
            raise ValueError("expected a list that is not empty")
        return [_checked(f"item {place}", test, item) for place, item in enumerate(value)]

    return check


def mapping_of(name: Callable[[Any], str], test: Callable[[Any], T]) -> Callable[[Any], dict[str, T]]:

    def check(value: Any) -> dict[str, T]:
        return {name(key): _checked(repr(key), test, item) for key, item in mapping(value).items()}

    return check


def _checked(where: str, test: Callable[[Any], T], value: Any) -> T:
    try:
        return test(value)
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from None
