"""Two masters run tasks of a queue: no task is lost or done twice, whichever process dies meanwhile."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from typing import Any

import pytest
import yaml

from faultlab.sql import connect
from psched.config import load
from psched.errors import PreemptedError
from psched.model import NewTask
from psched.queue.queue import open_queue
from tests.promises.cluster import Cluster
from tests.promises.conftest import MakeCluster

BACKLOG = 300
"""The number of tasks that are submitted whenever fewer may be left, until enough children have been killed."""
SECONDS_OF_WORK = 0.02
CUT_OFF = 8
"""The number of children to kill while they run a task. Others may be killed too."""
PAUSE = 0.2
"""Seconds from the moment when a child is seen to be up, or to work, until it is killed."""
BEGINS_WITHIN = 2.0
"""Seconds in which a child may begin a run. After that it is killed, whatever it does."""
SECTIONS: dict[str, Any] = {"schedules": {}, "queue": {}}


@pytest.mark.in_suite_on("postgresql-rdb")
@pytest.mark.parametrize("cluster_on", ["mariadb-rdb", "postgresql-rdb"], indirect=True)
def test_tasks_are_done_once_each_while_children_are_killed_again_and_again(cluster_on: MakeCluster) -> None:
    """The run with the last fence counts: the run that finishes a task must be the one with this fence."""
    cluster = cluster_on(**SECTIONS, processors=2)
    masters = [cluster.master(name) for name in ("a", "b")]
    required = submit_more(cluster, 0)
    for master in masters:
        master.start()
    kill_at_random(cluster, required)
    cluster.wait_for(lambda: fences(cluster, "finished").keys() == required.keys(), within=30)
    cluster.stop()
    assert cluster.judge(required) == []
    done = {run.key: run.fence for run in cluster.runs() if run.end is not None}
    assert fences(cluster, "finished") == done, "somebody finished what another one had done"
    assert cut_off(cluster) <= cluster.deaths.keys()
    print(f"{len(cluster.deaths)} killed, {len(cut_off(cluster))} at work; {len(cluster.runs())} runs")


@pytest.mark.in_suite_on("mariadb-rdb", "redis-redis")
@pytest.mark.parametrize("cluster_on", ["sqlite-rdb", "mariadb-rdb", "postgresql-rdb", "redis-redis"], indirect=True)
def test_whoever_finishes_after_his_lease_changes_nothing_and_the_next_one_finishes(cluster_on: MakeCluster) -> None:
    """While the late worker tries to finish its task, the next worker is running this task."""
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
    """Submit tasks that are due. Return the time for which each is due."""
    run_at = cluster.now()
    data = {"seconds": SECONDS_OF_WORK}
    assert cluster.queue.submit_many(NewTask(key, type, data, run_at=run_at) for key in keys) == []
    return {key: [run_at] for key in keys}


def submit_more(cluster: Cluster, first: int) -> dict[str, list[int]]:
    """Submit the next `BACKLOG` tasks. `first`: the number of the first one."""
    return submit(cluster, [f"task{number}" for number in range(first, first + BACKLOG)])


def kill_at_random(cluster: Cluster, required: dict[str, list[int]]) -> None:
    """Kill one child after another, whatever it does, until enough children have been killed while they ran a task.

    Adds the tasks that it submits meanwhile to `required`, so that there are always tasks to run.
    """
    dice = random.Random(1)

    def killed_enough() -> bool:
        master = dice.choice(list(cluster.masters.values()))
        victim = master.worker(dice.choice([1, 2]))
        if len(required) - len(cluster.runs()) < BACKLOG:
            required.update(submit_more(cluster, len(required)))
        until = time.monotonic() + BEGINS_WITHIN
        while time.monotonic() < until and not any(run.pid == victim.pid for run in cluster.runs()):
            master.pause(PAUSE)
        cluster.kill(victim.pid)
        return len(cut_off(cluster) & cluster.deaths.keys()) >= CUT_OFF

    cluster.wait_for(killed_enough, within=30)


def cut_off(cluster: Cluster) -> set[int]:
    """Return the pids of the children with a run that is not settled, or not yet."""
    return {run.pid for run in cluster.runs() if run.outcome is None}


def fences(cluster: Cluster, status: str) -> dict[str, int]:
    """Return the stored fences of all tasks with this status, by key."""
    with connect(cluster.config["url"]) as connection:
        found = connection.exec_driver_sql(f"SELECT * FROM psched_queue WHERE status = '{status}'").mappings()
        return {row["key"]: row["fence"] for row in found}
