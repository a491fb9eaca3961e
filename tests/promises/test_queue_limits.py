"""Many tasks of one user who may run few at a time: his limit holds over all masters, and nobody waits for him."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from psched.model import NewTask
from tests.lab.sql import connect
from tests.promises.cluster import Cluster
from tests.promises.conftest import MakeCluster
from tests.promises.records import Run

MANY = 500
FEW = 60
LIMIT = 3
SECTIONS: dict[str, Any] = {"schedules": {}, "queue": {}}


@pytest.mark.parametrize("cluster_on", ["sqlite-rdb", "mariadb-rdb", "postgresql-rdb"], indirect=True)
def test_of_500_tasks_of_one_user_three_run_at_a_time_and_another_user_is_not_kept_waiting(
    cluster_on: MakeCluster,
) -> None:
    """Two masters with six children compete for them. What runs is counted from the handlers' own records.

    What is leased, run or taken ahead, is counted too: a child runs but one of the tasks it has.
    """
    cluster = cluster_on(**SECTIONS, processors=3, poll_interval=0.02)
    masters = [cluster.master("a", task_prefetch="auto"), cluster.master("b", task_prefetch=5)]
    required = submit(cluster, "many", MANY) | submit(cluster, "few", FEW)
    for master in masters:
        master.start(wait=False)
    for master in masters:
        master.wait_until_ready()
    leased: list[int] = []

    def all_done() -> bool:
        leased.append(count_leased(cluster))
        return leased[-1] == 0 and next(cluster.queue.list("waiting"), None) is None

    cluster.wait_for(all_done, within=30)
    cluster.wait_for(lambda: next(cluster.queue.list("running"), None) is None)
    cluster.stop()
    assert cluster.judge(required) == []
    runs = {user: [run for run in cluster.runs() if run.key.startswith(user)] for user in ("many", "few")}
    assert most_at_once(runs["many"]) == LIMIT
    assert max(leased) == LIMIT
    assert {run.master for run in runs["many"]} == {master.process.pid for master in masters}
    last = max(run.begin for run in runs["few"])
    before = sum(run.begin < last for run in runs["many"])
    print(f"{len(leased)} looks; the last of {FEW} began after {before} of {MANY}")
    assert before < MANY / 2, "the other user had to wait"


def submit(cluster: Cluster, user: str, count: int) -> dict[str, list[int]]:
    """Submit tasks that are due, the second user's after the first's, and return when each was to be run."""
    limit = LIMIT if user == "many" else None
    run_at = cluster.now() - (60 if user == "many" else 0)
    keys = [f"{user}{number}" for number in range(count)]
    data = {"seconds": 0.004}
    tasks = [NewTask(key, "work", data, run_at=run_at, user=user, max_running=limit) for key in keys]
    assert cluster.queue.submit_many(tasks) == []
    return {key: [run_at] for key in keys}


def count_leased(cluster: Cluster) -> int:
    """Return how many of the first user's tasks are leased, at one moment: the queue's own list has several pages."""
    with connect(cluster.config["url"]) as connection:
        counted = "SELECT COUNT(*) FROM psched_queue WHERE user_name = 'many' AND status = 'running'"
        return int(connection.exec_driver_sql(counted).scalar_one())


def most_at_once(runs: Iterable[Run]) -> int:
    """Return how many of these runs there were at a time, at the most."""
    changes = [change for run in runs for change in ((run.begin, 1), (run.end, -1))]
    now = most = 0
    for _, change in sorted(changes):
        now += change
        most = max(most, now)
    return most
