"""Pauses, resumes and runs schedules during a trial, and records these actions.

Runs in a thread of the test process.
"""

from __future__ import annotations

import json
import random
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Self

from faultlab.trials.history import MODIFY, PAUSE, RESUME, RUN_NOW, Action
from psched.clock import boottime
from psched.errors import ScheduleError
from psched.schedules.collection import ScheduleCollection

BETWEEN = (0.1, 1.5)
"""The minimum and the maximum number of seconds between two actions."""
AGAIN = 0.25
"""Seconds after which a failed action is tried again."""
PATIENCE = 120.0
"""Seconds for which an action is tried."""


class ScheduleOperator:
    """Performs actions on schedules within its context.

    `seed` decides the actions. At the end, all schedules are resumed.
    """

    def __init__(
        self, schedules: ScheduleCollection, keys: Sequence[str], file: Path, seed: str, optioned: Sequence[str] = ()
    ) -> None:
        """`optioned`: schedules that pause themselves.

        They are only resumed, and in the end their `pause_after` is removed.
        """
        self._optioned = optioned
        self._schedules = schedules
        self._keys = keys
        self._file = file
        self._rng = random.Random(seed)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._work, name="schedule operator")

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()
        self._thread.join()

    def _work(self) -> None:
        while self._keys and not self._over.wait(self._rng.uniform(*BETWEEN)):
            verb = self._rng.choice([PAUSE, PAUSE, RESUME, RESUME, RUN_NOW])
            in_bulk = self._rng.random() < 0.3
            for key in self._keys if in_bulk else [self._rng.choice(self._keys)]:
                self._act(key, verb)
            if self._optioned and self._rng.random() < 0.2:
                self._act(self._rng.choice(self._optioned), RESUME)
        for key in self._optioned:
            self._act(key, MODIFY)
        for key in (*self._keys, *self._optioned):
            self._act(key, RESUME)

    def _act(self, key: str, verb: str) -> None:
        """Perform an action, and try again until psched has answered.

        A failed try may nevertheless have been successful.
        """
        tried = boottime()
        reference = self._schedules[key]
        modify = partial(reference.modify, pause_after=None)
        calls: dict[str, Callable[[], object]] = {MODIFY: modify, PAUSE: reference.pause, RESUME: reference.resume}
        call = calls.get(verb, reference.run_now)
        done = False
        while not done and boottime() < tried + PATIENCE:
            try:
                call()
                done = True
            except ScheduleError:  # a run is in progress, or the row is changed too often
                if verb == RUN_NOW:
                    break
                time.sleep(AGAIN)
            except Exception:  # noqa: BLE001 – faults are going on; the record tells that it was not done
                time.sleep(AGAIN)
        action = Action(key, verb, tried, boottime(), done)
        with self._file.open("a") as file:
            file.write(json.dumps(asdict(action)) + "\n")
