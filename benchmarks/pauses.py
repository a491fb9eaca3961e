"""Pauses between measurements, which cover the interval of a poll evenly. Needs only Python's standard library."""

from __future__ import annotations

_GOLDEN = 0.6180339887
_LEAST = 0.5
"""Seconds after which workers are idle again."""


def pauses(count: int, interval: float = 1.0) -> list[float]:
    """Return `count` pauses, each from 0.5 s to 0.5 s + `interval`.

    Any number of pauses covers the interval about evenly. Random pauses would need a larger number for an equally exact
    median.
    """
    return [_LEAST + interval * (number * _GOLDEN % 1) for number in range(1, count + 1)]
