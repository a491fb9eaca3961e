"""The layout number of the tables, and whether this version of psched can use tables of another layout.

All backends use the same number. A change of released tables makes a new layout: the change needs an upgrade step, and
`LAYOUT` grows by 1. The tables of a released layout never change. Tables record their layout, their schema, and the
oldest layout whose programs can use them.

An upgrade step only adds columns and tables that older programs can ignore. So programs of layout N can use tables of
the layouts N and N + 1, and old and new workers can run at the same time.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from enum import Enum
from typing import NamedTuple

LAYOUT = 1
"""The layout that this version creates and needs."""


class RecordedLayout(NamedTuple):
    """What tables record about themselves. `schema` distinguishes unreleased states of a layout."""

    layout: int
    schema: str
    oldest_layout: int


class Standing(Enum):
    """What this version can do with existing tables."""

    CURRENT = "use the tables"
    NEWER = "use the tables, which psched of the next layout has upgraded"
    TOO_NEW = "refuse the tables: their layout is newer, and this version cannot use it"
    OLDER = "upgrade the tables"
    UNRELEASED = "refuse the tables: no released version has their schema"

    @property
    def is_usable(self) -> bool:
        return self in (Standing.CURRENT, Standing.NEWER)


def oldest_usable() -> int:
    """Return the oldest layout whose programs can use tables of `LAYOUT`."""
    return max(LAYOUT - 1, 1)


def standing(recorded: RecordedLayout | None, schema: str, released: Callable[[int], Collection[str]]) -> Standing:
    """Return what this version can do with tables.

    `recorded`: None if the tables record no layout. `schema`: the schema of this version. `released`: returns the
    released schemas of an earlier layout.
    """
    if recorded is None:
        return Standing.UNRELEASED
    if recorded.layout == LAYOUT:
        return Standing.CURRENT if recorded.schema == schema else Standing.UNRELEASED
    if recorded.layout > LAYOUT:
        return Standing.NEWER if recorded.oldest_layout <= LAYOUT else Standing.TOO_NEW
    return Standing.OLDER if recorded.schema in released(recorded.layout) else Standing.UNRELEASED


def too_new(tables: str, layout: int) -> str:
    """Return the message for tables of `Standing.TOO_NEW`. `tables`: begins the message, such as "the tables have"."""
    return (
        f"{tables} the layout {layout} of a newer psched; this version knows the layouts up to {LAYOUT + 1}: upgrade "
        "psched on this host"
    )


def needs_upgrade(tables: str, layout: int) -> str:
    """Return the message for tables of `Standing.OLDER`, with the command that upgrades them."""
    return (
        f"{tables} the layout {layout}, but this version of psched needs {LAYOUT}; upgrade them with: psched init (for "
        f"a queue: psched queue init). Workers whose version has layout {LAYOUT - 1} can run during and after the "
        "upgrade"
    )


def newer(tables: str, layout: int) -> str:
    """Return the message for tables of `Standing.NEWER`."""
    return f"{tables} the layout {layout} of a newer psched, which this version can use; upgrade psched on this host"


def skips_layouts(tables: str, layout: int, workers: int) -> str:
    """Return the message for an upgrade by more than one layout while workers are alive."""
    return (
        f"{tables} the layout {layout}, but this version needs {LAYOUT}. Workers older than layout {LAYOUT - 1} cannot "
        f"use the upgraded tables, and {workers} workers are alive; stop all of them, and run psched init again"
    )
