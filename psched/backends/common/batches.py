"""Parts of a batch that one statement or script writes, so that none is long."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeVar

from psched.backends.common.rows import BATCH
from psched.model import Claim

T = TypeVar("T")

_RESULTS_AT_ONCE = 1_000_000
"""Characters of results in one statement: MariaDB bounds its length, in which each character may be escaped twice."""


def parts(rows: Sequence[T], sizes: Sequence[int], most: int, most_bytes: int) -> Iterator[Sequence[T]]:
    """Split rows into parts of at most `most` rows, whose `sizes` are about `most_bytes` in total."""
    first, total = 0, 0
    for place, size in enumerate(sizes):
        total += size
        if place > first and (place - first >= most or total > most_bytes):
            yield rows[first:place]
            first, total = place, size
    yield rows[first:]


def retired_together(claims: Sequence[Claim]) -> Iterator[Sequence[Claim]]:
    """Split claims into parts that are retired together. Few of them have results."""
    sizes = [0 if claim.result is None else len(claim.result.result or "") for claim in claims]
    return parts(claims, sizes, BATCH, _RESULTS_AT_ONCE) if any(sizes) else iter((claims,))
