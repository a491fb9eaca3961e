"""The database server is unavailable for a while, or all processes are killed: all resumes, and nothing is lost."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from faultlab.laboratory import Lab
from faultlab.servers import Server
from psched.supervisor.run_master import ROOT_WARNING
from tests.promises.cluster import EVERY_SECOND, Cluster, occurrences
from tests.promises.conftest import AND_REDIS, SERVERS, SERVERS_AND_STORES

pytestmark = pytest.mark.slow

AWAY = 15.0
"""Seconds of the outage."""
SINGLE = {"amid": AWAY / 2, "through": AWAY + 3}
"""Seconds that the handler of each schedule takes. The schedules run once: one ends in the outage, one after it."""
KEYS = [f"s{number}" for number in range(12)]
COMPLAINTS_OF_A_CHILD = 5
"""The most lines that a child may log about one outage: two about polling, two about extending leases, and one more."""
NEXT = re.compile(
    "trying again|retrying|answers again|are stopped before|renewed again|comes back|runs? again|released [0-9]+ lease"
)
"""Words for what happens next, or for the end of a fault. Each line about an outage must contain some of them."""


@contextmanager
def scene(place: str, lab: Lab, folder: Path) -> Iterator[tuple[Server, Cluster]]:
    """Yield a private server and a cluster on it. `place`: a database and a store, such as "mariadb-rdb".

    No master is started.
    """
    database, store = place.split("-")
    folder.mkdir()
    with (
        lab.private(SERVERS[database]) as server,
        Cluster(folder, type=store, url=server.url(server.create_database())) as c,
    ):
        yield server, c


def load(cluster: Cluster, seconds: float) -> int:
    """Add schedules that keep the cluster busy. Return the time from which they are due."""
    since = cluster.now()
    for key in KEYS:
        cluster.add(key, "work", since, EVERY_SECOND, seconds=seconds)
    return since


def required(cluster: Cluster, since: int) -> dict[str, list[int]]:
    """Return the occurrences that each schedule of the load must have run: those up to its last run."""
    return {key: occurrences(EVERY_SECOND, since, cluster.runs(key)[-1].occurrence) for key in KEYS}


@pytest.mark.timeout(120)
def test_a_server_that_is_away_for_15_s_recovers_by_itself(lab: Lab, tmp_path: Path) -> None:
    """Both servers are stopped at the same time. A run that outlasts the outage, or ends in it, runs only once."""
    with ExitStack() as stack:
        scenes = [stack.enter_context(scene(place, lab, tmp_path / place)) for place in SERVERS_AND_STORES]
        begun = []
        for _, cluster in scenes:
            cluster.start("a", "b", poll_interval=0.3, processors=2)
            single = {key: [cluster.add(key, "work", seconds=seconds)] for key, seconds in SINGLE.items()}
            begun.append((load(cluster, 0.02), single, cluster.wait_for(partial(workers, cluster))))
            for key in single:
                cluster.wait_for_run(key)
        time.sleep(1)
        away_and_back([server for server, _ in scenes])
        for (_, cluster), (since, single, before) in zip(scenes, begun, strict=True):
            cluster.wait_until_run(KEYS, cluster.now(), within=30)
            for key in single:
                cluster.wait_for_end(key)
            assert workers(cluster) == before, "some worker was replaced"
            check_complaints(cluster)
            cluster.stop()
            assert cluster.judge({**required(cluster, since), **single}) == []
            assert {run.outcome for run in cluster.runs()} == {"finished"}, "what ended in the outage waits for its end"


def away_and_back(servers: list[Server]) -> None:
    """Stop the servers in good order, and start them again after the outage."""
    for server in servers:
        os.kill(server.pid, signal.SIGINT)  # PostgreSQL: do not wait for the sessions' end; MariaDB heeds it not
        server.stop()
    time.sleep(AWAY)
    for server in servers:
        server.start()


def workers(cluster: Cluster) -> set[int]:
    """Return the pids of all workers."""
    return {worker.pid for master in cluster.masters.values() for worker in master.workers().values()}


def check_complaints(cluster: Cluster) -> None:
    """Check that the logs say little about the outage, and always what happens next.

    A master whose workers all wait for a settlement meanwhile logs nothing, because none of their calls has failed.
    """
    logs = {name: master.log.splitlines() for name, master in cluster.masters.items()}
    complaints = {
        name: [line for line in log if " WARNING " in line or " ERROR " in line] for name, log in logs.items()
    }
    noticed = {name: [line for line in lines if ROOT_WARNING not in line] for name, lines in complaints.items()}
    assert any(noticed.values()), "no master noticed it"
    for name, master in cluster.masters.items():
        lines = noticed[name]
        assert len(lines) <= COMPLAINTS_OF_A_CHILD * 2, "\n".join(lines)
        assert [line for line in lines if not NEXT.search(line)] == []
        assert "Traceback" not in master.log


@pytest.mark.in_suite_on("postgresql-rdb", "redis-redis")
@pytest.mark.parametrize("place", AND_REDIS)
def test_after_everything_was_killed_at_once_nothing_is_lost(place: str, lab: Lab, tmp_path: Path) -> None:
    """Masters, children and the server are killed.

    New masters start before the server. Only what was running runs again.
    """
    with scene(place, lab, tmp_path / place) as (server, cluster):
        config: dict[str, Any] = {"processors": 2, "alive_time": 3, "child_heartbeat_limit": 2}
        cluster.start("a", "b", **config)
        successors = [cluster.master(name, **config) for name in ("c", "d")]
        since = load(cluster, 0.15)
        cut = cluster.add("cut", "wait")
        cluster.wait_for_run("cut")
        cluster.wait_until_run(KEYS, since + 2)
        pids = kill_all(cluster, "a", "b")
        server.kill()
        for successor in successors:
            successor.start().wait_for_log("the database does not answer")
        cluster.go("cut")
        server.start()
        cluster.wait_until_run([*KEYS, "cut"], cut, within=30)
        cluster.wait_until_run(KEYS, cluster.now() + 1, within=30)
        cluster.stop()
        assert cluster.judge({**required(cluster, since), "cut": [cut]}) == []
        repeated = len(cluster.runs()) - len({(run.key, run.occurrence) for run in cluster.runs()})
        assert 1 <= repeated <= len(pids), "each worker had one task only"


def kill_all(cluster: Cluster, *names: str) -> set[int]:
    """Kill these masters and their children by SIGKILL, before a child can be replaced. Return the children's pids."""
    pids = {worker.pid for name in names for worker in cluster.masters[name].workers().values()}
    for name in names:
        cluster.masters[name].master.suspend()
    for pid in pids:
        cluster.kill(pid)
    for name in names:
        cluster.kill_master(name)
    return pids
