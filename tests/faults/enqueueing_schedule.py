"""A schedule whose handler `Enqueue` submits tasks, on any store. In the test process and its forks."""

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
"""The schedule's first occurrence (unix seconds); it is due every hour."""

KEY = "key"


@dataclass
class Feed:
    """One schedule and one queue, in one database or in two."""

    schedules: Bench
    tasks: QueueBench

    def prepare(self) -> None:
        """Make both tables, and the schedule."""
        self.tasks.queue().create_tables()
        store = self.schedules.open()
        store.create_tables()
        store.add(KEY, "enqueue.type1", Rule("0 * * * *", "UTC"), FIRST, FIRST, {"data": {"n": 1}, "user": "u"})
        self.close()

    def feed(self, url: str | None = None, once_polled: Callable[[], object] = lambda: None) -> None:
        """Turn what is due into one task, as a worker of its own would; `url`: another way to the one database."""
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
        """The occurrences that have become tasks, finished ones too."""
        return [int(key.removeprefix(f"{KEY}@")) for key in keys_in(self.tasks.queue())]

    @property
    def row(self) -> ScheduleRow:
        """The schedule as it stands."""
        row = self.schedules.open().get(KEY)
        assert row is not None
        return row

    def stored_task(self, occurrence: int) -> dict[str, Any] | None:
        """Return a task's row as the database has it."""
        return self.tasks.raw(f"{KEY}@{occurrence}")

    def close(self) -> None:
        """Close every connection."""
        self.schedules.close()
        self.tasks.close()
