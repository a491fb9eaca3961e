"""A misbehaving handler harms no other task."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable
from typing import Any

import psutil
import pytest

from tests.daemon.harness import Daemon

Make = Callable[..., Daemon]


FAILS_ONCE = """
from psched.execution.handler_loop import HandlerLoop
wait_for_tasks = HandlerLoop._wait
def fail_once(loop):
    try:
        (FOLDER / "fail").unlink()
    except FileNotFoundError:
        return wait_for_tasks(loop)
    raise OSError(24, "Too many open files")
HandlerLoop._wait = fail_once
"""
"""Added to an application: when the file `fail` exists, the next idle handler thread fails."""


def serves_others(daemon: Daemon) -> None:
    """Check that the daemon runs a task that is added later, and that it stops normally."""
    daemon.add("other", "quick")
    daemon.wait_for_trace("ran", "other")
    daemon.stop()


@pytest.mark.parametrize(
    ("handler", "expected"),
    [
        ("raise", "ValueError: as told"),
        ("exit", "SystemExit: 3"),
        ("foreign", "PreemptedError: 'other': the lease"),
        ("foreign class", "PreemptedError: 'other': the lease"),
        ("unsettled", "was not settled by its handler"),
        ("os_exit", "ended with exit code 0 while running schedules:s1"),
        ("segfault", "was killed by SIGSEGV while running schedules:s1"),
        ("close", "a handler has closed the pipes to the master"),
        ("reuse", "a handler has closed the pipes to the master"),
        ("shut", "ended with exit code 71 while running schedules:s1"),
    ],
)
def test_a_handler_that_misbehaves_harms_no_other_task(daemon: Daemon, handler: str, expected: str) -> None:
    daemon.add("s1", handler)
    daemon.wait_for_log(expected)
    serves_others(daemon)


def test_files_a_handler_has_opened_in_place_of_our_pipes_are_not_written_to(daemon: Daemon) -> None:
    daemon.add("s1", "reuse")
    daemon.wait_for_log("has closed the pipes")
    daemon.wait_for_log("replacing it")
    assert not [file for file in daemon.folder.glob("reused.*") if file.stat().st_size]
    serves_others(daemon)


def test_a_task_that_kills_every_worker_backs_off(daemon: Daemon) -> None:
    daemon.configure(retry_wait=60)
    daemon.signal(signal.SIGUSR1)
    daemon.wait_for_log("reloading each worker")
    daemon.add("s1", "os_exit")
    daemon.add("s2", "quick", cron="* * * * * *")
    daemon.wait_for_trace("ran", "s1", count=3)
    first, second, third = (trace["at"] for trace in daemon.traces("ran", "s1")[:3])
    assert second - first >= 0.9
    assert third - second >= 1.8
    assert [trace for trace in daemon.traces("ran", "s2") if second < trace["at"] < third]
    daemon.stop()


def test_tasks_that_kill_every_worker_delay_the_others_by_no_pause_of_the_slot(make_daemon: Make) -> None:
    daemon = make_daemon(child_fork_frequency_limit=3600).start()
    for number in range(4):
        daemon.add(f"s{number}", "segfault")
    for number in range(4):
        daemon.wait_for_trace("ran", f"s{number}")
    serves_others(daemon)


def test_a_handler_that_comes_back_as_two_processes_is_settled_by_one(daemon: Daemon) -> None:
    daemon.add("s1", "fork")
    program = psutil.Process(daemon.wait_for_trace("forked")["program"])
    daemon.wait_for_log("key=s1 type=fork finished")
    daemon.wait_until_gone([program])
    assert daemon.log.count("key=s1 type=fork finished") == 1
    assert "may settle it; this is" in daemon.log, "the other one did not even try the connection it had inherited"
    serves_others(daemon)


def test_a_process_that_a_handler_forked_answers_no_signal_meant_for_us(daemon: Daemon) -> None:
    daemon.add("s1", "stay")
    trace = daemon.wait_for_trace("forked")
    program = psutil.Process(trace["program"])
    os.kill(trace["program"], signal.SIGTERM)
    daemon.wait_until_gone([program])
    daemon.add("s2", "quick")
    assert daemon.wait_for_trace("ran", "s2")["pid"] == trace["pid"], "its parent did not stop"
    daemon.stop()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGQUIT])
def test_a_handler_that_takes_the_signals_for_itself_is_stopped_all_the_same(daemon: Daemon, number: int) -> None:
    daemon.add("s1", "steal")
    daemon.wait_for_trace("began")
    daemon.signal(number)
    if number == signal.SIGTERM:
        daemon.wait_for_log("stopping")
        daemon.signal(signal.SIGQUIT)
    assert daemon.end() == 0
    assert "did not exit in time" not in daemon.log


def test_a_failure_is_logged_with_its_number_and_the_wait_before_the_next_attempt(
    make_daemon: Callable[..., Daemon],
) -> None:
    daemon = make_daemon(retry_wait={"first": 1, "factor": 2, "limit": 300, "jitter": 0.2}).start()
    daemon.add("s1", "raise")
    daemon.wait_for_trace("ran", count=3)
    told = r"key=s1 type=raise failed after \d+\.\d{3} s; next attempt in ([\d.]+) s \(attempt (\d)\)"
    found = [(float(wait), number) for wait, number in re.findall(told, daemon.log)][:2]
    assert [number for _, number in found] == ["2", "3"]
    assert 0.8 <= found[0][0] <= 1
    assert 1.6 <= found[1][0] <= 2
    began = [trace["at"] for trace in daemon.traces("ran")]
    for wait, first, second in zip((wait for wait, _ in found), began, began[1:], strict=False):
        assert second - first > wait - 0.06, "it is the true one, rounded"
    assert "key=s1 type=raise failed: ValueError('as told')" in daemon.log
    daemon.stop()


def test_a_worker_with_a_failed_handler_thread_is_replaced_when_its_runs_have_ended(make_daemon: Make) -> None:
    """Otherwise one thread less would run tasks until the next start of the daemon."""
    daemon = make_daemon(processors=2, processor_type="thread", task_prefetch=0)
    daemon.write_app((daemon.folder / "app.py").read_text() + FAILS_ONCE)
    daemon.start()
    daemon.add("s1", "wait")
    daemon.wait_for_trace("began", "s1")
    (daemon.folder / "fail").touch()
    daemon.wait_for(lambda: not (daemon.folder / "fail").exists())
    daemon.go("s1")
    daemon.wait_for_trace("ended", "s1")
    for key in ("s2", "s3"):
        daemon.add(key, "wait")
    for key in ("s2", "s3"):
        daemon.wait_for_trace("began", key)
    assert "Too many open files" in daemon.log
    assert len(daemon.traces("began", "s1")) == 1
    for key in ("s2", "s3"):
        daemon.go(key)
        daemon.wait_for_trace("ended", key)
    daemon.stop()


@pytest.mark.parametrize("config", [{}, {"processors": 2}, {"processors": 2, "processor_type": "thread"}], ids=str)
def test_a_worker_without_free_descriptors_is_replaced(make_daemon: Make, config: dict[str, Any]) -> None:
    """Otherwise it would always be free, and every task that opens a file would fail in it."""
    daemon = make_daemon(**config).start()
    daemon.add("s1", "leak")
    worker = psutil.Process(daemon.wait_for_trace("ran", "s1")["pid"])
    daemon.wait_until_gone([worker])
    daemon.wait_for_log("key=s1 type=leak finished")
    assert daemon.log.count("Too many open files (the limit is 100)") == 1
    assert "ended with exit code" not in daemon.log
    assert len(daemon.traces("ran", "s1")) == 1
    serves_others(daemon)
