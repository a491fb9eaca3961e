"""Tasks of the queue, run by two masters: none is lost or done twice, whoever dies meanwhile or comes too late."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
import yaml

from psched.clock import boottime
from psched.config import load
from psched.errors import PreemptedError
from psched.model import NewTask
from psched.queue import open_queue
from tests.lab.sql import connect
from tests.promises.cluster import Cluster
from tests.promises.conftest import MakeCluster

TASKS = 5000
SECONDS_OF_WORK = 0.006
KILLING = 10.0
"""Seconds in which one child after another is killed."""
PAUSE = 0.25
"""Seconds between two kills, of four children."""
SECTIONS: dict[str, Any] = {"schedules": {}, "queue": {}}


@pytest.mark.parametrize("cluster_on", ["mariadb-rdb", "postgresql-rdb"], indirect=True)
def test_5000_tasks_are_done_once_each_while_children_are_killed_again_and_again(cluster_on: MakeCluster) -> None:
    """What counts is what a handler has done under the last fence: whoever finishes the task must have that one."""
    cluster = cluster_on(**SECTIONS, processors=2)
    masters = [cluster.master(name) for name in ("a", "b")]
    required = submit(cluster, [f"task{number}" for number in range(TASKS)])
    for master in masters:
        master.start()
    kill_at_random(cluster, KILLING)
    cluster.wait_for(lambda: fences(cluster, "finished").keys() == required.keys(), within=30)
    cluster.stop()
    assert cluster.judge(required) == []
    done = {run.key: run.fence for run in cluster.runs() if run.end is not None}
    assert fences(cluster, "finished") == done, "somebody finished what another one had done"
    cut_off = Counter(run.pid for run in cluster.runs() if run.outcome is None)
    assert cut_off.keys() <= cluster.deaths.keys()
    assert len(cut_off) > 5, "too few were killed at work"
    print(f"{len(cluster.deaths)} killed, {len(cut_off)} at work; {len(cluster.runs())} runs")


@pytest.mark.parametrize("cluster_on", ["sqlite-rdb", "mariadb-rdb", "postgresql-rdb"], indirect=True)
def test_whoever_finishes_after_his_lease_changes_nothing_and_the_next_one_finishes(cluster_on: MakeCluster) -> None:
    """The next one has the same task at that moment, and runs it."""
    cluster = cluster_on(**SECTIONS)
    master = cluster.master("a")
    required = submit(cluster, ["key"], type="wait")
    path = cluster.folder / "late.yml"
    path.write_text(yaml.safe_dump({"development": {**cluster.config, "alive_time": 0.2}}))
    section = load(path).queue
    assert section is not None
    with open_queue(section, "late/1/1") as late:
        task = late.poll()
        assert task is not None
        master.start()
        cluster.wait_for_run("key")
        before = cluster.queue["key"].metadata()
        with pytest.raises(PreemptedError):
            task.finish()
        after = cluster.queue["key"].metadata()
    assert (after.status, after.node, after.finished_at) == ("running", before.node, None)
    cluster.go("key")
    assert cluster.wait_for_end("key").outcome == "finished"
    cluster.stop()
    assert cluster.judge(required) == []


def submit(cluster: Cluster, keys: Sequence[str], type: str = "work") -> dict[str, list[int]]:
    """Submit tasks that are due, and return when each was to be run."""
    run_at = cluster.now()
    data = {"seconds": SECONDS_OF_WORK}
    assert cluster.queue.submit_many(NewTask(key, type, data, run_at=run_at) for key in keys) == []
    return {key: [run_at] for key in keys}


def kill_at_random(cluster: Cluster, seconds: float) -> None:
    """Kill one child after another, whatever it is at."""
    dice = random.Random(1)
    end = boottime() + seconds
    while boottime() < end:
        workers = [worker for master in cluster.masters.values() for worker in master.workers().values()]
        if workers:
            cluster.kill(dice.choice(workers).pid)
        cluster.masters["a"].pause(PAUSE)


def fences(cluster: Cluster, status: str) -> dict[str, int]:
    """Return the fences of all tasks with this status, as they are stored."""
    with connect(cluster.config["url"]) as connection:
        found = connection.exec_driver_sql(f"SELECT * FROM psched_queue WHERE status = '{status}'").mappings()
        return {row["key"]: row["fence"] for row in found}
