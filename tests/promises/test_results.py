"""The result of a task is the whole result of its last run, whichever process dies between return and settling."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from psched.model import NewTask, TaskRow
from tests.promises.cluster import Cluster
from tests.promises.conftest import MakeCluster

ON_ALL = ["sqlite-rdb", "mariadb-rdb", "postgresql-rdb", "redis-redis"]
TASKS = {f"{'k' * n}{n}": n % 4 for n in range(1, 13)}
"""How often the child of each task is killed after the task's function has returned, by key."""


@pytest.mark.in_suite_on("mariadb-rdb", "redis-redis")
@pytest.mark.parametrize("cluster_on", ON_ALL, indirect=True)
def test_a_result_is_the_last_runs_when_children_die_between_return_and_settling(cluster_on: MakeCluster) -> None:
    cluster = cluster_on(app="result_application:app", schedules={}, queue={}, processors=2)
    master = cluster.master("a")
    cluster.queue.submit_many(NewTask(key, "measure", {"kills": kills}) for key, kills in TASKS.items())
    master.start()
    rows = cluster.wait_for(lambda: finished(cluster, TASKS), within=90)
    cluster.stop()
    runs = fences(cluster.file.with_name("results"))
    assert sum(map(len, runs.values())) > len(TASKS), "no run was repeated"
    for key, row in rows.items():
        last, count = runs[key][-1], len(runs[key])
        assert row.result == {"fence": last, "run": count, "text": f"{last} " * 1000}
        assert row.progress is not None
        assert (row.progress.done, row.progress.message) == (count, f"fence {last}")


def finished(cluster: Cluster, keys: Mapping[str, int]) -> dict[str, TaskRow] | None:
    """Return the tasks by key when all are finished, else None."""
    rows = {row.key: row for row in cluster.queue.list(status="finished")}
    return rows if rows.keys() >= keys.keys() else None


def fences(file: Path) -> dict[str, list[int]]:
    """Return the fences of each task's runs, in order."""
    runs: dict[str, list[int]] = {}
    for line in map(json.loads, file.read_text().splitlines()):
        runs.setdefault(line["key"], []).append(line["fence"])
    return runs
