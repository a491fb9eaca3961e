"""The tasks that a source took and that are not settled: for as long as somebody else holds on to them. Any process."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from weakref import ref

from psched.task import Task

_FEW = 1000


class Held:
    """Tasks by key; whoever dropped his task is not kept from it. Safe to use from several threads.

    Plain references in a plain dictionary, since tasks come and go by the hundred; dropped ones are swept out when
    there are more than twice as many as were alive before.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._tasks: dict[str, ref[Task]] = {}
        self._swept_at = _FEW

    def all(self) -> list[Task]:
        """Return those that are alive."""
        with self._lock:
            return self._alive()

    def add(self, tasks: Iterable[Task]) -> None:
        """Hold these; a task that was held under the key of one of them is not any more."""
        with self._lock:
            for task in tasks:
                self._tasks[task.key] = ref(task)
            if len(self._tasks) > self._swept_at:
                self._tasks = {task.key: ref(task) for task in self._alive()}
                self._swept_at = max(2 * len(self._tasks), _FEW)

    def remove(self, tasks: Iterable[Task]) -> None:
        """Hold these no longer; another task of the same key stays."""
        with self._lock:
            for task in tasks:
                kept = self._tasks.get(task.key)
                if kept is not None and kept() is task:
                    del self._tasks[task.key]

    def _alive(self) -> list[Task]:
        return [task for kept in self._tasks.values() if (task := kept()) is not None]
