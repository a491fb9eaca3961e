"""The steps by which `psched init` upgrades the keys of earlier layouts."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from psched.backends.common import layout_version
from psched.backends.common.layout_version import RecordedLayout
from psched.backends.redis.script_composer import Script

STATES = {"schedules": "7", "queue": "6"}
"""The state of the layout by kind, the same as in scripts/common.lua; it changes with the keys until a release."""

LOCKED = 30.0
"""Seconds after which the lock of a `psched init` that was killed ends."""


@dataclass(frozen=True)
class RedisUpgradeStep:
    """Makes the keys of `layout` from those of the layout before, without what programs of that layout must know.

    `released`: the states of the layout before, by kind. `scripts`, by kind: each gets the key `meta` and works on a
    bounded number of keys, so that workers wait for milliseconds only. It returns 1 if it must run again, and has no
    effect on what it has changed already.
    """

    layout: int
    released: Mapping[str, str]
    scripts: Mapping[str, Sequence[Script]] = field(default_factory=dict)


STEPS: list[RedisUpgradeStep] = []
"""One for each layout after the first, in their order."""


def layout_text(kind: str) -> str:
    """Return the layout and its state as the key `meta` has them."""
    return f"{layout_version.LAYOUT}.{STATES[kind]}"


def read_recorded(layout: bytes | None, oldest: bytes | None) -> RecordedLayout | None:
    """Return what `meta` says of the layout, or None if no released version can have written it."""
    found = re.fullmatch(rb"(\d{1,9})\.(\d{1,9})", layout or b"")
    if found is None or re.fullmatch(rb"\d{1,9}", oldest or b"") is None:
        return None
    return RecordedLayout(int(found[1]), found[2].decode(), int(oldest or 0))


def released(layout: int, kind: str) -> Collection[str]:
    """Return the states in which a layout before the present one was released: at most one."""
    return [step.released[kind] for step in STEPS if step.layout == layout + 1]


def scripts(since: int, kind: str) -> list[Script]:
    """Return the scripts of the steps after the layout `since`."""
    return [script for step in STEPS if step.layout > since for script in step.scripts.get(kind, ())]
