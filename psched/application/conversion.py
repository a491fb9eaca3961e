"""Converts values of annotated types to JSON values and back by cattrs. Nothing is guessed: the text `"5"` is no int.

The import of cattrs takes 0.1 s. So `parameters` imports this module only at the first conversion. The master imports
it before it forks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Set
from contextlib import suppress
from dataclasses import _FIELD, _FIELD_INITVAR, MISSING, is_dataclass  # type: ignore[attr-defined]
from dataclasses import fields as dataclass_fields
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal, InvalidOperation
from enum import Enum
from inspect import Signature
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, NewType, Union, get_args, get_origin, get_type_hints, is_typeddict
from uuid import UUID

import attrs
from cattrs import Converter, ForbiddenExtraKeysError, StructureHandlerNotFoundError
from cattrs.cols import is_any_set, is_mutable_sequence, is_namedtuple, is_sequence
from cattrs.preconf.json import make_converter
from cattrs.v import format_exception, transform_error

from psched.error_messages import shown


def unstructure(value: Any, path: str) -> Any:
    """Return `value` as a JSON value. Raises ValueError.

    Each part of `value` is converted according to its class. JSON values are not changed.
    """
    try:
        return _CONVERTER.unstructure(value)
    except RecursionError as error:
        raise ValueError(f"{path} is nested too deeply, or contains itself; use flatter data") from error
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
    except Exception as error:
        raise ValueError(f"{path} cannot be stored: {error!r}") from error


def restorer(annotation: Any) -> Callable[[Any, str], Any]:
    """Return a function that converts a JSON value to a value of the type `annotation`.

    The returned function takes the JSON value and its path, and raises ValueError for a wrong value. `restorer` itself
    raises TypeError for a type that it does not support.
    """
    kind = Any if annotation in (Signature.empty, object) else annotation
    check_type(kind)
    structure = _hook_of(kind)

    def restore(stored: Any, path: str) -> Any:
        try:
            return structure(stored, kind)
        except Exception as error:
            faults = transform_error(error, path, lambda fault, part: _fault(fault, part or kind))
            raise ValueError("; ".join(_path_first(fault) for fault in faults)) from error

    return restore


def difference(given: Any, restored: Any, path: str) -> str | None:
    """Return a message about the first difference between the two values, or None. A list equals a tuple.

    Lists, mappings and objects are compared part by part, because the `==` of a class may ignore fields.
    """
    if given is restored:
        return None
    pairs: Iterable[tuple[Any, Any, str]]
    if isinstance(given, Mapping) and isinstance(restored, Mapping) and given.keys() == restored.keys():
        pairs = ((old, new, f"{path}[{name!r}]") for name, old in given.items() if (new := restored[name]) is not old)
    elif isinstance(given, list | tuple) and isinstance(restored, list | tuple) and len(given) == len(restored):
        both = enumerate(zip(given, restored, strict=True))
        pairs = ((old, new, f"{path}[{place}]") for place, (old, new) in both if old is not new)
    elif isinstance(given, Set) and isinstance(restored, Set) and given == restored:
        members = {member: member for member in restored}
        pairs = ((member, members[member], f"{path}[{shown(member)}]") for member in given)
    elif type(given) is type(restored) and (names := _field_names(given)):
        pairs = ((getattr(given, name), getattr(restored, name), f"{path}.{name}") for name in names)
    elif _are_equal(given, restored):
        return None
    elif isinstance(given, datetime | time) and given.tzinfo is None and given.replace(fold=0) == restored:
        return f"{path}: fold=1 of {shown(given)} cannot be stored without a time zone; give it a tzinfo, or fold=0"
    else:
        return (
            f"{path}: {_described(given)} would come back from JSON as {_described(restored)}; "
            "annotate it with its type, or give a JSON value"
        )
    return next(filter(None, (difference(*pair) for pair in pairs)), None)


def _are_equal(given: Any, restored: Any) -> bool:
    if isinstance(given, datetime) and isinstance(restored, datetime) and given.tzinfo and restored.tzinfo:
        # Times of different zones are never equal by == within the hours of a clock change.
        return given.astimezone(UTC) == restored.astimezone(UTC)
    if isinstance(given, time) and given.tzinfo is not None and given.utcoffset() is None:
        return False  # the name of the zone is not stored; == ignores it
    if isinstance(given, datetime | time) and given.tzinfo is None and given.fold != getattr(restored, "fold", 0):
        return False  # `==` ignores `fold`
    if isinstance(given, Decimal) and isinstance(restored, Decimal):
        return given.compare_total(restored) == 0  # NaN is never equal by `==`
    try:
        return bool(given == restored)
    except Exception:  # noqa: BLE001 – the `==` of a class may raise anything; then the parts are compared
        return False


def _field_names(value: Any) -> list[str]:
    """Return the names of the fields that are stored or compared by `==`."""
    if attrs.has(type(value)):
        return [field.name for field in attrs.fields(type(value)) if field.init or field.eq]
    return [each.name for each in dataclass_fields(value) if each.init or each.compare] if is_dataclass(value) else []


def _described(value: Any) -> str:
    return f"the {type(value).__name__} {shown(value)}"


def _fault(error: BaseException, kind: Any) -> str:
    if isinstance(error, ForbiddenExtraKeysError | KeyError):
        return format_exception(error, kind)
    return str(error) if isinstance(error, ValueError) else f"expected {_type_name(kind)}"


def _path_first(fault: str) -> str:
    """Return `path: text` for a message `text @ path` of cattrs."""
    text, _, path = fault.rpartition(" @ ")
    return f"{path}: {text}"


def _type_name(kind: Any) -> str:
    return kind.__name__ if isinstance(kind, type) else str(kind).replace("typing.", "")


def _checked(expected: str, *kinds: type, make: Callable[[Any], Any] | None = None) -> Callable[[Any, Any], Any]:
    """Return a hook that refuses JSON values other than these `kinds`, and converts the others by `make`.

    True and false do not count as numbers. Without `make`, the hook returns the value itself.
    """

    def structure(value: Any, kind: Any) -> Any:
        if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
            raise ValueError(f"expected {expected}, got {shown(value)}")
        try:
            made = value if make is None else make(value)
            return made if not isinstance(kind, type) or isinstance(made, kind) else kind(made)
        except (ValueError, InvalidOperation, OverflowError):
            raise ValueError(f"expected {expected}, got {shown(value)}") from None

    return structure


def _list_hook(kind: Any, converter: Any) -> Callable[[Any, Any], Any]:
    """Return a hook that refuses anything but a JSON list, and passes a list to cattrs' own hook.

    Without this check, cattrs would split a text into characters.
    """
    _wrapped.append(kind)
    try:
        structure = converter.get_structure_hook(kind, cache_result=False)
    finally:
        _wrapped.pop()
    return lambda value, _: structure(_LIST(value, list), kind)


_wrapped: list[Any] = []
"""The types whose hooks `_list_hook` is now getting from cattrs. This list prevents an endless recursion."""
_LIST = _checked("a list", list, tuple)


def _is_list(kind: Any) -> bool:
    if any(kind is each for each in _wrapped):
        return False
    is_tuple = kind is tuple or getattr(kind, "__origin__", None) is tuple
    return is_tuple or is_sequence(kind) or is_mutable_sequence(kind) or is_any_set(kind)


def _is_plain_union(kind: Any) -> bool:
    """Return whether `kind` is a union of several JSON types such as `int | str`."""
    kinds = {*get_args(kind)} - {NoneType}
    return get_origin(kind) in (Union, UnionType) and len(kinds) > 1 and kinds <= {str, bool, int, float}


def _plain_union_hook(kind: Any) -> Callable[[Any, Any], Any]:
    """Return a hook for a union such as `int | str`. Its error message shows the value.

    A whole number counts as a float. True and false do not.
    """
    classes = {*get_args(kind)} | ({int} if float in get_args(kind) else set())

    def structure(value: Any, kind: Any) -> Any:
        if type(value) not in classes:
            raise ValueError(f"expected {_type_name(kind)}, got {shown(value)}")
        return value

    return structure


def _is_literal(kind: Any) -> bool:
    return get_origin(kind) is Literal


def _literal_hook(kind: Any, converter: Converter) -> Callable[[Any, Any], Any]:
    """Return a hook for a `Literal`. Its error message names the permitted values."""
    choices = [(converter.unstructure(each), each) for each in get_args(kind)]
    expected = ", ".join(shown(stored) for stored, _ in choices)

    def structure(value: Any, kind: Any) -> Any:
        for stored, each in choices:
            if type(value) is type(stored) and value == stored:
                return each
        raise ValueError(f"expected {'one of ' if len(choices) > 1 else ''}{expected}, got {shown(value)}")

    return structure


def _named_tuple_hook(kind: Any, converter: Any) -> Callable[[Any, Any], Any]:
    """Return a hook for named tuples whose annotations are text. cattrs' own hook does not support them."""
    parts: Any = tuple[tuple(get_type_hints(kind).values())]  # type: ignore[misc]
    structure = converter.get_structure_hook(parts)
    return lambda value, _: kind(*structure(value, parts))


def _class_hook(kind: Any) -> Callable[[Any], Any]:
    """Return a function that turns an object of a dataclass or attrs class into a dict of its fields."""
    declared = attrs.fields(kind) if attrs.has(kind) else dataclass_fields(kind)
    names = [field.name for field in declared if field.init]
    return lambda value: {name: _CONVERTER.unstructure(getattr(value, name)) for name in names}


def check_type(kind: Any, seen: frozenset[type] = frozenset()) -> None:
    """Raise TypeError for a type whose values cannot be stored. cattrs itself raises only when it converts a value.

    `seen`: the classes whose fields are being checked.
    """
    origin = get_origin(kind) or kind
    kinds: Iterable[Any] = get_args(kind)
    if origin is Literal:
        return
    if origin is Annotated:
        kinds = [kind.__origin__]
    elif isinstance(kind, NewType):
        kinds = [kind.__supertype__]
    elif origin in (Union, UnionType):
        kinds = [each for each in kinds if each is not NoneType]
        if len(kinds) > 1:
            _hook_of(Union[tuple(kinds)])  # noqa: UP007 – the types are in a list
    elif isinstance(origin, type):
        if issubclass(origin, Mapping) and kinds and not _is_text(next(iter(kinds))):
            raise TypeError(
                f"{_type_name(kind)}: the names in a JSON object are text; use dict[str, …], or a list of pairs"
            )
        if origin not in seen and (attrs.has(origin) or is_dataclass(origin) or is_typeddict(origin)):
            seen |= {origin}
            kinds = [*kinds, *_field_types(origin)]
    for each in kinds:
        check_type(each, seen)


def _is_text(kind: Any) -> bool:
    """Return whether a value of this type can be a name in a JSON object."""
    if isinstance(kind, NewType):
        return _is_text(kind.__supertype__)
    origin, parts = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return _is_text(parts[0])
    if origin is Literal:
        return any(isinstance(_CONVERTER.unstructure(each), str) for each in parts)
    if origin in (Union, UnionType):
        return any(_is_text(each) for each in parts)
    if isinstance(kind, type) and issubclass(kind, Enum):
        return any(isinstance(_CONVERTER.unstructure(each), str) for each in kind)
    return kind not in (int, float, bool, NoneType, timedelta, list, tuple, dict) and origin not in (list, tuple, dict)


def _field_types(kind: type) -> list[Any]:
    fields = getattr(kind, "__dataclass_fields__", {}) if is_dataclass(kind) else {}
    for field in fields.values():
        if field._field_type is _FIELD_INITVAR and field.default is MISSING:
            raise TypeError(f"{kind.__name__}: its objects do not keep the InitVar {field.name}; store it in a field")
    try:
        hints = get_type_hints(kind, include_extras=True)
    except NameError as error:
        raise TypeError(
            f"an annotation of {kind.__name__} cannot be evaluated: {error}; import its names outside of "
            "`if TYPE_CHECKING`"
        ) from error
    return [hint for name, hint in hints.items() if name not in fields or fields[name]._field_type is _FIELD]


def _hook_of(kind: Any) -> Callable[[Any, Any], Any]:
    """Return a function that converts a JSON value to this type. Raises TypeError."""
    try:
        hook: Callable[[Any, Any], Any] = _CONVERTER.get_structure_hook(kind)
    except StructureHandlerNotFoundError as error:
        name = _type_name(error.type_)
        if get_origin(error.type_) in (Union, UnionType):
            raise TypeError(
                f"a JSON value does not show which of the types {name} it has; use only one type"
            ) from error
        raise TypeError(f"values of {name} cannot be stored as JSON") from error
    return hook


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
    converter.register_structure_hook_factory(_is_plain_union, _plain_union_hook)
    converter.register_structure_hook_factory(_is_literal, _literal_hook)
    converter.register_structure_hook_factory(_is_list, _list_hook)
    converter.register_structure_hook_factory(is_namedtuple, _named_tuple_hook)
    converter.register_unstructure_hook(time, time.isoformat)
    converter.register_unstructure_hook(timedelta, _stored_seconds)
    converter.register_unstructure_hook(bytearray, lambda value: converter.unstructure(bytes(value)))
    converter.register_unstructure_hook(UUID, str)
    converter.register_unstructure_hook(Decimal, str)
    converter.register_unstructure_hook(Enum, lambda member: converter.unstructure(member.value))
    converter.register_unstructure_hook_func(
        is_namedtuple, lambda value: [converter.unstructure(item) for item in value]
    )
    converter.register_unstructure_hook_factory(lambda kind: attrs.has(kind) or is_dataclass(kind), _class_hook)
    return converter


def _stored_seconds(duration: timedelta) -> float:
    number = duration.total_seconds()
    with suppress(OverflowError):
        if timedelta(seconds=number) == duration:
            return number
    raise ValueError(f"{duration!r} is too long to be stored to the microsecond; round it to seconds")


def _seconds(number: float) -> timedelta:
    return timedelta(seconds=number)


_CONVERTER = _make()
