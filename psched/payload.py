"""The data of schedules and tasks as JSON text: checked before it is written. Used in every process but the master."""

from __future__ import annotations

import base64
import gzip
import json
import re
import zlib
from typing import Any

MAX_KEY_LENGTH = 255
_GZIP = b"\x1f\x8b"
_GZIP_AS_TEXT = "H4sI"
_SURROGATE = re.compile("[\ud800-\udfff]")

MAX_DATA_BYTES = 8_000_000
"""A statement with it must pass MariaDB's `max_allowed_packet` of 16 MB, each of its bytes perhaps escaped."""


def check_key(key: object) -> str:
    """Return `key`. Raises ValueError unless it is text of 1 to 255 characters without NUL and lone surrogates."""
    if not isinstance(key, str) or not key:
        raise ValueError(f"key must be non-empty text, got {key!r}")
    if len(key) > MAX_KEY_LENGTH:
        raise ValueError(f"key has {len(key)} characters, at most {MAX_KEY_LENGTH} can be stored: {key[:40]!r}…")
    if "\0" in key or (not key.isascii() and _SURROGATE.search(key)):
        raise ValueError(f"key holds a character that cannot be stored: {key!r}")
    return key


def encode(data: object) -> str:
    """Return `data` as compact JSON, UTF-8 not escaped. Raises ValueError for anything but an object of JSON values."""
    if not isinstance(data, dict):
        raise ValueError(f"data must be a JSON object (a dict), got {type(data).__name__}")
    if not data:
        return "{}"
    try:
        text = _ENCODER.encode(data)
        _check_names(data)
        size = len(text) if text.isascii() else len(text.encode())
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"data cannot be stored as JSON: {error}") from error
    if size > MAX_DATA_BYTES:
        raise ValueError(f"data has {size} bytes as JSON, at most {MAX_DATA_BYTES} can be stored")
    return text


def _check_names(data: Any, *path: Any) -> None:
    """Raise TypeError for a name that is no text: JSON's writer would make it one, `1` as `"1"`."""
    is_object = isinstance(data, dict)
    for name in data if is_object else ():
        if not isinstance(name, str):
            where = "data" + "".join(f"[{step!r}]" for step in path)
            raise TypeError(f"the name {name!r} in {where} is no text; it would be read again as another one")
    for name, value in data.items() if is_object else enumerate(data):
        if isinstance(value, _NESTED):
            _check_names(value, *path, name)


def compress(text: str) -> bytes:
    """Return `text` as one gzip member, the same each time."""
    return gzip.compress(text.encode(), mtime=0)


def compress_to_text(text: str) -> str:
    """Return `text` compressed, for a column that holds text."""
    return base64.b64encode(compress(text)).decode()


def is_compressed(stored: str | bytes) -> bool:
    """Tell whether `stored` is what one of the two has made; no JSON object begins like that."""
    return stored.startswith(_GZIP) if isinstance(stored, bytes) else stored.startswith(_GZIP_AS_TEXT)


def _expand(stored: str | bytes) -> str | bytes:
    if not is_compressed(stored):
        return stored
    try:
        packed = base64.b64decode(stored, validate=True) if isinstance(stored, str) else stored
        return gzip.decompress(packed)
    except (OSError, EOFError, zlib.error) as error:
        raise ValueError(f"compressed data is damaged: {error}") from error


def decode(text: str | bytes) -> dict[str, Any]:
    """Return the object in `text`, compressed or not. Raises ValueError when it is not JSON or not an object."""
    if text[:1] != "{":
        text = _expand(text)
        if isinstance(text, bytes):
            text = text.decode(json.detect_encoding(text), "surrogatepass")
    value: Any = _DECODER.value(text)  # type: ignore[arg-type]
    if not isinstance(value, dict):
        raise ValueError(f"data must be a JSON object, found {type(value).__name__}")
    return value


class _Decoder(json.JSONDecoder):
    """Looks for blanks around a value only where it is not as `encode` writes it."""

    def value(self, text: str) -> Any:
        """Return what `decode` does. Raises ValueError."""
        if text[:1] != "{":
            return self.decode(text)
        try:
            found, end = self.scan_once(text, 0)  # type: ignore[attr-defined]
        except StopIteration:  # how the scanner says that there is no value, which is an error in `decode`
            return self.decode(text)
        return found if end == len(text) else self.decode(text)


def _refuse(constant: str) -> None:
    """Python's reader takes NaN and Infinity, which are no JSON and could not be written again."""
    raise ValueError(f"{constant} is no JSON")


_NESTED = (dict, list, tuple)
_ENCODER = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"))
_DECODER = _Decoder(parse_constant=_refuse)
"""Made once: for small data that takes longer than using them."""


def type_from_key(key: str) -> str:
    """Return the type of a row that names none: its key up to the first dot (as in PerfectSched)."""
    return key.partition(".")[0]
