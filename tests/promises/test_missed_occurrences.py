"""After an outage every missed occurrence runs, in order, with its own scheduled time."""

from __future__ import annotations

import pytest

from tests.promises.cluster import occurrences
from tests.promises.conftest import SERVERS_AND_STORES, MakeCluster

pytestmark = pytest.mark.slow

EVERY_MINUTE = "* * * * *"


@pytest.mark.in_suite_on("postgresql-rdb")
@pytest.mark.parametrize("cluster_on", ["sqlite-rdb", *SERVERS_AND_STORES], indirect=True)
def test_three_hours_of_outage_are_180_runs_in_order(cluster_on: MakeCluster) -> None:
    cluster = cluster_on(processors=2)
    cluster.master("a")
    until = cluster.now() // 60 * 60
    since = until - 179 * 60
    cluster.add("key", "work", since, EVERY_MINUTE)
    cluster.masters["a"].start()
    cluster.wait_until_run(["key"], until)
    cluster.stop()
    missed = occurrences(EVERY_MINUTE, since, until)
    assert len(missed) == 180
    assert [run.occurrence for run in cluster.runs()][:180] == missed
    assert cluster.judge({"key": missed}) == []
