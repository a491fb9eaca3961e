"""Runs of function handlers are finished in batches: soon, even while a slow run follows, and also after a kill -9."""

from __future__ import annotations

import time
from collections.abc import Callable

from psched.model import NewTask
from psched.queue.queue import Queue
from tests.daemon.harness import Daemon
from tests.daemon.test_prefetch import served, statuses

Make = Callable[..., Daemon]


def warmed_up(daemon: Daemon, queue: Queue) -> None:
    """Run quick tasks, so that the worker then acquires many tasks of this type at a time."""
    queue.submit_many(NewTask(f"warm{n}", "mixed") for n in range(60))
    daemon.wait_for(lambda: statuses(queue, "mixed") == {"finished"})


def test_quick_runs_are_finished_while_a_slow_one_goes_on(make_daemon: Make) -> None:
    with served(make_daemon) as (daemon, queue):
        warmed_up(daemon, queue)
        quick = [NewTask(f"a{n}", "mixed") for n in range(5)]
        queue.submit_many([*quick, NewTask("b", "mixed", {"stays": True})])
        daemon.wait_for_trace("ran", "b")
        began = time.monotonic()
        daemon.wait_for(lambda: all(queue[task.key].metadata().status == "finished" for task in quick))
        assert time.monotonic() - began < 4, "about a second, on a machine that is not overloaded"
        assert queue["b"].metadata().status == "running"


def test_tasks_run_just_before_a_kill_run_again_and_all_are_finished(make_daemon: Make) -> None:
    with served(make_daemon) as (daemon, queue):
        warmed_up(daemon, queue)
        for n in range(10):  # a moment that the machine stands still may let them be finished before
            keys = [f"{n}.a", f"{n}.b", f"{n}.c"]
            queue.submit_many([*(NewTask(key, "mixed") for key in keys), NewTask(f"{n}.d", "mixed", {"dies": True})])
            daemon.wait_for(lambda: statuses(queue, "mixed") == {"finished"})
            if any(len(daemon.traces("ran", key)) == 2 for key in keys):
                break
        else:
            raise AssertionError("nothing was left to be run again")
        assert len(daemon.traces("ran", f"{n}.d")) == 2
        assert all(row.attempts == 1 for row in queue.list(type="mixed") if not row.key.endswith("d"))
