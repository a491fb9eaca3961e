"""The tasks that a source took and that are not settled: for as long as somebody else holds on to them. Any process."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from weakref import ref

from psched.dialects import forks
from psched.task import Task

_FEW = 1000


class Held:
    """Tasks that nobody has dropped; whoever dropped his is not kept from it. Safe to use from several threads.

    Two may have one key, when the row was deleted and came again during a run: each is held, and told what became of
    its lease. Plain references in a plain dictionary, by what an object is known by while it lives, since tasks come
    and go by the hundred; dropped ones are swept out when there are more than twice as many as were alive before.
    """

    def __init__(self) -> None:
        self.begin_anew()
        forks.mind(self)

    def begin_anew(self) -> None:
        """Hold nothing, as at first; in a process that was forked off, whose parent holds its own tasks."""
        self._lock = threading.Lock()
        self._tasks: dict[int, ref[Task]] = {}
        self._swept_at = _FEW

    def all(self) -> list[Task]:
        """Return those that are alive."""
        with self._lock:
            return self._alive()

    def add(self, tasks: Iterable[Task]) -> None:
        """Hold these."""
        with self._lock:
            for task in tasks:
                self._tasks[id(task)] = ref(task)
            if len(self._tasks) > self._swept_at:
                self._tasks = {id(task): ref(task) for task in self._alive()}
                self._swept_at = max(2 * len(self._tasks), _FEW)

    def remove(self, tasks: Iterable[Task]) -> None:
        """Hold these no longer; another task of the same key stays."""
        with self._lock:
            for task in tasks:
                self._tasks.pop(id(task), None)

    def _alive(self) -> list[Task]:
        return [task for kept in self._tasks.values() if (task := kept()) is not None]
