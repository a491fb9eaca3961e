"""Waits for tasks to end, for all threads and coroutines of a process: one thread asks for all of them at once."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from dataclasses import dataclass, field

from psched import fork_safety
from psched.clock import Clock, monotonic
from psched.errors import ScheduleError
from psched.model import TaskOutcome

FIRST_PAUSE = 0.05
"""Seconds from the first look at a task to the second."""
LONGEST_PAUSE = 1.0
"""Seconds between two looks at a task that takes long."""
_GROWTH = 1.5
"""How much longer each pause is than the one before."""
_LEAST_PAUSE = 0.05
"""Seconds between two queries of a process, however many tasks it waits for."""
_AT_ONCE = 500
"""Tasks of one query."""
_IDLE = 5.0
"""Seconds after which the thread ends when nobody waits."""

ONGOING = ("waiting", "running")
"""The statuses of a task that has not ended."""


@dataclass(eq=False)
class Waiter:
    """One caller that waits for a task until `end`. `answer`: the outcome of the task, None if it does not exist.

    `due`: when to look at the task next.
    """

    key: str
    due: float
    end: float
    pause: float = FIRST_PAUSE
    answer: Future[TaskOutcome | None] = field(default_factory=Future)


class ResultPoller:
    """Safe to use from several threads. In a forked process the callers of the parent are forgotten."""

    def __init__(
        self, outcomes: Callable[[Sequence[str]], Mapping[str, TaskOutcome]], clock: Clock = monotonic
    ) -> None:
        """`outcomes`: `TaskStore.outcomes`."""
        self._outcomes = outcomes
        self._clock = clock
        self.reset_after_fork()
        fork_safety.register_for_fork(self)

    def reset_after_fork(self) -> None:
        self._changed = threading.Condition()
        self._waiters: list[Waiter] = []
        self._thread: threading.Thread | None = None
        """The thread that asks. A thread that is not this one any more ends."""

    def wait_for(self, key: str, timeout: float | None) -> Future[TaskOutcome | None]:
        """Return a future with the outcome of a task once it has ended, or None if there is no such task.

        After `timeout` seconds, with 0 after the first look, it is the outcome of a task that has not ended. The future
        raises the driver's errors, and ScheduleError at `close`. Cancel it to stop waiting.
        """
        now = self._clock()
        waiter = Waiter(key, now, math.inf if timeout is None else now + timeout)
        with self._changed:
            self._waiters.append(waiter)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="psched results", daemon=True)
                self._thread.start()
            self._changed.notify_all()
        return waiter.answer

    def close(self) -> None:
        """End the thread. Callers that wait get a ScheduleError. A later `wait_for` starts another thread."""
        with self._changed:
            self._thread = None
            waiters, self._waiters = self._waiters, []
            self._changed.notify_all()
        for waiter in waiters:
            _refuse(waiter, ScheduleError(f"the queue was closed before {waiter.key!r} ended"))

    def _run(self) -> None:
        while due := self._next_due():
            for start in range(0, len(due), _AT_ONCE):
                self._ask(due[start : start + _AT_ONCE])
            with self._changed:
                self._changed.wait_for(self._is_ended, _LEAST_PAUSE)

    def _is_ended(self) -> bool:
        return self._thread is not threading.current_thread()

    def _next_due(self) -> list[Waiter]:
        """Wait until it is time to look at some tasks, and return their waiters; none when the thread is to end."""
        with self._changed:
            while not self._is_ended():
                self._waiters = [waiter for waiter in self._waiters if not waiter.answer.done()]
                now = self._clock()
                due = [waiter for waiter in self._waiters if waiter.due <= now]
                if due:
                    return due
                pause = min((waiter.due - now for waiter in self._waiters), default=_IDLE)
                was_notified = self._changed.wait(pause)
                if not self._waiters and not was_notified:
                    self._thread = None
            return []

    def _ask(self, waiters: Sequence[Waiter]) -> None:
        try:
            found = self._outcomes(list(dict.fromkeys(waiter.key for waiter in waiters)))
        except Exception as error:  # noqa: BLE001 – each caller raises it
            for waiter in waiters:
                _refuse(waiter, error)
            return
        now = self._clock()
        for waiter in waiters:
            outcome = found.get(waiter.key)
            if outcome is None or outcome.status not in ONGOING or now >= waiter.end:
                with suppress(InvalidStateError):  # the caller has stopped waiting
                    waiter.answer.set_result(outcome)
            waiter.due = min(now + waiter.pause, waiter.end)
            waiter.pause = min(waiter.pause * _GROWTH, LONGEST_PAUSE)


def _refuse(waiter: Waiter, error: Exception) -> None:
    with suppress(InvalidStateError):  # the caller has stopped waiting
        waiter.answer.set_exception(error)
