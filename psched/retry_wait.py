"""The wait between a failure and the next attempt: constant, or longer each time."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any

from psched.error_messages import InvalidValueError, did_you_mean, shown

MAX_SECONDS = 1e9
"""The maximum number of seconds of a wait: 31 years. A longer wait is refused as a mistake."""
MAX_COUNT = 2**31 - 1
"""The largest value of an integer column in the database."""


def check_wait(name: str, seconds: object) -> None:
    """Raise ValueError unless `seconds` is a number from 0 to 1,000,000,000."""
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 <= seconds <= MAX_SECONDS:
        raise InvalidValueError(f"{name} must be a number of seconds from 0 to {MAX_SECONDS:.0f}, got {shown(seconds)}")


def check_attempts(name: str, most: object) -> None:
    """Raise ValueError unless `most` is a whole number from 1 to 2147483647."""
    if isinstance(most, bool) or not isinstance(most, int) or not 1 <= most <= MAX_COUNT:
        raise InvalidValueError(f"{name} must be a whole number from 1 to {MAX_COUNT}, got {shown(most)}")


@dataclass(frozen=True, slots=True)
class Backoff:
    """Waits that grow: `first` seconds after the first attempt, `factor` times as long after each further attempt.

    No wait is longer than `limit` seconds. `jitter` is the random part of a wait: with 0.2, a wait takes 80 % to 100 %
    of its length. So runs that failed together are not retried together. Raises ValueError.
    """

    first: float = 1.0
    factor: float = 2.0
    limit: float = 300.0
    jitter: float = 0.2

    def __post_init__(self) -> None:
        bounds = {"first": (0, MAX_SECONDS), "factor": (1, 1000), "limit": (0, MAX_SECONDS), "jitter": (0, 1)}
        for name, (lowest, highest) in bounds.items():
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not lowest <= value <= highest:
                raise InvalidValueError(f"{name} must be a number from {lowest:g} to {highest:g}, got {shown(value)}")

    def __str__(self) -> str:
        return f"{self.first:g} s, {self.factor:g} times as long each time, at most {self.limit:g} s"

    @classmethod
    def of(cls, wanted: float | Mapping[str, Any] | Backoff) -> Backoff:
        """Return a Backoff for a number of seconds, a mapping of the fields, or a Backoff. Raises ValueError."""
        if isinstance(wanted, Backoff):
            return wanted
        if not isinstance(wanted, Mapping):
            return cls(wanted, 1, wanted, 0)  # a constant wait
        known = [field.name for field in fields(cls)]
        for name in wanted:
            if name not in known:
                raise InvalidValueError(f"unknown key {name!r}{did_you_mean(str(name), known, more_follows=True)}")
        return cls(**wanted)

    def seconds(self, attempts: int, chance: Callable[[], float] = random.random) -> float:
        """Return the seconds to wait after `attempts` failed attempts.

        `chance`: returns a random number from 0 to 1.
        """
        doublings = max(attempts, 1) - 1
        tall = self.factor > 1 and doublings * math.log(self.factor) > 100
        wait = self.limit if tall else min(self.first * self.factor**doublings, self.limit)
        return wait * (1 - self.jitter * chance())


def backoff(first: float = 1.0, *, factor: float = 2.0, maximum: float = 300.0, jitter: float = 0.2) -> Backoff:
    """Return a growing `retry_wait`: `first` seconds after the first attempt, then `factor` times as long each time.

    No wait is longer than `maximum` seconds. `jitter` is the random part of a wait: with 0.2, a wait takes 80 % to 100
    % of its length. Raises ValueError.
    """
    return Backoff(first, factor, maximum, jitter)
