"""Pages of rows. A limited number of rows is read for each page."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

R = TypeVar("R")
P = TypeVar("P")

LOOKED_AT = 200
"""The maximum number of rows that are read for one page, even if few of them match."""


@dataclass(frozen=True, slots=True)
class Page(Generic[R, P]):
    """Some rows in order. `after`: where the next page begins; None if this is the last page.

    A page may have fewer rows than requested, or none, although more pages follow.
    """

    rows: Sequence[R]
    after: P | None


def first_page(rows: Iterable[R], limit: int, wanted: Callable[[R], bool], place: Callable[[R], P]) -> Page[R, P]:
    """Return the first `limit` rows that are `wanted`. Also reads the next row, to know whether a page follows.

    `place`: returns where the page after a row begins.
    """
    found: list[R] = []
    last: P | None = None
    for count, row in enumerate(rows):
        if len(found) == limit or count == LOOKED_AT:
            return Page(found, last)
        if wanted(row):
            found.append(row)
        last = place(row)
    return Page(found, None)
