"""Pauses between measurements: at any place in an interval of polling, evenly spread. Needs nothing but Python."""

from __future__ import annotations

_GOLDEN = 0.6180339887
_LEAST = 0.5
"""Seconds after which workers are at rest again."""


def pauses(count: int, interval: float = 1.0) -> list[float]:
    """Return so many pauses from half a second to half a second and an interval, in seconds.

    However many they are, they cover the interval about evenly: random ones would need to be more for the same median.
    """
    return [_LEAST + interval * (number * _GOLDEN % 1) for number in range(1, count + 1)]
