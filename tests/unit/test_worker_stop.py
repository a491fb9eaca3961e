"""A stopping process ends soon after its last run, whatever its database does. The tests set the clock."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any, cast

import pytest

from psched.execution.active_runs import ActiveRun, ActiveRuns
from psched.execution.run_watchdog import RunWatchdog
from psched.process.running_table import RunningTable


class Left(BaseException):
    """Raised instead of ending the process."""


class WatchedRun:
    """A run watchdog, a handler thread with a run, and a clock."""

    def __init__(self) -> None:
        self.time = 1000.0
        self.runs = ActiveRuns(RunningTable(1))
        self.watchdog = RunWatchdog(self.runs, 2.0, self._leave, lambda: self.time)
        lease = SimpleNamespace(cancel_requested=False, claim=0)
        task: Any = SimpleNamespace(
            row=SimpleNamespace(key="k"), deadline=math.inf, lease=lease, begun_at=self.time, timeout=None
        )
        poller: Any = SimpleNamespace(name="queue", margin=3.0, task_timeout=None)
        self.runs.begin(0, ActiveRun(task, cast("Any", poller)))

    def wait(self, seconds: float) -> bool:
        """Let `seconds` pass. Return whether the watchdog continues."""
        self.time += seconds
        return self.watchdog.tick()

    def _leave(self, why: str) -> None:
        raise Left(why)


def test_what_runs_is_waited_for_and_then_the_database_20_s() -> None:
    run = WatchedRun()
    run.watchdog.wind_up()
    assert run.wait(0)
    assert run.wait(1000)
    run.runs.end(0)
    assert run.wait(19)
    with pytest.raises(Left, match="the database did not answer for 20 s"):
        run.wait(2)


def test_a_worker_that_is_not_stopping_may_wait_for_ever() -> None:
    run = WatchedRun()
    run.runs.end(0)
    assert not run.wait(1000)
    assert not run.wait(1000)


def test_what_handlers_have_opened_is_closed_in_its_own_time() -> None:
    run = WatchedRun()
    run.runs.end(0)
    run.watchdog.wind_up()
    run.runs.close(0, lambda: [run.wait(19) for _ in range(3)])
    with pytest.raises(Left):
        [run.wait(19) for _ in range(3)]
