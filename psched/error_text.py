"""Texts for error messages: "did you mean", a value as the caller gave it, and the summary of a traceback."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from difflib import get_close_matches

_LONGEST_VALUE = 60
"""Characters of a value that an error message shows."""
_MAX_BITS = 13_000
"""A longer integer is described by its length: Python refuses to print more than 4,300 digits."""
_BIDI = (0x061C, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A))
ESCAPES = {
    code: f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"
    for code in (*range(0x20), *range(0x7F, 0xA0), 0x2028, 0x2029, *_BIDI)
}
"""For `str.translate`: the control characters (C0, C1), line separators and characters that change the direction of
text. Keys, types and errors may hold any character, and a terminal obeys these."""


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return `; did you mean 'x'?` for the known word closest to `word` in any case, or an empty string."""
    by_folded = {name.casefold(): name for name in known}
    close = get_close_matches(word.casefold()[:100], by_folded, n=1)
    return f"; did you mean {by_folded[close[0]]!r}?" if close else ""


def shown(value: object, longest: int = _LONGEST_VALUE) -> str:
    """Return the repr of any value for an error message, cut to `longest` characters."""
    if isinstance(value, int) and value.bit_length() > _MAX_BITS:
        return f"a whole number of about {int(value.bit_length() * 0.30103) + 1} digits"
    try:
        text = repr(value)
    except Exception:  # noqa: BLE001 – a caller's object, which may fail at anything
        text = f"<{type(value).__name__}>"
    return text if len(text) <= longest else f"{text[:longest]}…"


_HEADER = re.compile(r"\s*(\+ Exception Group )?Traceback\b.*")
"""The first line of a traceback."""
_FRAME = re.compile(r'[\s|]*File ".*", line \d+|.*", line \d+, in \S+$')
"""A line of a traceback that names a place in the code; its beginning may be missing."""
_CHAINED = ("The above exception was the direct cause of", "During handling of the above exception, another")
"""The line between two tracebacks; the one after it is of the exception that was raised last."""
_LONGEST_SUMMARY = 200
"""Characters of a summary."""
_MARGIN = re.compile(r"\s*[|+] ?")
"""The beginning of each line of an exception group's traceback."""


def error_summary(error: str) -> str:
    """Return the exception's type and message in `error`, or else its first line; at most 200 characters.

    `error` may be the end of a longer text.
    """
    found = exception_line(error)
    line = next(_texts(error.splitlines()), "") if found is None else found
    return line if len(line) <= _LONGEST_SUMMARY else f"{line[: _LONGEST_SUMMARY - 1]}…"


def shortened(error: str, longest: int) -> str:
    """Return `error` in at most `longest` characters: a longer one as its summary and its end."""
    if len(error) <= longest:
        return error
    head = f"{error_summary(error)}\n…\n"
    return head + error[len(head) - longest :]


def exception_line(text: str) -> str | None:
    """Return the type and the first line of the message of the exception in `text`; None without a traceback.

    Of chained exceptions, the one that was raised last.
    """
    lines = text.splitlines()
    chained = [number for number, line in enumerate(lines) if line.strip().startswith(_CHAINED)]
    lines = lines[chained[-1] + 1 :] if chained else lines
    begin = next((number for number, line in enumerate(lines) if _HEADER.match(line) or _FRAME.match(line)), None)
    if begin is None:
        return None
    is_group = "Exception Group" in lines[begin]
    behind = [_MARGIN.sub("", line, count=1) if is_group else line for line in lines[begin + 1 :]]
    number = next((number for number, line in enumerate(behind) if line.strip() and not line[0].isspace()), None)
    if number is None:
        return None
    first, *more = _texts(behind[number:])
    return f"{first} {more[0]}" if first.endswith(":") and more else first


def _texts(lines: Sequence[str]) -> Iterator[str]:
    return (line.strip() for line in lines if line.strip())


def one_line(error: BaseException) -> str:
    """Return the message of `error` on one line, without the statement that SQLAlchemy adds."""
    original = getattr(error, "orig", None)  # SQLAlchemy's errors hold the driver's
    cause = original if isinstance(original, BaseException) else error
    arguments = cause.args
    if len(arguments) == 2 and isinstance(arguments[0], int):
        return f"{on_one_line(str(arguments[1]))} ({arguments[0]})"
    return on_one_line(str(cause)) or type(cause).__name__


def on_one_line(text: str) -> str:
    return " ".join(text.split())
