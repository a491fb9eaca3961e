"""Finds the line with the exception in a stored error. Most stored errors are tracebacks."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

_HEADER = re.compile(r"\s*(\+ Exception Group )?Traceback\b.*")
"""Matches the first line of a traceback."""
_FRAME = re.compile(r'[\s|]*File ".*", line \d+|.*", line \d+, in \S+$')
"""Matches a line of a traceback that names a place in the code. The beginning of the line may be missing."""
_CHAINED = ("The above exception was the direct cause of", "During handling of the above exception, another")
"""How the line between two tracebacks begins. The traceback after this line belongs to the later exception."""
_LONGEST_SUMMARY = 200
_MARGIN = re.compile(r"\s*[|+] ?")
"""Matches the beginning of each line in the traceback of an exception group."""


def error_summary(error: str) -> str:
    """Return the type and message of the exception in `error`, at most 200 characters.

    If there is no exception, return the first line. `error` may be the end of a longer text.
    """
    found = exception_line(error)
    line = next(_texts(error.splitlines()), "") if found is None else found
    return line if len(line) <= _LONGEST_SUMMARY else f"{line[: _LONGEST_SUMMARY - 1]}…"


def shortened(error: str, longest: int) -> str:
    """Return at most `longest` characters of `error`. A longer `error` becomes its summary and its end."""
    if len(error) <= longest:
        return error
    head = f"{error_summary(error)}\n…\n"
    return head + error[len(head) - longest :]


def exception_line(text: str) -> str | None:
    """Return the type and the first line of the message of the exception in `text`; None without a traceback.

    If several exceptions are chained, return the one that was raised last.
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
