"""What settings are made of: values with names, each tested when the object is made. Any process.

A library for this would take 8 MB of every process, which is a tenth of what an idle daemon has.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass
from pathlib import Path
from typing import Any, Self, get_type_hints


@dataclass(frozen=True, slots=True)
class Test:
    """In a field's annotation: `test(value)` returns the value as it is used, or raises ValueError.

    `located`: it is called with a folder, too, from which it takes relative paths.
    """

    test: Callable[..., Any]
    located: bool = False


@dataclass(frozen=True, slots=True)
class Derived:
    """In a field's annotation: its default is made of the values of the fields before it."""

    make: Callable[[Mapping[str, Any]], Any]


class FaultyError(ValueError):
    """Some values cannot be used. `faults`: field → why, None when it is missing. It repeats no value."""

    def __init__(self, faults: Mapping[str, ValueError | None]) -> None:
        super().__init__("; ".join(f"{name}: {'missing' if why is None else why}" for name, why in faults.items()))
        self.faults = faults


class Checked:
    """The base of dataclasses that are frozen, made by names (`init=False`), and hold tested values only."""

    __slots__ = ()

    def __init__(self, base: Path | None = None, /, **given: Any) -> None:
        """`base`: the folder of relative paths; default: the working directory.

        Raises FaultyError, TypeError for a name that is no field's.
        """
        entries = _entries(type(self))
        unknown = given.keys() - entries.keys()
        if unknown:
            raise TypeError(f"{type(self).__name__} has no {', '.join(sorted(unknown))}")
        values: dict[str, Any] = {}
        faults: dict[str, ValueError | None] = {}
        for name, entry in entries.items():
            if entry.is_missing(given):
                faults[name] = None
                continue
            try:
                values[name] = entry.value(given, values, Path() if base is None else base)
            except ValueError as why:
                faults[name] = why
        if faults:
            raise FaultyError(faults)
        self._set(values)

    def but(self, **others: Any) -> Self:
        """Return the same with some other values, which are taken as they are."""
        made = object.__new__(type(self))
        made._set({name: getattr(self, name) for name in _entries(type(self))} | others)
        return made

    def _set(self, values: Mapping[str, Any]) -> None:
        for name, value in values.items():
            object.__setattr__(self, name, value)


@dataclass(frozen=True, slots=True)
class _Entry:
    """What is known of one field."""

    name: str
    default: Any
    tests: tuple[Test, ...] = ()
    derived: tuple[Derived, ...] = ()

    def is_missing(self, given: Mapping[str, Any]) -> bool:
        """Tell whether it has no value, and should have."""
        return self.name not in given and self.default is MISSING and not self.derived

    def value(self, given: Mapping[str, Any], known: Mapping[str, Any], base: Path) -> Any:
        """Return its value. Raises ValueError."""
        if self.name not in given and self.derived:
            return self.derived[0].make(known)
        value = given.get(self.name, self.default)
        if value is self.default:
            return value
        for each in self.tests:
            value = each.test(value, base) if each.located else each.test(value)
        return value


def _entries(kind: Any) -> dict[str, _Entry]:
    hints = get_type_hints(kind, include_extras=True)
    return {each.name: _entry(each, getattr(hints[each.name], "__metadata__", ())) for each in dataclasses.fields(kind)}


def _entry(of: dataclasses.Field[Any], told: tuple[object, ...]) -> _Entry:
    tests = tuple(each for each in told if isinstance(each, Test))
    return _Entry(of.name, of.default, tests, tuple(each for each in told if isinstance(each, Derived)))
