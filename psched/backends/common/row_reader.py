"""Reads a stored row of any origin: a value that cannot be used is named by `problem`, and raises nothing."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any

from psched.payload import MAX_DATA_SIZE, decode

LAST_SECOND = 253_402_300_799
"""The end of the year 9999 in unix seconds: what a calendar can show."""


_SPANS = re.compile(r"[0-9]{1,15}-[0-9]{1,15}( [0-9]{1,15}-[0-9]{1,15})*")


class RowReader:
    """The columns of one row; `problem` is the first that cannot be used, and why."""

    def __init__(self, row: Mapping[Any, Any], max_data_size: int = MAX_DATA_SIZE) -> None:
        """`max_data_size`: the most bytes that data may have as JSON."""
        self._row = row
        self._max_data_size = max_data_size
        self.problem: str | None = None

    def text(self, name: str) -> str:
        """Return a text column."""
        value = self._row[name]
        if isinstance(value, str):
            return value
        self._complain(name, "text", value)
        return value.decode(errors="replace") if isinstance(value, bytes) else str(value)

    def key(self, name: str) -> str:
        """Return a column of keys: non-empty text without NUL."""
        value = self.text(name)
        if not value or "\0" in value:
            self._complain(name, "non-empty text without NUL", value)
        return value

    def optional_text(self, name: str) -> str | None:
        """Return a text column that may be NULL."""
        return None if self._row[name] is None else self.text(name)

    def one_of(self, name: str, words: Collection[str]) -> str:
        """Return a column of text that is one of `words`."""
        value = self.text(name)
        if value not in words:
            self._complain(name, " or ".join(words), value)
        return value

    def number(self, name: str) -> int:
        """Return an integer column; 0 when it holds something else."""
        value = self._row[name]
        if isinstance(value, int):
            return value
        self._complain(name, "an integer", value)
        return 0

    def optional_number(self, name: str) -> int | None:
        """Return an integer column that may be NULL."""
        return None if self._row[name] is None else self.number(name)

    def limit(self, name: str) -> int | None:
        """Return a column of integers from 1 on, None for NULL and for what is none."""
        value = self.optional_number(name)
        if value is None or value >= 1:
            return value
        self._complain(name, "a whole number, 1 or more", value)
        return None

    def seconds(self, name: str, per_second: int = 1) -> float:
        """Return a column of `per_second` units to the second in seconds; 0 when no calendar reaches that far."""
        units = self.number(name)
        seconds = units // per_second if units % per_second == 0 else units / per_second
        if abs(seconds) <= LAST_SECOND:
            return seconds
        self._complain(name, "seconds within the year 9999", self._row[name])
        return 0

    def optional_seconds(self, name: str, per_second: int = 1) -> float | None:
        """Return a column of units of time in seconds, or None for NULL."""
        return None if self._row[name] is None else self.seconds(name, per_second)

    def spans(self, name: str, per_second: int = 1) -> tuple[tuple[float, float], ...]:
        """Return a column of spans of units of time, `<from>-<until> …`, each as seconds; () for NULL."""
        text = self.optional_text(name)
        if text is None:
            return ()
        if not _SPANS.fullmatch(text):
            self._complain(name, "spans like 10-20 30-40", text)
            return ()
        times = [int(time) / per_second for time in re.split("[- ]", text)]
        if max(times) > LAST_SECOND:
            self._complain(name, "spans within the year 9999", text)
            return ()
        return tuple(zip(times[::2], times[1::2], strict=True))

    def json(self, name: str) -> dict[str, Any]:
        """Return a column of JSON; {} when it is no object."""
        try:
            return decode(self.text(name), self._max_data_size)
        except (ValueError, RecursionError) as error:
            self._complain(name, f"a JSON object ({error})", self._row[name])
            return {}

    def _complain(self, name: str, expected: str, found: object) -> None:
        if self.problem is None:
            self.problem = f"column {name} should hold {expected}, found {str(found)[:60]!r}"
