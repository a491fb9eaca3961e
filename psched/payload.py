"""The data of schedules and tasks as JSON text, checked before it is written. The master does not use this module."""

from __future__ import annotations

import base64
import gzip
import json
import math
import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from psched.error_messages import shown
from psched.keys import SURROGATE

_GZIP = b"\x1f\x8b"
_GZIP_AS_TEXT = "H4sI"
_MOST_DIGITS = 4300
"""The maximum number of digits of a whole number that Python reads and writes by default."""
_LONG_NUMBER = re.compile(rf"(?<![\w.\"])\d{{{_MOST_DIGITS + 1},}}(?![\w.\"])")

MAX_STORED_BYTES = 8_000_000
"""The maximum number of bytes of one stored value. Even if each byte is escaped, a statement with the value fits into
MariaDB's `max_allowed_packet` of 16 MB."""

MAX_DATA_SIZE = 16_000_000
"""The default of `max_data_size`: the maximum number of bytes of JSON in one row, before compression."""

MAX_HEADERS_SIZE = 4096
"""The maximum number of bytes of JSON for the headers of a task."""

MAX_RESULT_SIZE = 65_536
"""The maximum number of bytes of JSON for the result of a task."""

MAX_BATCH_SIZE = 16_000_000
"""The maximum number of bytes of JSON in one acquire. If the first row alone is larger, only this row is acquired."""


def count_within(sizes: Sequence[int], budget: int, least: int) -> int:
    """Return how many rows, from the first on, have at most `budget` bytes together. The result is at least `least`.

    `sizes`: the bytes of each row.
    """
    total = 0
    for place, size in enumerate(sizes):
        total += size
        if total > budget and place >= least:
            return place
    return len(sizes)


class Packed(NamedTuple):
    """Data as it is stored. `text`: the JSON, compressed or not. `size`: the bytes of the JSON before compression."""

    text: str
    size: int


def pack(data: object, compressed: bool = False, max_size: int = MAX_DATA_SIZE) -> Packed:
    """Return `data` in its stored form. Raises ValueError for data that cannot be stored or is too large.

    `max_size`: the maximum number of bytes as JSON. The stored form, compressed or not, has at most 8,000,000 bytes.
    """
    text = encode(data, max_size)
    size = byte_length(text)
    if not compressed:
        check_stored(size)
        return Packed(text, size)
    stored = compress_to_text(text)
    check_stored(len(stored), compressed=True)
    return Packed(stored, size)


def check_stored(size: int, compressed: bool = False) -> None:
    """Raise ValueError for stored data with too many bytes for one SQL statement."""
    if size > MAX_STORED_BYTES:
        what, hint = ("compressed", "; store less") if compressed else ("as JSON", "; compress it (compression=gzip)")
        raise ValueError(f"data has {size} bytes {what}, at most {MAX_STORED_BYTES} can be stored{hint}")


def byte_length(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode())


def object_of(data: object) -> dict[str, Any]:
    """Return a JSON object as a dict. Raises ValueError for a value that is not a mapping."""
    if isinstance(data, dict):
        return data
    if not isinstance(data, Mapping):
        raise ValueError(f"data must be a JSON object (a dict), got {type(data).__name__}")
    return dict(data)


def encode(data: object, max_size: int = MAX_DATA_SIZE) -> str:
    """Return `data` as compact JSON, with non-ASCII characters as they are.

    `max_size`: the maximum number of bytes of the JSON. Raises ValueError unless `data` is an object of JSON values.
    """
    if not isinstance(data, dict):
        raise ValueError(f"data must be a JSON object (a dict), got {type(data).__name__}")
    if not data:
        return "{}"
    text, size = _encode(data, "data")
    if size > max_size:
        raise _too_large(size, max_size)
    return text


def encode_headers(headers: Mapping[str, Any]) -> str | None:
    """Return the headers of a task as JSON; None for no headers. Raises ValueError if the headers cannot be stored."""
    given: object = headers
    if not isinstance(given, Mapping):
        raise ValueError(f"headers must be a JSON object (a dict), got {type(given).__name__}")
    if not given:
        return None
    text, size = _encode(dict(given), "headers")
    if size > MAX_HEADERS_SIZE:
        raise ValueError(
            f"the {len(given)} headers have {size} bytes as JSON, at most {MAX_HEADERS_SIZE} can be stored; "
            "move the input of the handler into data"
        )
    return text


def encode_result(result: object) -> str:
    """Return the result of a task as JSON.

    Raises ValueError if the result is not a JSON value, or has more than 65,536 bytes as JSON.
    """
    text, size = _encode(result, "result")
    if size > MAX_RESULT_SIZE:
        raise ValueError(
            f"the result has {size} bytes as JSON, at most {MAX_RESULT_SIZE} can be stored; write it to a file or a "
            "table, and return where it is"
        )
    return text


def decode_value(text: str | bytes) -> Any:
    """Return the value that JSON `text` describes. Raises ValueError."""
    return _DECODER.decode(text if isinstance(text, str) else text.decode())


def _encode(value: object, name: str) -> tuple[str, int]:
    """Return `value` as JSON, and the number of bytes. Raises ValueError.

    `name`: the name of `value` in the error message.
    """
    try:
        text = _ENCODER.encode(value)
        if isinstance(value, _NESTED):
            _check_names(value, name)
        return text, byte_length(text)
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"{name} cannot be stored as JSON: {_fault(value, name) or error}") from error


def _check_names(value: Any, *path: Any) -> None:
    """Raise TypeError if an object in `value` has a name that is not text. JSON would turn a name `1` into `"1"`.

    `path`: where `value` is in the data.
    """
    is_object = isinstance(value, dict)
    for name in value if is_object else ():
        if not isinstance(name, str):
            where = path[0] + "".join(f"[{step!r}]" for step in path[1:])
            raise TypeError(f"the name {name!r} in {where} is not text; JSON would turn it into text")
    for name, item in value.items() if is_object else enumerate(value):
        if isinstance(item, _NESTED):
            _check_names(item, *path, name)


def _fault(value: object, name: str) -> str | None:
    """Return the place of the first value that cannot be stored, and what is expected there.

    Return None if all values can be stored.
    """
    try:
        return next(_faults(value, name), None)
    except RecursionError:
        return "it is nested too deeply, or contains itself; use flatter data"


def _faults(value: object, place: str) -> Iterator[str]:
    if isinstance(value, dict):
        for name, item in value.items():
            if not isinstance(name, str):
                yield f"the name {shown(name)} in {place} is not text; JSON would turn it into text"
            elif SURROGATE.search(name):
                yield f"a name in {place} contains half of a surrogate pair, which is not valid text: {shown(name)}"
            yield from _faults(item, f"{place}[{shown(name)}]")
    elif isinstance(value, list | tuple):
        for number, item in enumerate(value):
            yield from _faults(item, f"{place}[{number}]")
    elif isinstance(value, str):
        if SURROGATE.search(value):
            yield f"{place} contains half of a surrogate pair, which is not valid text: {shown(value)}"
    elif isinstance(value, float):
        if not math.isfinite(value):
            yield f"{place} is {value}, which is not valid JSON; expected a finite number (at most 1.8e308), or null"
    elif isinstance(value, int):
        if has_too_many_digits(value):
            yield f"{place} is {shown(value)}; at most {_MOST_DIGITS} digits can be read again; give the number as text"
    elif value is not None:
        yield f"{place} is a {type(value).__name__}; expected text, a number, true, false, null, a list or an object"


def has_too_many_digits(number: int) -> bool:
    return number.bit_length() * 0.30103 > _MOST_DIGITS


def long_number(text: str) -> str | None:
    """Return the error for JSON `text` with a whole number that is too long for Python; None if there is none."""
    found = _LONG_NUMBER.search(text)
    if found is None:
        return None
    count = len(found[0])
    return f"it holds a number of {count} digits, at most {_MOST_DIGITS} digits can be read; give the number as text"


def compress(text: str) -> bytes:
    """Return `text` as one gzip member. Equal texts have equal results."""
    return gzip.compress(text.encode(), mtime=0)


def compress_to_text(text: str) -> str:
    return base64.b64encode(compress(text)).decode()


def is_compressed(stored: str | bytes) -> bool:
    """Return whether `stored` is compressed. Its first bytes then differ from those of a JSON object."""
    return stored.startswith(_GZIP) if isinstance(stored, bytes) else stored.startswith(_GZIP_AS_TEXT)


def _expand(stored: str | bytes, max_size: int) -> str | bytes:
    if not is_compressed(stored):
        return stored
    try:
        packed = base64.b64decode(stored, validate=True) if isinstance(stored, str) else stored
        return _decompress(packed, max_size)
    except zlib.error as error:
        raise ValueError(f"compressed data is damaged: {error}") from error


def _decompress(packed: bytes, max_size: int) -> bytes:
    """Expand gzip members to at most `max_size` bytes. A few bytes may expand to gigabytes."""
    parts: list[bytes] = []
    size = 0
    while packed:
        member = zlib.decompressobj(wbits=31)
        parts.append(member.decompress(packed, max_size + 1 - size))
        size += len(parts[-1])
        if size > max_size:
            raise _too_large(f"more than {max_size}", max_size)
        if not member.eof:
            raise ValueError("compressed data is damaged: it ends too early")
        packed = member.unused_data.lstrip(b"\0")  # gzip may be padded with zero bytes
    return b"".join(parts)


class DataTooLargeError(ValueError):
    """Data has more bytes than `max_data_size`."""


def _too_large(size: object, max_size: int) -> DataTooLargeError:
    return DataTooLargeError(
        f"data has {size} bytes as JSON, at most {max_size} are allowed; store less, or raise max_data_size"
    )


def decode(text: str | bytes, max_size: int = MAX_DATA_SIZE) -> dict[str, Any]:
    """Return the object in the JSON `text`, compressed or not.

    Raises ValueError if `text` is not the JSON of an object.

    Raises DataTooLargeError for more than `max_size` bytes. Compressed data is expanded only up to that size.
    """
    if len(text) > max_size:
        raise _too_large(len(text), max_size)
    if text[:1] != "{":
        text = _expand(text, max_size)
        if isinstance(text, bytes):
            text = text.decode(json.detect_encoding(text), "surrogatepass")
    try:
        value: Any = _DECODER.value(text)  # type: ignore[arg-type]
    except json.JSONDecodeError:
        raise
    except ValueError as error:
        raise ValueError(f"data is not usable: {long_number(str(text)) or error}") from error
    if not isinstance(value, dict):
        raise ValueError(f"data must be a JSON object, found {type(value).__name__}")
    return value


class _Decoder(json.JSONDecoder):
    """Decodes JSON that `encode` has made. It is faster than `decode`, because it skips no blanks around the text."""

    def value(self, text: str) -> Any:
        """Return the same value as `decode`. Raises ValueError."""
        if text[:1] != "{":
            return self.decode(text)
        try:
            found, end = self.scan_once(text, 0)  # type: ignore[attr-defined]
        except StopIteration:  # the scanner found no value; `decode` raises the error
            return self.decode(text)
        return found if end == len(text) else self.decode(text)


def _refuse(constant: str) -> None:
    """Raise an error for NaN and Infinity. Python's decoder accepts them, but they are not JSON."""
    raise ValueError(f"{constant} is not valid JSON")


_NESTED = (dict, list, tuple)
_ENCODER = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"))
_DECODER = _Decoder(parse_constant=_refuse)
"""Created once, like `_ENCODER`, because creating it takes longer than encoding small data."""
