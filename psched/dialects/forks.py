"""What a process that was forked off must not use: its parent's connections. In clients, such as preloaded web servers.

Two processes that speak on one connection read each other's answers; and to close it there would end the parent's
session. So they are left alone, for good, and new ones are made.
"""

from __future__ import annotations

import os
from typing import Protocol
from weakref import WeakSet


class Connected(Protocol):
    """Something that has connections."""

    def begin_anew(self) -> None:
        """In a process that was forked off: begin without connections, and leave the parent's as they are."""
        ...


_connected: WeakSet[Connected] = WeakSet()


def mind(connected: Connected) -> None:
    """Let `connected` begin anew in each process that is forked off from now on."""
    _connected.add(connected)


def _begin_anew() -> None:
    for connected in list(_connected):
        connected.begin_anew()


os.register_at_fork(after_in_child=_begin_anew)
