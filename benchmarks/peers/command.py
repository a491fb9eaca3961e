"""The verbs of a peer's script: fill, work, serve, pick, load. Runs in the peers' virtualenv, without psched."""

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
    """One library with one store."""

    def fill(self, count: int) -> None:
        """Create the tables, and submit a backlog."""
        ...

    def work(self, children: int) -> None:
        """Run tasks until killed. A library that forks uses `children` processes."""
        ...

    def serve(self, workers: int) -> None:
        """Run the tasks of a plan until killed, `workers` at a time. If possible, no task waits behind another."""
        ...

    def pick(self) -> Callable[[float], None]:
        """Return a function that submits one task.

        Its argument is the time of the submit, which the task's handler gets.
        """
        ...

    def load(self) -> Callable[[PlannedTask], None]:
        """Return a function that submits one task of a plan. Several threads call this function."""
        ...


def main(open_peer: Callable[[str], Peer]) -> None:
    """Execute the command line: VERB URL COUNT, or load URL FILE."""
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
