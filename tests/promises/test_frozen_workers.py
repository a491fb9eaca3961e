"""A worker that was frozen for longer than its lease changes nothing when it resumes, and is told why."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
import sqlalchemy as sa
import yaml

from faultlab import forkserver_client
from faultlab.proxy import Proxy
from psched.model import ScheduleRow
from tests.daemon.harness import is_alive, wait_for
from tests.promises.cluster import Cluster
from tests.promises.conftest import ON_SERVERS, SERVERS_AND_STORES, MakeCluster

CLIENT = Path(__file__).with_name("polling_client.py")
VERBS = ["finish", "heartbeat", "release", "retry"]
ALL_PREEMPTED = dict.fromkeys(VERBS, "PreemptedError")


class Client:
    """The program polling_client.py, as a child of the test."""

    def __init__(self, config: Path) -> None:
        environ = {**os.environ, "PYTHONPATH": str(CLIENT.parents[2])}
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        self.process = forkserver_client.start([str(CLIENT), str(config)], Path.cwd(), environ, **pipes)

    def answer(self) -> Any:
        """Return the JSON value that the program prints next."""
        assert self.process.stdout is not None
        return json.loads(self.process.stdout.readline())

    def step(self) -> None:
        """Let the program do its next step."""
        assert self.process.stdin is not None
        self.process.stdin.write(b"\n")
        self.process.stdin.flush()

    def done(self) -> Any:
        """Let the program do its next step. Return what it prints then."""
        self.step()
        return self.answer()


@contextmanager
def client(cluster: Cluster, **config: Any) -> Iterator[Client]:
    """Start a client on the cluster's table, and yield it."""
    path = cluster.folder / f"client{len(config)}.yml"
    settings = {"type": cluster.config["type"], "url": cluster.config["url"], "alive_time": 1.5, **config}
    path.write_text(yaml.safe_dump({"development": settings}))
    client = Client(path)
    with client.process:
        try:
            yield client
        finally:
            client.process.kill()


@contextmanager
def proxy_of(cluster: Cluster) -> Iterator[tuple[Proxy, str]]:
    """Start a proxy to the cluster's database. Yield the proxy, and the URL by which it is used."""
    url = sa.make_url(cluster.config["url"])
    assert url.port is not None
    with Proxy(url.port) as proxy:
        yield proxy, url.set(port=proxy.port).render_as_string(hide_password=False)


@pytest.mark.in_suite_on("mariadb-rdb")
@pytest.mark.parametrize("cluster_on", ON_SERVERS, indirect=True)
def test_what_comes_after_the_lease_changes_nothing(cluster_on: MakeCluster) -> None:
    """One client is woken too late to settle anything.

    The network has held the `finish` of another client meanwhile.
    """
    cluster = cluster_on(processor_type="thread", processors=5, task_prefetch=0)
    successor = cluster.master("b")
    required = {key: [cluster.add(key, "wait")] for key in VERBS}
    with client(cluster) as frozen, proxy_of(cluster) as (proxy, url), client(cluster, url=url) as late:
        assert late.done() and frozen.done(), "they have opened the schedules"
        assert frozen.done() == required
        frozen.process.send_signal(signal.SIGSTOP)
        required["late"] = [cluster.add("late", "wait")]
        assert late.done() == {"late": required["late"]}
        finish = proxy.hold(b"next_time=")
        late.step()
        finish.wait()
        successor.start()
        for key in required:
            cluster.wait_for_run(key)
        rows = stored(cluster)
        finish.release()
        frozen.process.send_signal(signal.SIGCONT)
        assert frozen.done() == dict.fromkeys(VERBS, ALL_PREEMPTED)
        assert late.answer() == {"late": ALL_PREEMPTED}
    assert untouched(cluster, rows), "something was overwritten"
    finish_all(cluster, required)
    assert cluster.judge(required) == []


@pytest.mark.in_suite_on("mariadb-rdb_compat")
@pytest.mark.parametrize("cluster_on", SERVERS_AND_STORES, indirect=True)
def test_a_master_and_child_woken_after_their_leases_settle_nothing_and_say_why(cluster_on: MakeCluster) -> None:
    """They have little time: a child whose leases have ended exits, and the kernel ends one that was frozen longer."""
    cluster = cluster_on(processor_type="thread", processors=4, task_prefetch=0)
    frozen = cluster.master("a", alive_time=2, child_heartbeat_limit=1.6).start()
    required = {verb: [cluster.add(verb, "woken", verb=verb)] for verb in VERBS}
    (pid,) = {cluster.wait_for_run(key).pid for key in VERBS}
    child = psutil.Process(pid)
    for process in (frozen.master, child):
        process.suspend()
    for key in VERBS:
        cluster.schedules[key].modify(type="wait")
    cluster.master("b").start()
    again = {cluster.wait_for_run(key, 2).begin for key in VERBS}
    rows = stored(cluster)
    for process in (child, frozen.master):
        process.resume()
    wait_for(lambda: not is_alive(child) or len(outcomes(cluster, child)) == len(VERBS))
    assert untouched(cluster, rows), "something was overwritten"
    finish_all(cluster, required)
    assert {run.begin for run in cluster.runs() if run.outcome == "finished"} == again
    assert set(outcomes(cluster, child).values()) <= {"PreemptedError"}
    told = {line["key"]: line["reason"] for line in cluster.lines("told")}
    knows = told | outcomes(cluster, child)
    assert knows == ALL_PREEMPTED or "forced exit" in frozen.log or f"(pid {pid}) was killed by" in frozen.log


def stored(cluster: Cluster) -> dict[str, ScheduleRow]:
    """Return the stored schedules by key."""
    return {row.key: row for row in cluster.schedules.list()}


def untouched(cluster: Cluster, before: dict[str, ScheduleRow]) -> bool:
    """Return whether the rows are unchanged, except that their holder may have extended the leases."""
    now = stored(cluster)
    longer = all(now[key].next_run_time >= row.next_run_time for key, row in before.items())
    return longer and before == {key: replace(row, next_run_time=before[key].next_run_time) for key, row in now.items()}


def outcomes(cluster: Cluster, process: psutil.Process) -> dict[str, str]:
    """Return the outcomes of this process's settled runs, by key."""
    return {run.key: run.outcome for run in cluster.runs() if run.pid == process.pid and run.outcome is not None}


def finish_all(cluster: Cluster, required: dict[str, list[int]]) -> None:
    """Let the successor finish its runs, and check that it does."""
    for key in required:
        cluster.go(key)
    cluster.wait_for(lambda: {run.key for run in cluster.runs() if run.outcome == "finished"} == required.keys())
    cluster.stop()
