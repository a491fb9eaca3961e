"""The one line that stands for an error where there is no room for all of it: lists, alarms, the audit. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

_HEADER = re.compile(r"\s*(\+ Exception Group )?Traceback\b.*")
"""What a traceback begins with."""
_FRAME = re.compile(r'[\s|]*File ".*", line \d+|.*", line \d+, in \S+$')
"""A line of a traceback that names a place in the code, perhaps without its beginning."""
_CHAINED = ("The above exception was the direct cause of", "During handling of the above exception, another")
"""What stands between two tracebacks: the one behind it is of the exception that was raised in the end."""
_LONGEST = 200
"""Characters of a summary."""
_MARGIN = re.compile(r"\s*[|+] ?")
"""What each line of an exception group's traceback begins with."""


def error_summary(error: str) -> str:
    """Return the line of `error` that says most: the exception's type and message, or else the first line of text.

    `error` may be the end of a longer text. Empty when there is nothing in it; at most 200 characters.
    """
    found = exception_line(error)
    line = next(_texts(error.splitlines()), "") if found is None else found
    return line if len(line) <= _LONGEST else f"{line[: _LONGEST - 1]}…"


def shortened(error: str, longest: int) -> str:
    """Return `error` in at most `longest` characters: where it has more, its summary and its end."""
    if len(error) <= longest:
        return error
    head = f"{error_summary(error)}\n…\n"
    return head + error[len(head) - longest :]


def exception_line(text: str) -> str | None:
    """Return the type and the message, its first line, of the exception of the last traceback in `text`; None: no such.

    Of chained exceptions that is the one that was raised in the end.
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
