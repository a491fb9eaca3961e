"""From mappings to frozen objects (of attrs), each value checked as its field's annotation says. Any process."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

from attrs import frozen
from cattrs import AttributeValidationNote, ClassValidationError, Converter

Made = TypeVar("Made")


@frozen
class Check:
    """In an annotation: `function(value)` returns the value as it is used, or raises ValueError.

    `located`: it is given a folder, too, from which it takes relative paths.
    """

    function: Callable[..., Any]
    located: bool = False


def structure(kind: type[Made], values: Mapping[str, Any], base: Path = Path()) -> Made:
    """Return the object that `values`, which has names of fields only, are; relative paths are taken from `base`.

    Raises ClassValidationError, of which `faults` tells everything that is wrong.
    """
    return _converter(base).structure(values, kind)


def faults(error: ClassValidationError) -> Iterator[tuple[str, Exception]]:
    """Yield each field that cannot be used, and why: the ValueError of its check, KeyError when it is missing.

    Raises what else a check has raised: that is no fault of the value.
    """
    for fault in error.exceptions:
        if not isinstance(fault, ValueError | KeyError):
            raise fault
        yield next(note.name for note in fault.__notes__ if isinstance(note, AttributeValidationNote)), fault


@lru_cache(maxsize=8)
def _converter(base: Path) -> Converter:
    converter = Converter(forbid_extra_keys=True)
    converter.register_structure_hook_factory(_is_checked, lambda kind: _hook(_check_of(kind), base))
    return converter


def _is_checked(kind: Any) -> bool:
    return any(isinstance(each, Check) for each in getattr(kind, "__metadata__", ()))


def _check_of(kind: Any) -> Check:
    return next(each for each in kind.__metadata__ if isinstance(each, Check))


def _hook(check: Check, base: Path) -> Callable[[Any, Any], Any]:
    function = check.function
    return (lambda value, _: function(value, base)) if check.located else (lambda value, _: function(value))
