"""Fixed histograms of durations, and percentiles from them. The same bounds everywhere, so that histograms add up."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

BOUNDS = (
    0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0,
    1000.0, 2000.0, 5000.0, 10_000.0,
)  # fmt: skip
"""The largest seconds of each bucket. A last bucket counts longer durations."""
BUCKETS = len(BOUNDS) + 1


def bucket(seconds: float) -> int:
    """Return the index of the bucket that counts a duration."""
    return bisect_left(BOUNDS, seconds)


def percentile(counts: Sequence[int], share: float) -> float | None:
    """Return the seconds that this share (0 to 1) of the counted durations does not exceed; None if none is counted.

    Within a bucket durations are taken to be spread evenly. More than the last bound is given as that bound.
    """
    wanted = share * sum(counts)
    if not wanted:
        return None
    below, seen = 0.0, 0
    for count, bound in zip(counts, BOUNDS, strict=False):
        if count and seen + count >= wanted:
            return below + (bound - below) * (wanted - seen) / count
        below, seen = bound, seen + count
    return BOUNDS[-1]
