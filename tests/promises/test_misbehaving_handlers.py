"""Handlers misbehave in every way, all at the same time. Tasks beside them run on time, each once and in order."""

from __future__ import annotations

from itertools import pairwise

import pytest

from tests.promises.cluster import EVERY_SECOND, occurrences
from tests.promises.conftest import MakeCluster

MISDEEDS = ["raise", "unsettled", "exit", "crash", "fork", "close", "spin", "stop"]
WITNESSES = [f"w{number}" for number in range(4)]


@pytest.mark.trial
@pytest.mark.parametrize("cluster_on", ["postgresql-rdb"], indirect=True)
def test_no_handler_harms_another_task(cluster_on: MakeCluster) -> None:
    """There are more misbehaving handlers than workers. A task that kills its worker waits longer each time."""
    cluster = cluster_on(processors=3, alive_time=5, child_heartbeat_limit=1, retry_wait=300).start("a")
    since = cluster.now()
    for key in WITNESSES:
        cluster.add(key, "work", since, EVERY_SECOND)
    for misdeed in MISDEEDS:
        cluster.add(misdeed, misdeed)
    for misdeed in MISDEEDS:
        cluster.wait_for_run(misdeed)
    cluster.wait_for_run("crash", 4)
    cluster.wait_until_run(WITNESSES, cluster.now() + 1)
    cluster.masters["a"].wait_for_workers(3)
    witnessed = {key: occurrences(EVERY_SECOND, since, cluster.runs(key)[-1].occurrence) for key in WITNESSES}
    master = cluster.masters["a"].process.pid
    cluster.stop()
    assert {run.master for run in cluster.runs()} == {master}, "some forked process took tasks as if it were a worker"
    assert cluster.judge(witnessed) == []
    assert len(cluster.runs("raise")) == len(cluster.runs("exit")) == len(cluster.runs("fork")) == 1
    waits = [later.begin - earlier.begin for earlier, later in pairwise(cluster.runs("crash")[:4])]
    assert all(wait >= least for wait, least in zip(waits, (1, 2, 4), strict=True)), waits
