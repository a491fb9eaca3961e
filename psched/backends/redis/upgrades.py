"""The steps by which `psched init` upgrades the keys of earlier layouts."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from psched.backends.common import layout_version
from psched.backends.common.layout_version import RecordedLayout
from psched.backends.redis.script_composer import Script

STATES = {"schedules": "7", "queue": "6"}
"""The state of the layout: a number for each kind, as in scripts/common.lua.

Before a release, each change of the keys raises the number.
"""

LOCKED = 30.0
"""Seconds after which the lock of a killed `psched init` expires."""


@dataclass(frozen=True)
class RedisUpgradeStep:
    """Upgrades keys from the previous layout to `layout`. Adds only what programs of the previous layout can ignore.

    `released`: maps each kind to the state of its previous layout. `scripts`: maps each kind to its scripts. A script
    gets the key `meta`, and changes a limited number of keys, so that workers wait for milliseconds only. The script
    returns 1 if it must run again, and changes no key twice.
    """

    layout: int
    released: Mapping[str, str]
    scripts: Mapping[str, Sequence[Script]] = field(default_factory=dict)


STEPS: list[RedisUpgradeStep] = []
"""One step for each layout after the first, in order."""


def layout_text(kind: str) -> str:
    """Return the layout and its state in the form in which the key `meta` holds them."""
    return f"{layout_version.LAYOUT}.{STATES[kind]}"


def read_recorded(layout: bytes | None, oldest: bytes | None) -> RecordedLayout | None:
    """Return the layout that `meta` records, or None if no released version can have written it."""
    found = re.fullmatch(rb"(\d{1,9})\.(\d{1,9})", layout or b"")
    if found is None or re.fullmatch(rb"\d{1,9}", oldest or b"") is None:
        return None
    return RecordedLayout(int(found[1]), found[2].decode(), int(oldest or 0))


def released(layout: int, kind: str) -> Collection[str]:
    """Return the states in which an earlier layout was released: one or none."""
    return [step.released[kind] for step in STEPS if step.layout == layout + 1]


def scripts(since: int, kind: str) -> list[Script]:
    """Return the scripts of the steps after the layout `since`."""
    return [script for step in STEPS if step.layout > since for script in step.scripts.get(kind, ())]
