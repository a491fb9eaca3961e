"""Values of annotated types as JSON values, and back: by cattrs, without guessing (`"5"` is no int).

Imported when a value is first converted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields as dataclass_fields
from dataclasses import is_dataclass
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal, InvalidOperation
from enum import Enum
from inspect import Signature
from typing import Any, get_type_hints
from uuid import UUID

import attrs
from cattrs import ForbiddenExtraKeysError, StructureHandlerNotFoundError
from cattrs.cols import is_any_set, is_mutable_sequence, is_namedtuple, is_sequence
from cattrs.preconf.json import make_converter
from cattrs.v import format_exception, transform_error

from psched.error_text import shown


def unstructure(value: Any, path: str) -> Any:
    """Return the JSON value of `value`, by the classes of its parts. Parts without one stay. Raises ValueError."""
    try:
        return _CONVERTER.unstructure(value)
    except Exception as error:
        raise ValueError(f"{path} cannot be stored: {error!r}") from error


def restorer(annotation: Any) -> Callable[[Any, str], Any]:
    """Return a function that makes a value of this type of a JSON value and its path, or raises ValueError.

    Raises TypeError for a type that cannot be converted.
    """
    kind = Any if annotation in (Signature.empty, object) else annotation
    try:
        structure = _CONVERTER.get_structure_hook(kind)
    except StructureHandlerNotFoundError as error:
        raise TypeError(f"values of {_type_name(error.type_)} cannot be stored as JSON") from error

    def restore(stored: Any, path: str) -> Any:
        try:
            return structure(stored, kind)
        except Exception as error:
            faults = transform_error(error, path, lambda fault, part: _fault(fault, part or kind))
            raise ValueError("; ".join(_path_first(fault) for fault in faults)) from error

    return restore


def difference(given: Any, restored: Any, path: str) -> str | None:
    """Return in which part `restored` is not what was `given`, or None. A list may stand for a tuple."""
    if given is restored or _are_equal(given, restored):
        return None
    if isinstance(given, Mapping) and isinstance(restored, Mapping) and given.keys() == restored.keys():
        pairs = [(given[name], restored[name], f"{path}[{name!r}]") for name in given]
    elif isinstance(given, list | tuple) and isinstance(restored, list | tuple) and len(given) == len(restored):
        pairs = [(old, new, f"{path}[{place}]") for place, (old, new) in enumerate(zip(given, restored, strict=True))]
    elif type(given) is type(restored) and (names := _field_names(given)):
        pairs = [(getattr(given, name), getattr(restored, name), f"{path}.{name}") for name in names]
    else:
        return (
            f"{path}: {_described(given)} would come back from JSON as {_described(restored)}; "
            "annotate it with its type, or give a JSON value"
        )
    return next(filter(None, (difference(*pair) for pair in pairs)), None)


def _are_equal(given: Any, restored: Any) -> bool:
    if isinstance(given, datetime) and isinstance(restored, datetime) and given.tzinfo and restored.tzinfo:
        # In the hours of a clock change == is never true between zones.
        return given.astimezone(UTC) == restored.astimezone(UTC)
    if isinstance(given, time) and given.tzinfo is not None and given.utcoffset() is None:
        return False  # == ignores the zone, which is not stored
    try:
        return bool(given == restored)
    except Exception:  # noqa: BLE001 – a class may compare as it likes; its parts are compared then
        return False


def _field_names(value: Any) -> list[str]:
    if attrs.has(type(value)):
        return [field.name for field in attrs.fields(type(value))]
    return [field.name for field in dataclass_fields(value)] if is_dataclass(value) else []


def _described(value: Any) -> str:
    return f"the {type(value).__name__} {shown(value)}"


def _fault(error: BaseException, kind: Any) -> str:
    if isinstance(error, ForbiddenExtraKeysError | KeyError):
        return format_exception(error, kind)
    return str(error) if isinstance(error, ValueError) else f"expected {_type_name(kind)}"


def _path_first(fault: str) -> str:
    """Return `path: text` for cattrs' `text @ path`."""
    text, _, path = fault.rpartition(" @ ")
    return f"{path}: {text}"


def _type_name(kind: Any) -> str:
    return kind.__name__ if isinstance(kind, type) else str(kind).replace("typing.", "")


def _as_it_is(value: Any) -> Any:
    return value


def _checked(expected: str, *kinds: type, make: Callable[[Any], Any] = _as_it_is) -> Callable[[Any, Any], Any]:
    """Return a hook that passes JSON values of these `kinds` to `make`. True and false are no numbers."""

    def structure(value: Any, kind: Any) -> Any:
        if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
            raise ValueError(f"expected {expected}, got {shown(value)}")
        try:
            made = make(value)
        except (ValueError, InvalidOperation, OverflowError):
            raise ValueError(f"expected {expected}, got {shown(value)}") from None
        return made if not isinstance(kind, type) or isinstance(made, kind) else kind(made)

    return structure


def _list_hook(kind: Any, converter: Any) -> Callable[[Any, Any], Any]:
    """Return cattrs' hook for a sequence or set, for JSON lists only: it would split a text into characters."""
    _wrapped.append(kind)
    try:
        structure = converter.get_structure_hook(kind, cache_result=False)
    finally:
        _wrapped.pop()
    return lambda value, _: structure(_LIST(value, list), kind)


_wrapped: list[Any] = []
"""The types for which cattrs' own hook is looked up."""
_LIST = _checked("a list", list, tuple)


def _is_list(kind: Any) -> bool:
    if any(kind is each for each in _wrapped):
        return False
    is_tuple = kind is tuple or getattr(kind, "__origin__", None) is tuple
    return is_tuple or is_sequence(kind) or is_mutable_sequence(kind) or is_any_set(kind)


def _named_tuple_hook(kind: Any, converter: Any) -> Callable[[Any, Any], Any]:
    """Return what cattrs' own hook cannot be where annotations are text."""
    parts: Any = tuple[tuple(get_type_hints(kind).values())]  # type: ignore[misc]
    structure = converter.get_structure_hook(parts)
    return lambda value, _: kind(*structure(value, parts))


def _class_hook(kind: Any) -> Callable[[Any], Any]:
    """Return a function that makes an object of a dataclass or attrs class a dict, by what its fields hold."""
    declared = attrs.fields(kind) if attrs.has(kind) else dataclass_fields(kind)
    names = [field.name for field in declared if field.init]
    return lambda value: {name: _CONVERTER.unstructure(getattr(value, name)) for name in names}


def _make() -> Any:
    converter = make_converter(forbid_extra_keys=True)
    for kind, restore in (
        (str, _checked("text", str)),
        (bool, _checked("true or false", bool)),
        (int, _checked("a whole number", int)),
        (float, _checked("a number", float, int)),
        (type(None), _checked("null", type(None))),
        (date, _checked("a date such as 2026-11-23", str, make=date.fromisoformat)),
        (datetime, _checked("a time such as 2026-11-23T08:00:00+00:00", str, make=datetime.fromisoformat)),
        (time, _checked("a time of day such as 08:00:00", str, make=time.fromisoformat)),
        (timedelta, _checked("a number of seconds", float, int, make=_seconds)),
        (UUID, _checked("a UUID", str, make=UUID)),
        (Decimal, _checked("a decimal number as text", str, int, make=Decimal)),
    ):
        converter.register_structure_hook(kind, restore)
    converter.register_structure_hook_factory(_is_list, _list_hook)
    converter.register_structure_hook_factory(is_namedtuple, _named_tuple_hook)
    converter.register_unstructure_hook(time, time.isoformat)
    converter.register_unstructure_hook(timedelta, timedelta.total_seconds)
    converter.register_unstructure_hook(UUID, str)
    converter.register_unstructure_hook(Decimal, str)
    converter.register_unstructure_hook(Enum, lambda member: converter.unstructure(member.value))
    converter.register_unstructure_hook_func(
        is_namedtuple, lambda value: [converter.unstructure(item) for item in value]
    )
    converter.register_unstructure_hook_factory(lambda kind: attrs.has(kind) or is_dataclass(kind), _class_hook)
    return converter


def _seconds(number: float) -> timedelta:
    return timedelta(seconds=number)


_CONVERTER = _make()
