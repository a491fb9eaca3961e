"""A master distinguishes programs that a handler has left running on purpose from those of a dead child."""

from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import psutil
import pytest

from faultlab.prerequisites import not_run
from psched.supervisor.fork_and_reap import OrphanReaper
from tests.daemon.harness import wait_for

SLEEP = [sys.executable, "-c", "import time; time.sleep(60)"]


@contextmanager
def program() -> Iterator[subprocess.Popen[bytes]]:
    """Start a program as a child that the master has not forked, like an adopted orphan. Kill it at the end."""
    with subprocess.Popen(SLEEP) as program:
        try:
            yield program
        finally:
            program.kill()


@pytest.fixture
def orphans() -> OrphanReaper:
    if sys.platform != "linux":
        not_run("only Linux tells a process of its orphans")
    return OrphanReaper()


def test_a_program_set_free_just_after_a_look_is_noticed_within_a_second(orphans: OrphanReaper) -> None:
    orphans.look((), 10.0)
    with program() as free:
        orphans.look_soon(10.1)
        orphans.look((), 10.1)
        assert orphans.deadline == 11.1, "the master is to wake for it"
        orphans.look((), orphans.deadline)
        orphans.kill_new(())
        assert free.poll() is None
    assert orphans.deadline == math.inf, "and then no more"


def test_an_orphan_that_appears_with_a_death_is_killed(orphans: OrphanReaper) -> None:
    orphans.look((), 10.0)
    with program() as left:
        orphans.kill_new(())
        assert left.wait(10) < 0


def test_an_orphan_that_ended_with_its_worker_is_reaped_silently(
    orphans: OrphanReaper, caplog: pytest.LogCaptureFixture
) -> None:
    with program() as left:
        left.kill()
        wait_for(lambda: psutil.Process(left.pid).status() == psutil.STATUS_ZOMBIE)
        orphans.kill_new(())
        assert not psutil.pid_exists(left.pid)
    assert not caplog.records


def test_the_master_is_woken_for_no_look_that_is_not_taken(orphans: OrphanReaper) -> None:
    orphans.look((), 10.0)
    orphans.look_soon(10.1)
    orphans.look((), 11.05)
    assert orphans.deadline >= 12.05
    orphans.look((), orphans.deadline)
    assert orphans.deadline == math.inf
