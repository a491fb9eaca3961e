"""What an idle lane costs its database: one question a poll, on every store."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import sqlalchemy as sa

from psched.application import Application
from psched.daemon.lane import Lane
from psched.daemon.prefetch import FixedPrefetch
from psched.daemon.vigil import Vigil
from psched.retire import Retire
from psched.source import LeaseTimes, Source
from psched.store import TaskStore
from tests.stores.bench import FAR_OFF
from tests.stores.queue.bench import QueueBench


class Hands:
    """A clock that stands still until it is moved."""

    def __init__(self) -> None:
        self.time = 1000.0

    def __call__(self) -> float:
        return self.time


@contextmanager
def counted() -> Iterator[list[str]]:
    """Yield the statements that are executed meanwhile in this process."""
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
    source = Source(store, Retire(store, 300, None), LeaseTimes(300, 300, 30), clock)
    lane = Lane("queue", source, Application(()), FixedPrefetch(10), Vigil(1.0, clock), None, 3.0)
    assert list(lane.poll()) == []
    for _ in range(3):
        assert lane.pause() > 0
        clock.time += lane.pause()
        with counted() as statements:
            assert list(lane.poll()) == []
        if not bench.url.startswith("redis"):  # which has no statements to count
            assert len(statements) == 1, statements
            assert statements[0].lstrip().startswith("SELECT")
    lane.close()
