"""Limits that are not numbers, where a database can store these: they affect their own rows, never others."""

from __future__ import annotations

from pathlib import Path

import pytest

from psched.acquisition.task_source import TaskSource
from psched.model import LeaseTimes, TaskFilter
from psched.queue.settlement import TaskSettlement
from psched.task import finish_many
from tests.stores.bench import soon
from tests.stores.databases import SharedDatabases
from tests.stores.queue.bench import QueueBench
from tests.stores.queue.conftest import made_bench

SPOILT = [
    *(("rdb", "sqlite", column) for column in ("max_attempts", "max_running")),
    *(("redis", "redis", column) for column in ("max_attempts", "max_running")),
    ("rdb_compat", "sqlite", "max_running"),
]


def see_that_the_neighbour_runs(bench: QueueBench) -> None:
    store = bench.queue()
    source = TaskSource(store, TaskSettlement(store, 100, max_attempts=5), LeaseTimes(60, 300, 15))
    tasks = source.poll_multi(10)
    assert [task.key for task in tasks] == ["good"]
    assert [row.key for row in store.list(TaskFilter()) if row.problem] == ["bad"]
    assert finish_many(tasks, soon()) == {}


@pytest.mark.parametrize(("type_", "database", "column"), SPOILT)
def test_a_limit_that_is_no_number_stops_no_other_task(
    databases: SharedDatabases, tmp_path: Path, type_: str, database: str, column: str
) -> None:
    with made_bench(databases, type_, database, tmp_path) as bench:
        store = bench.queue()
        bench.submit(store, ["bad", "good"], user="one")
        bench.write("bad", **{column: "many"})
        if not bench.compat:
            bench.write("bad", attempts=2)
        see_that_the_neighbour_runs(bench)
