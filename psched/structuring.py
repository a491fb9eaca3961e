"""From mappings to frozen objects (of attrs), each value tested as its field's annotation says. Any process."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

from attrs import frozen
from cattrs import AttributeValidationNote, ClassValidationError, Converter

Made = TypeVar("Made")


@frozen
class Test:
    """In an annotation: `check(value)` returns the value as it is used, or raises ValueError.

    `located`: it is given a folder, too, from which it takes relative paths.
    """

    check: Callable[..., Any]
    located: bool = False


def structure(kind: type[Made], values: Mapping[str, Any], base: Path = Path()) -> Made:
    """Return the object that `values`, which has names of fields only, are; relative paths are taken from `base`.

    Raises ClassValidationError, of which `faults` tells everything that is wrong.
    """
    return _converter(base).structure(values, kind)


def faults(error: ClassValidationError) -> Iterator[tuple[str, Exception]]:
    """Yield each field that cannot be used, and why: what its test raised, KeyError when it is missing."""
    for fault in error.exceptions:
        yield next(note.name for note in fault.__notes__ if isinstance(note, AttributeValidationNote)), fault


@lru_cache(maxsize=8)
def _converter(base: Path) -> Converter:
    converter = Converter(forbid_extra_keys=True)
    converter.register_structure_hook_factory(lambda kind: _test_of(kind) is not None, lambda kind: _hook(kind, base))
    return converter


def _test_of(kind: Any) -> Test | None:
    return next((each for each in getattr(kind, "__metadata__", ()) if isinstance(each, Test)), None)


def _hook(kind: Any, base: Path) -> Callable[[Any, Any], Any]:
    test = _test_of(kind)
    assert test is not None
    return (lambda value, _: test.check(value, base)) if test.located else (lambda value, _: test.check(value))
