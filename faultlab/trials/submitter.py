"""Clients that submit tasks during a trial, and record each try and its result. Runs in a thread of the test process.

After a failed submit, the submitter submits the key again until psched confirms it, or gives up. So two things happen:
a commit of which the submitter is not told, and a second submit of an existing task.
"""

from __future__ import annotations

import json
import random
import threading
import time
from collections import deque
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Self

from faultlab.trials.history import ONLY
from psched.clock import boottime
from psched.errors import AlreadyExistsError
from psched.queue.queue import Queue

PAUSE = 0.25
"""Seconds between two submits."""
GIVES_UP = 0.2
"""The share of failed submits that are not tried again."""


class Submitter:
    """Submits tasks within its context. `seed` decides which tasks, and when they are due.

    `longest`: the number of seconds that the longest tasks take, one task in two hundred.
    """

    def __init__(self, queue: Queue, file: Path, seed: str, longest: float, nodes: Iterable[str] = ()) -> None:
        """`nodes`: for each of these nodes, there are tasks with a type that only this node routes."""
        self._queue = queue
        self._of_one_node = [f"{ONLY}{node}" for node in nodes]
        self._file = file
        self._longest = longest
        self._rng = random.Random(seed)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._work, name="submitter")
        self._numbers = 0
        self._orders: deque[str] = deque()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()
        self._thread.join()

    def order(self, type_: str) -> None:
        """Request one more task of a type, which is submitted soon and due immediately. Called from any thread."""
        self._orders.append(type_)

    def _work(self) -> None:
        while not self._over.wait(PAUSE):
            while self._orders:
                type_ = self._orders.popleft()
                self._submit(f"{type_}-{self._next()}", type_, {}, int(time.time()))
            type_ = self._rng.choice(["work", "work", "work", *self._of_one_node])
            key = "task" if type_ == "work" else type_
            self._submit(f"{key}-{self._next()}", type_, self._data(), self._run_at())

    def _submit(self, key: str, type_: str, data: dict[str, Any], run_at: int) -> None:
        known = {"key": key, "run_at": run_at}
        while not self._over.is_set():
            self._note("tried", **known)
            try:
                self._queue.submit(key, type_, data, run_at=run_at)
            except AlreadyExistsError:
                break
            except Exception as error:  # noqa: BLE001 - whatever it is, the submitter was not told that it is committed
                self._note("failed", **known, error=str(error)[:200])
                if self._rng.random() < GIVES_UP:
                    return
                self._over.wait(PAUSE)
            else:
                break
        else:
            return
        self._note("acknowledged", **known)

    def _data(self) -> dict[str, Any]:
        """Return the data of a task: in one of 200 cases a task that takes `longest` seconds, otherwise a short one."""
        seconds = self._longest if self._rng.random() < 0.005 else self._rng.uniform(0, 0.1)
        return {"seconds": seconds, "stubborn": self._rng.random() < 0.5, "together": self._rng.random() < 0.5}

    def _run_at(self) -> int:
        return int(time.time()) + self._rng.choice([0, 0, 0, 1, 3])

    def _next(self) -> int:
        self._numbers += 1
        return self._numbers

    def _note(self, event: str, **more: object) -> None:
        with self._file.open("a") as file:
            file.write(json.dumps({"event": event, "at": boottime(), **more}) + "\n")
