"""A Prometheus server scrapes two nodes: no counter falls, and the sums agree with the history of the runs.

PSCHED_METRICS_ROUNDS=50 repeats the faults 50 times, which takes some minutes.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml

from faultlab import forkserver_client
from faultlab.ports import HOST, free_port
from faultlab.prerequisites import find
from psched.model import NewTask
from tests.daemon.harness import Daemon
from tests.promises.cluster import Cluster
from tests.promises.conftest import MakeCluster

ROUNDS = int(os.environ.get("PSCHED_METRICS_ROUNDS", "1"))
BATCH = 150
"""The number of tasks that are submitted before each fault."""
SECONDS_OF_WORK = 0.01
IN_FLIGHT = 1.0
"""Seconds before a child is killed. Runs that began in them may be unsettled, or settled but not counted."""
SCRAPE_INTERVAL = "200ms"
COUNTERS = re.compile(r".*(_total|_count|_sum|_bucket)")
WITHIN = 40.0


@dataclass(frozen=True)
class Prometheus:
    """A private Prometheus server on loopback."""

    address: str

    def query(self, expression: str) -> list[dict[str, Any]]:
        url = f"{self.address}/api/v1/query?{urllib.parse.urlencode({'query': expression})}"
        with urllib.request.urlopen(url, timeout=10) as answer:  # noqa: S310 – of this test
            found: list[dict[str, Any]] = json.load(answer)["data"]["result"]
            return found

    def total(self, expression: str) -> float:
        """Return the value of an expression; 0 if it has none yet."""
        return sum(float(each["value"][1]) for each in self.query(expression))

    def is_ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.address}/-/ready", timeout=10):  # noqa: S310 – of this test
                return True
        except OSError:
            return False

    def falls(self) -> list[str]:
        """Return the counters that had a smaller value after a larger one in any scrape."""
        found = []
        for series in self.query('{__name__=~"psched_.+"}[1h]'):
            values = [float(value) for _, value in series["values"]]
            if COUNTERS.fullmatch(series["metric"]["__name__"]) and values != sorted(values):
                found.append(f"{series['metric']}: {values}")
        return found


@contextmanager
def prometheus(folder: Path, targets: list[str]) -> Iterator[Prometheus]:
    folder.mkdir()
    job = {"job_name": "psched", "static_configs": [{"targets": targets}]}
    config = {
        "global": {"scrape_interval": SCRAPE_INTERVAL, "scrape_timeout": SCRAPE_INTERVAL},
        "scrape_configs": [job],
    }
    (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
    port = free_port()
    command = [
        str(find("prometheus")), f"--config.file={folder / 'prometheus.yml'}", f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address={HOST}:{port}",
    ]  # fmt: skip
    with (folder / "log").open("w") as log, subprocess.Popen(command, stdout=log, stderr=log) as process:
        try:
            yield Prometheus(f"http://{HOST}:{port}")
        finally:
            process.kill()


@contextmanager
def exporter(daemon: Daemon) -> Iterator[str]:
    """Run the exporter of a master. Yield its host and port."""
    program = [str(Path(sys.executable).parent / "psched"), "exporter", "-c", str(daemon.config)]
    command = [*program, "--listen", f"{HOST}:0"]
    with forkserver_client.start(command, daemon.folder, os.environ, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            yield process.stdout.readline().decode().split("/")[2]
        finally:
            process.terminate()


class Load:
    """Submits tasks, and counts how many have been done."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self.submitted = 0

    def submit(self) -> None:
        numbers = range(self.submitted, self.submitted + BATCH)
        data = {"seconds": SECONDS_OF_WORK}
        assert self._cluster.queue.submit_many(NewTask(f"task{number}", "work", data) for number in numbers) == []
        self.submitted += BATCH

    def finished(self) -> int:
        """Return how many tasks have a run whose handler has returned. A killed child may not have recorded more."""
        return len({run.key for run in self._cluster.runs() if run.end is not None})

    def wait_until_under_way(self) -> None:
        """Wait until some tasks of the last batch have run."""
        self._cluster.wait_for(lambda: self.finished() > self.submitted - BATCH + 10, WITHIN)

    def wait_until_done(self) -> None:
        self._cluster.wait_for(lambda: self.finished() == self.submitted, WITHIN)


def in_flight(cluster: Cluster, pids: set[int]) -> int:
    """Return how many runs of these killed children may have ended without being counted, or may have begun again."""
    return sum(run.pid in pids and run.begin > cluster.deaths[run.pid] - IN_FLIGHT for run in cluster.runs())


@pytest.mark.trial
@pytest.mark.timeout(60 + 60 * ROUNDS)
@pytest.mark.needs("prometheus")
@pytest.mark.parametrize("cluster_on", ["postgresql-rdb"], indirect=True)
def test_counters_never_fall_and_their_sums_are_the_history(cluster_on: MakeCluster) -> None:
    find("prometheus")
    cluster = cluster_on(schedules={}, queue={}, processors=2, pid_file="psched.pid")
    masters = [cluster.master(name) for name in ("a", "b")]
    assert cluster.queue
    for master in masters:
        master.start(start_new_session=True)
    with ExitStack() as stack:
        targets = [stack.enter_context(exporter(master)) for master in masters]
        server = stack.enter_context(prometheus(cluster.folder / "prometheus", targets))
        cluster.wait_for(server.is_ready, WITHIN)
        load = Load(cluster)

        def counted() -> float:
            return server.total('sum(psched_runs_total{outcome="finished",section="queue",type="work"})')

        pids = [master.process.pid for master in masters]
        for _ in range(ROUNDS):
            load.submit()
            load.wait_until_under_way()
            os.kill(pids[0], signal.SIGUSR1)
            masters[1].forget_ready()
            os.kill(pids[1], signal.SIGWINCH)
            pids[1] = masters[1].wait_until_ready()
            load.submit()
            load.wait_until_done()
        stack.callback(end, masters[1], pids[1])
        cluster.wait_for(lambda: counted() == load.submitted, WITHIN)  # nothing was killed: not one is missing
        assert server.total('sum(psched_run_duration_seconds_count{type="work"})') == load.submitted
        assert server.total('sum(psched_task_wait_seconds_count{type="work"})') == load.submitted

        exact, killed = load.submitted, set[int]()
        for _ in range(ROUNDS):
            for pid in pids:
                load.submit()
                load.wait_until_under_way()
                killed.add(kill_worker(cluster, pid))
        load.wait_until_done()
        assert load.submitted > exact
        cluster.wait_for(lambda: counted() >= load.submitted - in_flight(cluster, killed), WITHIN)
        cluster.wait_for(lambda: server.total("sum(psched_child_restarts_total{reason='SIGKILL'})") == len(killed))
        assert counted() <= load.submitted
        assert server.falls() == []
        lost, bound = load.submitted - counted(), in_flight(cluster, killed)
        print(f"{load.submitted} tasks, {len(killed)} kills: {lost:.0f} not counted, of {bound} in flight")


def kill_worker(cluster: Cluster, master: int) -> int:
    """Kill a worker of a master while it works. Return its pid."""
    worker = next(child for child in psutil.Process(master).children() if "worker" in " ".join(child.cmdline()))
    cluster.kill(worker.pid)
    return worker.pid


def end(daemon: Daemon, pid: int) -> None:
    """Stop a master that has replaced the one that the test had started. Wait until it and its children are gone."""
    family = [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]
    family[0].send_signal(signal.SIGQUIT)
    daemon.wait_until_gone(family)
