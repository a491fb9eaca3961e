"""What the script of a peer can be told: fill, work, pick. In processes of the peers' interpreter, without psched."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Protocol

from benchmarks.pauses import pauses


class Peer(Protocol):
    """One library on one store."""

    def fill(self, count: int) -> None:
        """Make the tables and submit a backlog."""
        ...

    def work(self, children: int) -> None:
        """Run tasks until killed; who forks does it in so many children."""
        ...

    def pick(self) -> Callable[[float], None]:
        """Return what submits one task that is told the time of it."""
        ...


def main(open_peer: Callable[[str], Peer]) -> None:
    """Do what the command line says: VERB URL COUNT."""
    verb, url, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
    peer = open_peer(url)
    if verb == "fill":
        peer.fill(count)
    elif verb == "work":
        peer.work(count)
    elif verb == "pick":
        submit = peer.pick()
        for pause in pauses(count):
            time.sleep(pause)
            submit(time.monotonic())
