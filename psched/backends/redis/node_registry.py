"""The registry of nodes: sections, routed types, running tasks, and when each node was last seen."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict
from typing import Any

from psched.store.node_registry import ALIVE, FORGOTTEN, Announcement, Node, read_nodes


class RedisNodes:
    """`Nodes` of one table. `run`: runs a script that is safe to run twice."""

    def __init__(self, run: Callable[..., Any]) -> None:
        self._run = run

    def announce(self, announcement: Announcement) -> None:
        told = json.dumps(asdict(announcement))
        times = round(announcement.uptime * 1000), round(time.time() * 1000)
        self._run("announce", announcement.name, told, *times, round(FORGOTTEN * 1000))

    def withdraw(self, name: str) -> None:
        self._run("announce", name)

    def alive(self) -> list[Node]:
        return self._seen_within(ALIVE)

    def known(self) -> list[Node]:
        return self._seen_within(FORGOTTEN)

    def _seen_within(self, seconds: float) -> list[Node]:
        return read_nodes(_rows(self._run("known_nodes", round(seconds * 1000))))


def _rows(found: list[list[bytes]]) -> Iterator[Mapping[str, Any]]:
    for name, told, *times in found:
        with suppress(ValueError, TypeError):  # another version of psched wrote the node
            named = dict(zip(("seen", "started", "clock_offset", "now"), times, strict=True))
            yield {**json.loads(told), "node": name.decode(), **named}
