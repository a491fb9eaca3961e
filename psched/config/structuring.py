"""Creates frozen attrs objects from mappings. The `Check` in a field's annotation validates the field's value."""

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
    """The validator in a field's annotation. `function(value)` returns the converted value, or raises ValueError.

    `located`: whether the function takes the folder of relative paths as its second argument.
    """

    function: Callable[..., Any]
    located: bool = False


def structure(kind: type[Made], values: Mapping[str, Any], base: Path = Path()) -> Made:
    """Return an object of `kind` with these values. Raises ClassValidationError; see `faults`.

    `base`: the folder at which relative paths start.
    """
    return _converter(base).structure(values, kind)


def faults(error: ClassValidationError) -> Iterator[tuple[str, Exception]]:
    """Yield each invalid field with its error: the ValueError of its check, or KeyError for a missing field.

    Raises any other exception of a check, as that is a bug in the check and not a wrong value.
    """
    for fault in error.exceptions:
        if not isinstance(fault, ValueError | KeyError):
            raise fault
        yield next(note.name for note in fault.__notes__ if isinstance(note, AttributeValidationNote)), fault


@lru_cache(maxsize=8)
def _converter(base: Path) -> Converter:

    def hook(kind: Any) -> Callable[[Any, Any], Any]:
        check = _check_of(kind)
        arguments = (base,) if check.located else ()
        return lambda value, _: check.function(value, *arguments)

    converter = Converter(forbid_extra_keys=True)
    converter.register_structure_hook_factory(lambda kind: _check_of(kind) is not None, hook)
    return converter


def _check_of(kind: Any) -> Any:
    return next((each for each in getattr(kind, "__metadata__", ()) if isinstance(each, Check)), None)
