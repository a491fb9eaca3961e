"""Two masters, each with two children, on one table: every occurrence runs once, and no schedule twice at a time."""

from __future__ import annotations

import pytest

from psched.model import NewSchedule
from tests.promises.cluster import YEARLY, occurrences
from tests.promises.conftest import ON_SERVERS, MakeCluster

SCHEDULES = 400


@pytest.mark.in_suite_on("mariadb-rdb")
@pytest.mark.parametrize("cluster_on", ON_SERVERS, indirect=True)
def test_400_schedules_due_at_once_are_run_once_each_by_all_children(cluster_on: MakeCluster) -> None:
    """Each schedule is three years behind, so all children compete for each of its occurrences."""
    cluster = cluster_on(processors=2).start("a", "b")
    now = cluster.now()
    due = occurrences(YEARLY, now - 3 * 366 * 86400, now)
    required = {f"s{number}": due for number in range(SCHEDULES)}
    cluster.schedules.add_many(
        NewSchedule(key, "work", YEARLY, next_time=due[0], next_run_time=now + 2, data={"seconds": 0.002})
        for key in required
    )
    cluster.wait_until_run(list(required), due[-1], within=30)
    cluster.stop()
    assert cluster.judge(required) == []
    assert len({run.pid for run in cluster.runs()}) == 4, "some child had no part in it"
