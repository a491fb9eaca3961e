"""Many tasks of one user with a limit on running tasks: the limit holds over all masters, and no other user waits."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import pytest
import redis

from faultlab.sql import connect
from psched.model import NewTask
from tests.promises.cluster import Cluster
from tests.promises.conftest import MakeCluster
from tests.promises.run_history import Run

MANY = 500
ENOUGH = 200
"""The number of runs after which the test has seen enough."""
FEW = 60
LIMIT = 3
SECTIONS: dict[str, Any] = {"schedules": {}, "queue": {}}


@pytest.mark.in_suite_on("redis-redis")
@pytest.mark.parametrize("cluster_on", ["sqlite-rdb", "mariadb-rdb", "postgresql-rdb", "redis-redis"], indirect=True)
def test_of_500_tasks_of_one_user_three_run_at_a_time_and_another_user_is_not_kept_waiting(
    cluster_on: MakeCluster,
) -> None:
    """Two masters with six children compete for the tasks. Running tasks are counted from the handlers' records.

    Leased tasks, running or prefetched, are counted too, because a child runs only one of its tasks at a time. The
    first three tasks are held until all three run: a child that acquires one of them must leave the others to other
    children.
    """
    cluster = cluster_on(**SECTIONS, processors=3, poll_interval=0.02)
    masters = [cluster.master("a", task_prefetch="auto"), cluster.master("b", task_prefetch=4)]
    held = [f"many{number}" for number in range(LIMIT)]
    required = submit(cluster, "many", MANY, held) | submit(cluster, "few", FEW)
    for master in masters:
        master.start(wait=False)
    for master in masters:
        master.wait_until_ready()
    cluster.wait_for(lambda: runs_of(cluster, "many").keys() == set(held))
    leased = [count_leased(cluster)]
    for key in held:
        cluster.go(key)

    def seen_enough() -> bool:
        leased.append(count_leased(cluster))
        return len(runs_of(cluster, "many")) >= ENOUGH and len(runs_of(cluster, "few")) == FEW

    cluster.wait_for(seen_enough, within=30)
    cluster.stop()
    many, few = runs_of(cluster, "many"), runs_of(cluster, "few")
    assert cluster.judge({key: required[key] for key in many.keys() | few.keys()}) == []
    assert most_at_once(many.values()) == LIMIT
    assert max(leased) == LIMIT
    assert {run.master for run in many.values()} == {master.process.pid for master in masters}
    last = max(run.begin for run in few.values())
    before = sum(run.begin < last for run in many.values())
    print(f"{len(leased)} looks; the last of {FEW} began after {before} of {len(many)}")
    assert before < MANY / 2, "the other user had to wait"


def runs_of(cluster: Cluster, user: str) -> dict[str, Run]:
    """Return the last run of each of the user's tasks that has begun, by key."""
    return {run.key: run for run in cluster.runs() if run.key.startswith(user)}


def submit(cluster: Cluster, user: str, count: int, held: Collection[str] = ()) -> dict[str, list[int]]:
    """Submit tasks that are due: those of the second user are due after those of the first. Return when each is due.

    Tasks in `held` are due first, and run until the test lets them end.
    """
    limit = LIMIT if user == "many" else None
    run_at = cluster.now() - (60 if user == "many" else 0)
    required = {key: run_at - (key in held) for key in (f"{user}{number}" for number in range(count))}
    tasks = [
        NewTask(key, "wait" if key in held else "work", {"seconds": 0.004}, due, user=user, max_running=limit)
        for key, due in required.items()
    ]
    assert cluster.queue.submit_many(tasks) == []
    return {key: [due] for key, due in required.items()}


def count_leased(cluster: Cluster) -> int:
    """Return how many of the first user's tasks are leased at one moment.

    The queue's own list is not read at one moment.
    """
    if cluster.config["type"] == "redis":
        with redis.Redis.from_url(cluster.config["url"]) as client:
            return int(client.zcard("{psched}:psched_queue:run:many"))
    with connect(cluster.config["url"]) as connection:
        counted = "SELECT COUNT(*) FROM psched_queue WHERE user_name = 'many' AND status = 'running'"
        return int(connection.exec_driver_sql(counted).scalar_one())


def most_at_once(runs: Iterable[Run]) -> int:
    """Return the maximum number of these runs at a time."""
    changes = [change for run in runs for change in ((run.begin, 1), (run.end, -1))]
    now = most = 0
    for _, change in sorted(changes):
        now += change
        most = max(most, now)
    return most
