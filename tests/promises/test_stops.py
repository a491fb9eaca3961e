"""What becomes of running tasks when their master is asked to stop while another master runs."""

from __future__ import annotations

import signal

import pytest

from tests.promises.conftest import SERVERS_AND_STORES, MakeCluster


@pytest.mark.in_suite_on("mariadb-rdb_compat")
@pytest.mark.parametrize("cluster_on", SERVERS_AND_STORES, indirect=True)
def test_term_lets_a_run_finish_and_quit_gives_it_to_the_next_poll_of_another(cluster_on: MakeCluster) -> None:
    """No task runs twice at a time: a task is released only when its run, and the run's programs, have ended."""
    cluster = cluster_on(alive_time=60)
    terminated = cluster.master("term").start()
    finishing = cluster.add("finishing", "wait")
    cluster.wait_for_run("finishing")
    quitting = cluster.master("quit").start()
    released = cluster.add("released", "program")
    first = cluster.wait_for_run("released")
    cluster.wait_for(lambda: cluster.lines("sign", "released") or None)
    cluster.master("other").start()
    terminated.signal(signal.SIGTERM)
    terminated.wait_for_log("stopping when the running tasks are done")
    quitting.signal(signal.SIGQUIT)
    cluster.wait_for_run("released", 2)
    cluster.go("released")
    cluster.wait_for_end("released", 2)
    assert terminated.process.poll() is None, "it has a task to finish"
    cluster.go("finishing")
    cluster.wait_for_end("finishing")
    assert (terminated.end(), quitting.end()) == (0, 0)
    cluster.stop()
    cluster.deaths[first.pid] = max(line["at"] for line in cluster.lines("sign", "released"))
    assert cluster.judge({"finishing": [finishing], "released": [released]}) == []
    assert len(cluster.runs("finishing")) == 1
