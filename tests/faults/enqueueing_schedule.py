"""A schedule whose handler `Enqueue` submits tasks, on any store.

It runs in the test process and in processes forked from it.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from psched.handlers.enqueue import Enqueue
from psched.model import LeaseTimes, Rule, ScheduleRow
from psched.schedules.collection import Defaults, ScheduleCollection
from tests.stores.bench import Bench
from tests.stores.queue.bench import QueueBench, keys_in

FIRST = 1_600_002_000
"""The schedule's first occurrence, in unix seconds. The schedule is due every hour."""

KEY = "key"


@dataclass
class Feed:
    """A schedule and a queue, in one database or in two."""

    schedules: Bench
    tasks: QueueBench

    def prepare(self) -> None:
        """Make the tables of schedules and queue, and add the schedule."""
        self.tasks.queue().create_tables()
        store = self.schedules.open()
        store.create_tables()
        store.add(KEY, "enqueue.type1", Rule("0 * * * *", "UTC"), FIRST, FIRST, {"data": {"n": 1}, "user": "u"})
        self.close()

    def feed(self, url: str | None = None, once_polled: Callable[[], object] = lambda: None) -> None:
        """Acquire the occurrence that is due, and let the handler submit its task, like a worker.

        `url`: another URL of the database, through a proxy for example. `once_polled`: called after the acquire.
        """
        tasks = QueueBench(self.tasks.type, self.tasks.url if url is None else url, self.tasks.table)
        schedules = self.schedules.open(url=url)
        with closing(tasks), ScheduleCollection(schedules, LeaseTimes(100, 1, 100), Defaults()) as collection:
            collection.submit_to(tasks.queue())
            task = collection.poll()
            assert task is not None, "nothing is due"
            handler = Enqueue.route(task.type)
            assert handler is not None
            once_polled()
            handler(task).run()
            assert task.outcome == "finished"

    @property
    def submitted(self) -> list[int]:
        """The occurrences whose tasks are in the queue, even if finished."""
        return [int(key.removeprefix(f"{KEY}@")) for key in keys_in(self.tasks.queue())]

    @property
    def row(self) -> ScheduleRow:
        """The schedule's present row."""
        row = self.schedules.open().get(KEY)
        assert row is not None
        return row

    def stored_task(self, occurrence: int) -> dict[str, Any] | None:
        """Return the row of an occurrence's task as it is stored."""
        return self.tasks.raw(f"{KEY}@{occurrence}")

    def close(self) -> None:
        """Close every connection."""
        self.schedules.close()
        self.tasks.close()
