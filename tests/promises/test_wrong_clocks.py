"""Workers whose wall clocks are ten minutes ahead or behind, and jump, share the work as with right clocks."""

from __future__ import annotations

import signal

import pytest

from faultlab.laboratory import Lab
from tests.promises.cluster import EVERY_SECOND, occurrences, wall_of
from tests.promises.conftest import AND_REDIS, MakeCluster

OFF = 600


@pytest.mark.in_suite_on("redis-redis")
@pytest.mark.parametrize("cluster_on", AND_REDIS, indirect=True)
def test_a_wrong_clock_takes_nothing_early_loses_nothing_and_repeats_nothing(cluster_on: MakeCluster, lab: Lab) -> None:
    """All occurrences count from the true time. "long" takes longer than its lease, and "soon" is not due yet."""
    cluster = cluster_on(alive_time=2, child_heartbeat_limit=1.5)
    clocks = {"a": lab.wall_clock(), "b": lab.wall_clock()}
    for (name, clock), offset in zip(clocks.items(), (OFF, -OFF), strict=True):
        clock.set(offset)
        cluster.master(name, clock.environment).start(wait=False)
    since = cluster.now()
    keys = [f"s{number}" for number in range(6)]
    for key in keys:
        cluster.add(key, "work", since, EVERY_SECOND)
    soon = since - since % 60 + 120
    cluster.add("soon", "work", soon, rule="* * * * *")
    required = {"long": [cluster.add("long", "work", seconds=3.5)]}
    names = {cluster.masters[name].wait_until_ready(): name for name in clocks}
    cluster.wait_until_run(keys, since + 2)
    clocks["a"].set(-OFF)
    clocks["b"].set(OFF)
    cluster.wait_until_run(keys, since + 5)
    cluster.wait_for_end("long")
    ahead = cluster.masters[names[cluster.runs()[-1].master]]
    assert ahead.end(signal.SIGTERM) == 0  # one master may have been the quicker one each time
    cluster.wait_for(lambda: {run.master for run in cluster.runs()} == set(names))
    cluster.stop()
    for key in keys:
        required[key] = occurrences(EVERY_SECOND, since, cluster.runs(key)[-1].occurrence)
    assert cluster.judge(required) == []
    assert not cluster.runs("soon")
    offsets = {round((line["wall"] - wall_of(line["at"])) / OFF) for line in cluster.lines("begin")}
    assert offsets == {1, -1}, "the clocks were not wrong"
