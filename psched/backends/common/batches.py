"""Splits a batch into parts. One statement or script writes one part, so that no statement takes long."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeVar

from psched.backends.common.rows import BATCH
from psched.model import Claim

T = TypeVar("T")

_RESULTS_AT_ONCE = 1_000_000
"""The maximum number of characters of results in one statement. MariaDB limits the length of a statement, and escaping
may double it.
"""


def parts(rows: Sequence[T], sizes: Sequence[int], most: int, most_bytes: int) -> Iterator[Sequence[T]]:
    """Split rows into parts of at most `most` rows and about `most_bytes`. `sizes`: the bytes of each row."""
    first, total = 0, 0
    for place, size in enumerate(sizes):
        total += size
        if place > first and (place - first >= most or total > most_bytes):
            yield rows[first:place]
            first, total = place, size
    yield rows[first:]


def retired_together(claims: Sequence[Claim]) -> Iterator[Sequence[Claim]]:
    """Split claims into parts. One statement retires one part. If no claim has a result, there is only one part."""
    sizes = [0 if claim.result is None else len(claim.result.result or "") for claim in claims]
    return parts(claims, sizes, BATCH, _RESULTS_AT_ONCE) if any(sizes) else iter((claims,))
