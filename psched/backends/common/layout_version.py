"""The number of the table layout, and what this version of psched can do with tables of another one.

All backends have the same number. A layout is released with the first version of psched that has it; from then on its
tables never change, and a change of the tables is the next layout: an upgrade step, and `LAYOUT` one higher. Tables
record their layout, their schema, and the oldest layout whose programs can use them.

A step only adds what programs of the layout before need not know, so these run on beside new ones. So programs of
layout N use tables of the layouts N and N + 1.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from enum import Enum
from typing import NamedTuple

LAYOUT = 1
"""The layout that this version makes and needs."""


class RecordedLayout(NamedTuple):
    """What is recorded of tables. `schema` distinguishes unreleased states of a layout."""

    layout: int
    schema: str
    oldest_layout: int


class Standing(Enum):
    """What this version can do with existing tables."""

    CURRENT = "use them"
    NEWER = "use them: a newer version, whose layout is the next one, has upgraded them"
    TOO_NEW = "refuse them: their layout is newer, and this version cannot use it"
    OLDER = "upgrade them"
    UNRELEASED = "refuse them: their schema is none of a released version"

    @property
    def is_usable(self) -> bool:
        return self in (Standing.CURRENT, Standing.NEWER)


def oldest_usable() -> int:
    """Return the oldest layout whose programs can use tables of `LAYOUT`."""
    return max(LAYOUT - 1, 1)


def standing(recorded: RecordedLayout | None, schema: str, released: Callable[[int], Collection[str]]) -> Standing:
    """Return what this version can do with tables. `schema`: its own; `released`: the schemas of an earlier layout."""
    if recorded is None:
        return Standing.UNRELEASED
    if recorded.layout == LAYOUT:
        return Standing.CURRENT if recorded.schema == schema else Standing.UNRELEASED
    if recorded.layout > LAYOUT:
        return Standing.NEWER if recorded.oldest_layout <= LAYOUT else Standing.TOO_NEW
    return Standing.OLDER if recorded.schema in released(recorded.layout) else Standing.UNRELEASED


def too_new(tables: str, layout: int) -> str:
    """Return the error of `Standing.TOO_NEW`. `tables`: how the message names them."""
    return (
        f"{tables} the layout {layout} of a newer psched; this version knows the layouts up to {LAYOUT + 1}: "
        "upgrade psched on this host"
    )


def needs_upgrade(tables: str, layout: int) -> str:
    """Return the error of `Standing.OLDER`."""
    return (
        f"{tables} the layout {layout}, and this version of psched needs {LAYOUT}; upgrade them with: psched init "
        f"(a queue's: psched queue init). Workers of a version with layout {LAYOUT - 1} go on meanwhile and after it"
    )


def newer(tables: str, layout: int) -> str:
    """Return what is told of `Standing.NEWER`."""
    return f"{tables} the layout {layout} of a newer psched, which this version can use; upgrade psched on this host"


def skips_layouts(tables: str, layout: int, workers: int) -> str:
    """Return the error of an upgrade over several layouts while workers are alive, which may be too old for it."""
    return (
        f"{tables} the layout {layout}, and this version needs {LAYOUT}: workers older than layout {LAYOUT - 1} cannot "
        f"use it, and {workers} workers are alive; stop all of them, and run psched init again"
    )
