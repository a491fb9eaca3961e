"""Lets callers wait for tasks to end: one thread queries the tasks for all threads and coroutines of a process."""

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
"""Seconds between the first and the second query of a task."""
LONGEST_PAUSE = 1.0
"""The longest pause between two queries of a task, in seconds."""
_GROWTH = 1.5
"""Each pause is longer than the previous one by this factor."""
_LEAST_PAUSE = 0.05
"""The shortest pause between two rounds of queries, in seconds. A round queries all tasks whose next query is due."""
_AT_ONCE = 500
"""The maximum number of tasks in one query."""
_IDLE = 5.0
"""Seconds after which the thread ends if no caller is waiting."""

ONGOING = ("waiting", "running")
"""The statuses of a task that has not ended yet."""


@dataclass(eq=False)
class Waiter:
    """One caller that waits for a task until `end`. `due`: when to query the task next.

    `answer`: its result is the outcome of the task, or None if there is no such task.
    """

    key: str
    due: float
    end: float
    pause: float = FIRST_PAUSE
    answer: Future[TaskOutcome | None] = field(default_factory=Future)


class ResultPoller:
    """Returns results to all callers in one process. Safe to use from several threads.

    A forked process forgets the callers of its parent.
    """

    def __init__(
        self, outcomes: Callable[[Sequence[str]], Mapping[str, TaskOutcome]], clock: Clock = monotonic
    ) -> None:
        """`outcomes`: the method `TaskStore.outcomes`."""
        self._outcomes = outcomes
        self._clock = clock
        self.reset_after_fork()
        fork_safety.register_for_fork(self)

    def reset_after_fork(self) -> None:
        self._changed = threading.Condition()
        self._waiters: list[Waiter] = []
        self._thread: threading.Thread | None = None
        """The thread that queries. An older thread ends when it finds another thread here."""

    def wait_for(self, key: str, timeout: float | None) -> Future[TaskOutcome | None]:
        """Return a future. Its result is the outcome of the task when it has ended, or None if there is no such task.

        If the task has not ended after `timeout` seconds, the result is its outcome so far. A timeout of 0 ends after
        the first query. The future raises the driver's errors, and ScheduleError if `close` is called. Cancel the
        future to stop waiting.
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
        """End the thread. Waiting callers get a ScheduleError. A later `wait_for` starts a new thread."""
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
        """Wait until some tasks must be queried, and return their waiters; none if the thread must end."""
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
        except Exception as error:  # noqa: BLE001 – each caller raises the error
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
