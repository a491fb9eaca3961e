"""The verbs of a peer's script: fill, work, pick, load. In processes of the peers' interpreter, without psched."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from benchmarks import plan
from benchmarks.pauses import pauses
from benchmarks.plan import PlannedTask


class Peer(Protocol):
    """One library on one store."""

    def fill(self, count: int) -> None:
        """Make the tables and submit a backlog."""
        ...

    def work(self, children: int) -> None:
        """Run tasks until killed; who forks does it in so many children."""
        ...

    def serve(self, workers: int) -> None:
        """Run the tasks of a plan until killed, so many at a time, none waiting behind another if that can be had."""
        ...

    def pick(self) -> Callable[[float], None]:
        """Return what submits one task that is told the time of it."""
        ...

    def load(self) -> Callable[[PlannedTask], None]:
        """Return what submits one task of a plan. Several threads call it."""
        ...


def main(open_peer: Callable[[str], Peer]) -> None:
    """Do what the command line says: VERB URL COUNT, or load URL FILE."""
    verb, url, operand = sys.argv[1:4]
    count = 0 if verb == "load" else int(operand)
    peer = open_peer(url)
    if verb == "fill":
        peer.fill(count)
    elif verb == "work":
        peer.work(count)
    elif verb == "serve":
        peer.serve(count)
    elif verb == "pick":
        submit = peer.pick()
        for pause in pauses(count):
            time.sleep(pause)
            submit(time.monotonic())
    elif verb == "load":
        print(plan.submit_in_time(plan.read(Path(operand)), peer.load()))
