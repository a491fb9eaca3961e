"""When workers are killed or freeze, their runs run again: when they should, and not earlier."""

from __future__ import annotations

import psutil
import pytest

from psched.clock import boottime
from tests.daemon.harness import is_alive, wait_for
from tests.promises.cluster import wall_of
from tests.promises.conftest import AND_REDIS, SERVERS_AND_STORES, MakeCluster

AGAIN_WITHIN = 3.0
"""Seconds from a child's death to the next run of its task, if the store knows which child held the lease."""
GONE_WITHIN = 2.0
"""Seconds from a master's death to the end of its children."""


@pytest.mark.in_suite_on("sqlite-rdb", "pgbouncer-rdb", "redis-redis")
@pytest.mark.parametrize(
    "cluster_on", ["sqlite-rdb", "mariadb-rdb", "postgresql-rdb", "pgbouncer-rdb", "redis-redis"], indirect=True
)
def test_the_task_of_a_killed_child_runs_again_at_once(cluster_on: MakeCluster) -> None:
    cluster = cluster_on(child_fork_frequency_limit=1).start("a")
    occurrence = cluster.add("key", "wait")
    cluster.masters["a"].pause(1)  # a child that has just been born would not be replaced at once
    death = cluster.kill(cluster.wait_for_run("key").pid)
    again = cluster.wait_for_run("key", 2)
    cluster.go("key")
    cluster.wait_for_end("key", 2)
    cluster.stop()
    assert cluster.judge({"key": [occurrence]}) == []
    assert again.begin < death + AGAIN_WITHIN


@pytest.mark.parametrize("cluster_on", ["sqlite-rdb_compat", "mariadb-rdb_compat"], indirect=True)
def test_where_nobody_knows_whose_lease_it_was_the_task_waits_for_its_end(cluster_on: MakeCluster) -> None:
    """The killed child itself is replaced immediately."""
    cluster = cluster_on(alive_time=3, child_heartbeat_limit=None).start("a")
    occurrences = {"key": [cluster.add("key", "wait")]}
    death = cluster.kill(cluster.wait_for_run("key").pid)
    lease_end = cluster.schedules["key"].metadata().next_run_time
    occurrences["other"] = [cluster.add("other", "work")]
    other = cluster.wait_for_end("other")
    again = cluster.wait_for_run("key", 2)
    cluster.go("key")
    cluster.wait_for_end("key", 2)
    cluster.stop()
    assert cluster.judge(occurrences) == []
    assert other.begin < again.begin
    assert wall_of(again.begin) >= lease_end > wall_of(death) + 2, "it was renewed to the last"


@pytest.mark.in_suite_on("mariadb-rdb_compat", "redis-redis")
@pytest.mark.parametrize("cluster_on", AND_REDIS, indirect=True)
def test_a_killed_master_takes_its_children_along_and_another_takes_over_at_once(cluster_on: MakeCluster) -> None:
    """The children release their runs, but only after the handlers have been ended."""
    cluster = cluster_on(processors=2).start("a")
    occurrences = {key: [cluster.add(key, "wait")] for key in ("k1", "k2")}
    first = {key: cluster.wait_for_run(key) for key in occurrences}
    cluster.start("b")
    children = cluster.kill_master("a")
    death = boottime()
    wait_for(lambda: not any(is_alive(child) for child in children), within=GONE_WITHIN)
    for key, run in first.items():
        again = cluster.wait_for_run(key, 2)
        assert again.begin < death + AGAIN_WITHIN
        cluster.deaths[run.pid] = max(line["at"] for line in cluster.lines("sign", key) if line["pid"] == run.pid)
        cluster.go(key)
        cluster.wait_for_end(key, 2)
    cluster.stop()
    assert cluster.judge(occurrences) == []


@pytest.mark.in_suite_on("postgresql-rdb")
@pytest.mark.parametrize("cluster_on", SERVERS_AND_STORES, indirect=True)
def test_a_child_that_stands_still_is_killed_and_its_task_runs_in_another(cluster_on: MakeCluster) -> None:
    cluster = cluster_on(alive_time=4, child_heartbeat_limit=0.7, processors=2).start("a")
    occurrence = cluster.add("key", "wait")
    frozen = psutil.Process(cluster.wait_for_run("key").pid)
    frozen.suspend()
    wait_for(lambda: not is_alive(frozen))
    cluster.deaths[frozen.pid] = boottime()
    cluster.wait_for_run("key", 2)
    cluster.go("key")
    cluster.wait_for_end("key", 2)
    cluster.masters["a"].wait_for_workers(2)
    cluster.stop()
    assert cluster.judge({"key": [occurrence]}) == []
    assert "counts as frozen" in cluster.masters["a"].log


@pytest.mark.in_suite_on("mariadb-rdb_compat")
@pytest.mark.parametrize("cluster_on", SERVERS_AND_STORES, indirect=True)
def test_a_run_longer_than_its_lease_is_one_run(cluster_on: MakeCluster) -> None:
    """A second master waits for the run. The prefetched tasks behind it are also extended, or released."""
    cluster = cluster_on(alive_time=2, child_heartbeat_limit=None, task_prefetch=2).start("a", "b")
    required = {key: [cluster.add(key, "work", seconds=3.5)] for key in ("k1", "k2")}
    for key in required:
        cluster.wait_for_end(key)
    cluster.stop()
    assert cluster.judge(required) == []
