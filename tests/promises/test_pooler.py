"""PgBouncer before PostgreSQL: PgBouncer and workers are killed, no task is lost, and no session is left changed."""

from __future__ import annotations

import time

import pytest

from faultlab.pgbouncer import PgBouncer
from faultlab.servers import Server
from tests.promises.cluster import EVERY_SECOND, occurrences
from tests.promises.conftest import MakeCluster

pytestmark = pytest.mark.slow

KEYS = [f"s{number}" for number in range(6)]
OURS = ("statement_timeout", "lock_timeout", "enable_seqscan", "enable_sort", "default_transaction_isolation", "jit")


@pytest.mark.timeout(120)
def test_a_pooler_that_is_killed_again_and_again_recovers_by_itself(
    postgresql: Server, make_cluster: MakeCluster
) -> None:
    with (
        postgresql.database() as url,
        PgBouncer(postgresql, "transaction", sessions=4) as pooler,
    ):
        name = url.rpartition("/")[2]
        with pooler.connect(name) as neighbour:
            before = [neighbour.execute(f"SHOW {setting}").fetchall() for setting in OURS]
        config = {"processors": 2, "alive_time": 5, "child_heartbeat_limit": 2, "child_fork_frequency_limit": 1}
        cluster = make_cluster(type="rdb", url=pooler.url(name), poll_interval=0.3, **config).start("a", "b")
        since = cluster.now()
        for key in KEYS:
            cluster.add(key, "work", since, EVERY_SECOND, seconds=0.02)
        for number in range(3):
            cluster.wait_until_run(KEYS, since + 2 + 4 * number, within=30)
            pooler.kill()
            time.sleep(1)
            pooler.start()
            worker = next(iter(cluster.masters["a"].workers().values()))
            cluster.kill(worker.pid)
        cluster.wait_until_run(KEYS, cluster.now() + 2, within=30)
        cluster.stop()
        required = {key: occurrences(EVERY_SECOND, since, cluster.runs(key)[-1].occurrence) for key in KEYS}
        assert cluster.judge(required) == []
        assert all("Traceback" not in master.log for master in cluster.masters.values())
        for _ in range(pooler.sessions * 2):
            with pooler.connect(name) as neighbour:
                assert [neighbour.execute(f"SHOW {setting}").fetchall() for setting in OURS] == before
