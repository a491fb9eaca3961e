"""A bench for a queue under test, on a table of its own, like the bench for schedules."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from psched.backends import open_stores
from psched.model import Claim, NewTask, TaskFilter, TaskRow
from psched.store import StoreSettings, TaskStore
from tests.stores.bench import LONG_AGO, Bench


@dataclass
class QueueBench(Bench):
    """One kind of queue on one database, with one fresh table. `execute`, `raw` and `write` do not use psched."""

    beside: ClassVar[Sequence[str]] = ("users", "failures", "watermarks", "outbox")

    _queues: list[TaskStore] = field(default_factory=list)
    _names: Iterator[int] = field(default_factory=itertools.count)

    def queue(self, holder: str | None = None, read_only: bool = False, **settings: bool) -> TaskStore:
        """Open another store, like another process. It is closed at the end of the test."""
        name = f"host/1/{next(self._names)}" if holder is None else holder
        settings = {"pooler": self.pooler, "read_only": read_only, **settings}
        store = open_stores(self.type, StoreSettings(self.url, name, queue=self.table, **settings)).queue
        assert store is not None
        self._queues.append(store)
        return store

    def _create(self) -> None:
        self.queue().create_tables()
        self._queues[-1].close()

    def close(self) -> None:
        """Close everything that this bench has opened."""
        for store in self._queues:
            store.close()
        super().close()

    def submit(self, store: TaskStore, keys: Iterable[str], **fields: Any) -> None:
        """Submit tasks. They have been due for long, one after another."""
        first = fields.pop("run_at", LONG_AGO)
        tasks = [NewTask(key, **{"type": "type1", "run_at": first + n, **fields}) for n, key in enumerate(keys)]
        assert store.submit(tasks) == []

    def claim(self, store: TaskStore, key: str, alive_time: float = 100) -> Claim:
        """Acquire one task, and check that its key is `key`."""
        claims = store.acquire(1, alive_time)
        assert [claim.row.key for claim in claims] == [key]
        return claims[0]


def row_of(store: TaskStore, key: str) -> TaskRow:
    row = store.get(key)
    assert row is not None, f"{key!r} is gone"
    return row


def keys_in(store: TaskStore, **wanted: Any) -> list[str]:
    return [row.key for row in store.list(TaskFilter(**wanted))]
