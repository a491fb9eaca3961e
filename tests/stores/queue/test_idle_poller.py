"""The cost of an idle poller for its database: one query for each poll, on every store."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import sqlalchemy as sa

from psched.acquisition.task_source import TaskSource
from psched.application import Application
from psched.backends.rdb import fair_acquire
from psched.backends.rdb.next_due import DueTimes
from psched.execution.batch_size import BatchSizer
from psched.execution.poll_timer import PollTimer
from psched.execution.poller import SectionPoller
from psched.model import LeaseTimes
from psched.queue.settlement import TaskSettlement
from psched.store import TaskStore
from tests.stores.bench import FAR_OFF, keys_of, soon
from tests.stores.databases import DATABASES
from tests.stores.queue.bench import QueueBench, keys_in

BURST = 2000
"""The number of tasks: an idle poller needs several polls to delete them."""


class Hands:
    """A clock that stands still until the test moves it."""

    def __init__(self) -> None:
        self.time = 1000.0

    def __call__(self) -> float:
        return self.time


@contextmanager
def counted() -> Iterator[list[str]]:
    """Yield a list of the statements that this process executes in the block."""
    statements: list[str] = []

    def note(conn: Any, cursor: Any, statement: str, *more: Any) -> None:
        statements.append(statement)

    sa.event.listen(sa.Engine, "before_cursor_execute", note)
    try:
        yield statements
    finally:
        sa.event.remove(sa.Engine, "before_cursor_execute", note)


def test_an_idle_poll_is_one_statement_and_takes_nothing(bench: QueueBench, store: TaskStore) -> None:
    bench.submit(store, ["later"], run_at=FAR_OFF)
    clock = Hands()
    source = TaskSource(store, TaskSettlement(store, 300, None), LeaseTimes(300, 300, 30), clock)
    poller = SectionPoller("queue", source, Application(()), BatchSizer(10), PollTimer(1.0, clock), None, 3.0)
    assert list(poller.poll()) == []
    for _ in range(3):
        assert poller.pause() > 0
        clock.time += poller.pause()
        with counted() as statements:
            assert list(poller.poll()) == []
        if not bench.url.startswith("redis"):  # which has no statements to count
            assert len(statements) == 1, statements
            assert statements[0].lstrip().startswith("SELECT")
    poller.close()


@pytest.mark.parametrize("ours", DATABASES, indirect=True)
def test_the_first_task_after_a_rest_does_not_wait_for_a_search_for_other_priorities(
    ours: QueueBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Hands()
    monkeypatch.setattr(fair_acquire, "monotonic", clock)
    searches: list[object] = []
    bands = DueTimes.bands

    def noted(due_times: DueTimes, connection: sa.Connection) -> tuple[int, ...]:
        searches.append(connection)
        return bands(due_times, connection)

    monkeypatch.setattr(DueTimes, "bands", noted)
    store = ours.queue()
    for key in ("first", "second"):
        ours.submit(store, [key])
        claims = store.acquire(10, 100)
        assert keys_of(claims) == [key]
        assert searches == []
        store.retire_many(claims, "finished", 300, soon())
        assert store.acquire(10, 100) == []
        clock.time += 60
        searches.clear()


class Ticking(Hands):
    """A clock that moves 0.06 s at each reading, which is more than a poll may spend on deleting old rows."""

    def __call__(self) -> float:
        self.time += 0.06
        return self.time


@pytest.mark.parametrize("ours", DATABASES, indirect=True)
def test_an_idle_poller_purges_the_finished_tasks_of_a_burst(ours: QueueBench) -> None:
    store = ours.queue()
    keys = [f"key{n:04}" for n in range(BURST)]
    ours.submit(store, keys)
    claims = store.acquire(BURST, 300)
    assert store.retire_many(claims, "finished", 300, soon()) == [None] * BURST
    assert ours.execute("UPDATE {table} SET purge_at = 1") == BURST
    clock = Ticking()
    source = TaskSource(store, TaskSettlement(store, 300, None), LeaseTimes(300, 300, 30), clock)
    poller = SectionPoller("queue", source, Application(()), BatchSizer(10), PollTimer(600.0, clock), None, 3.0)
    for _ in range(BURST):
        assert list(poller.poll()) == []
        if not keys_in(store):
            break
        clock.time += poller.pause()
    assert keys_in(store) == []
    assert clock.time < 1000 + 300, "it left old rows for a whole rest"
    poller.close()
