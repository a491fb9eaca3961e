"""Makes parts of error messages: the question "did you mean", the repr of a value, and an exception on one line."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

_LONGEST_VALUE = 60
"""The maximum number of characters of a value in an error message."""
_MAX_BITS = 13_000
"""Messages show only the length of an integer with more bits. Python refuses to print more than 4,300 digits."""
_BIDI = (0x061C, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A))
ESCAPES = {
    code: f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"
    for code in (*range(0x20), *range(0x7F, 0xA0), 0x2028, 0x2029, *_BIDI)
}
"""A table for `str.translate` that escapes control characters, line separators, and characters that change the
direction of text. Keys, types and errors may contain these characters, and a terminal would obey them."""


class InvalidValueError(ValueError):
    """A value from a caller, or from a visitor of the web pages, is not valid. The message says what was expected.

    Public methods promise only ValueError. The web pages catch this subclass, so they do not hide a ValueError that a
    bug of psched has caused.
    """


def did_you_mean(word: str, known: Iterable[str], more_follows: bool = False) -> str:
    """Return `; did you mean 'x'?`, where x is the known word closest to `word`. Return '' if no word is close.

    Upper and lower case count as equal. `more_follows`: return ` (did you mean 'x'?)`, because the message continues.
    """
    by_folded = {name.casefold(): name for name in known}
    close = get_close_matches(word.casefold()[:100], by_folded, n=1)
    if not close:
        return ""
    question = f"did you mean {by_folded[close[0]]!r}?"
    return f" ({question})" if more_follows else f"; {question}"


def shown(value: object, longest: int = _LONGEST_VALUE) -> str:
    """Return the repr of any value for an error message, cut to `longest` characters."""
    if isinstance(value, int) and value.bit_length() > _MAX_BITS:
        return f"a whole number of about {int(value.bit_length() * 0.30103) + 1} digits"
    try:
        text = repr(value)
    except Exception:  # noqa: BLE001 – the repr of a caller's object may raise anything
        text = f"<{type(value).__name__}>"
    return text if len(text) <= longest else f"{text[:longest]}…"


def one_line(error: BaseException) -> str:
    """Return the message of `error` on one line, without the statement that SQLAlchemy adds."""
    original = getattr(error, "orig", None)  # SQLAlchemy wraps the error of the driver
    cause = original if isinstance(original, BaseException) else error
    arguments = cause.args
    if len(arguments) == 2 and isinstance(arguments[0], int):
        return f"{on_one_line(str(arguments[1]))} ({arguments[0]})"
    return on_one_line(str(cause)) or type(cause).__name__


def on_one_line(text: str) -> str:
    return " ".join(text.split())
