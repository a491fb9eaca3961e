"""The numbers of acquires, by which those without an answer are undone. Used in children and clients."""

from __future__ import annotations

import secrets
import threading
from dataclasses import dataclass, replace

from psched.dialects import forks


@dataclass(frozen=True, slots=True)
class _Span:
    """Acquires in a row without an answer; what they have leased ends at `end` (boottime seconds) at the latest."""

    first: int
    last: int
    end: float


class Numbers:
    """Gives each acquire a number, and remembers which may have taken rows that nobody knows of. Any thread.

    Acquires that fail one after another are one span, so an outage costs one however often it was tried.
    """

    def __init__(self) -> None:
        self.begin_anew()
        forks.mind(self)

    def begin_anew(self) -> None:
        """Begin with a number of chance; in a process that was forked off, whose parent goes on with its own."""
        self._lock = threading.Lock()
        self._last = secrets.randbits(48)  # Lua compares numbers up to 2 to the 53rd
        self._spans: list[_Span] = []

    def next(self) -> int:
        """Return a number that no other acquire of this holder has."""
        with self._lock:
            self._last += 1
            return self._last

    def unanswered(self, number: int, end: float) -> None:
        """Remember that an acquire had no answer; what it leased, if it did, ends at `end`."""
        with self._lock:
            before = self._spans[-1] if self._spans else None
            if before is not None and before.last == number - 1:
                self._spans[-1] = replace(before, last=number, end=max(before.end, end))
            else:
                self._spans.append(_Span(number, number, end))

    def to_be_undone(self, now: float) -> list[int]:
        """Return the first and the last number of each span that may hold rows still, one after another."""
        with self._lock:
            self._spans = [span for span in self._spans if span.end > now]
            return [number for span in self._spans for number in (span.first, span.last)]
