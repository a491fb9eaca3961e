"""A daemon registers its node and reports its runs. A clean stop deletes the node; a killed daemon's node expires."""

from __future__ import annotations

import os
import signal
import sqlite3
from collections.abc import Callable, Sequence
from contextlib import closing

import pytest

from psched.store.node_registry import Node, NodeProcess, NodeRun
from tests.daemon.harness import Daemon

Make = Callable[..., Daemon]


def known_nodes(daemon: Daemon) -> Sequence[Node]:
    with daemon.schedules() as schedules:
        assert schedules.store.nodes is not None
        return schedules.store.nodes.known()


def processes(daemon: Daemon) -> Sequence[NodeProcess]:
    return [process for node in known_nodes(daemon) for process in node.processes]


def runs(daemon: Daemon) -> list[NodeRun]:
    return [run for process in processes(daemon) for run in process.runs]


@pytest.mark.parametrize("workers", [1, 2])
def test_it_tells_its_children_and_what_they_run_until_it_stops(make_daemon: Make, workers: int) -> None:
    daemon = make_daemon(processors=workers, task_heartbeat_interval=0.1)
    daemon.add("job", "wait")
    daemon.start()
    begun = daemon.wait_for_trace("began", "job")
    [run] = daemon.wait_for(lambda: runs(daemon))
    [node] = known_nodes(daemon)
    assert (node.pid, node.section) == (daemon.process.pid, "schedules")
    assert [process.pid for process in node.processes if process.runs] == [begun["pid"]]
    assert {process.pid for process in node.processes} == {child.pid for child in daemon.workers().values()}
    assert run[:3] == ("schedules", "job", "wait")
    with daemon.schedules() as schedules:
        assert node.started < run.since < schedules.store.now()
    daemon.go("job")
    daemon.wait_for(lambda: not runs(daemon))
    assert daemon.end(signal.SIGTERM) == 0
    assert known_nodes(daemon) == []


def test_what_runs_is_reported_by_the_next_fetching_child_too(make_daemon: Make) -> None:
    daemon = make_daemon(processors=2, task_heartbeat_interval=0.1)
    daemon.add("job", "wait")
    daemon.start()
    daemon.wait_for(lambda: runs(daemon))
    with daemon.schedules() as schedules:
        assert schedules.store.nodes is not None
        schedules.store.nodes.withdraw(known_nodes(daemon)[0].name)
    [fetcher] = [child for child in daemon.master.children() if child.pid not in _pids(daemon)]
    os.kill(fetcher.pid, signal.SIGKILL)
    [run] = daemon.wait_for(lambda: runs(daemon))
    assert run.key == "job"
    daemon.stop()


def test_a_child_that_left_by_force_is_not_reported_any_more(make_daemon: Make) -> None:
    """The child has released all its leases, so no other process recovers them."""
    daemon = make_daemon(processors=2, task_timeout=0.2, retry_wait=60)
    daemon.add("job", "wait")
    daemon.start()
    daemon.wait_for_log("forced exit")
    daemon.wait_for(lambda: {each.pid for each in processes(daemon)} == _pids(daemon))
    assert not runs(daemon)
    daemon.stop()


def test_one_that_was_killed_with_its_children_vanishes(make_daemon: Make) -> None:
    daemon = make_daemon()
    daemon.start()
    [node] = daemon.wait_for(lambda: known_nodes(daemon))
    family = daemon.master.children()
    for process in (*family, daemon.master):
        process.suspend()
    for process in (*family, daemon.master):
        process.kill()
    daemon.process.wait()
    daemon.wait_until_gone(family)
    [left] = known_nodes(daemon)
    assert (left.name, left.has_vanished) == (node.name, False)
    with closing(sqlite3.connect(daemon.folder / "psched.db")) as connection, connection:
        connection.execute("UPDATE psched_nodes SET seen = seen - 60000")
    assert [each.has_vanished for each in known_nodes(daemon)] == [True]


def _pids(daemon: Daemon) -> set[int]:
    return {child.pid for child in daemon.workers().values()}
