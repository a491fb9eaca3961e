"""The master reads, after a child's death, what the child wrote into the running table, whatever bytes are there."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest

from psched.child.handler_child import HandlerChild
from psched.execution.active_runs import ActiveRun, ActiveRuns
from psched.process.running_table import RunningTable, RunRecord

LONGEST = "schedules:" + "𝄞" * 255


@pytest.fixture
def running_table() -> Iterator[RunningTable]:
    running_table = RunningTable(3)
    yield running_table
    running_table.close()


def test_an_empty_board_names_nothing(running_table: RunningTable) -> None:
    assert running_table.names() == ()


def test_names_come_by_cell_and_go(running_table: RunningTable) -> None:
    running_table.running(2, LONGEST)
    running_table.running(0, "schedules:a")
    assert running_table.names() == ("schedules:a", LONGEST)
    running_table.running(2, "b")
    running_table.idle(0)
    assert running_table.names() == ("b",)


@pytest.mark.parametrize("claim", [0, 1, 2**48, 2**62, 2**64 - 1])
def test_the_number_of_the_acquire_comes_with_the_name(running_table: RunningTable, claim: int) -> None:
    running_table.running(1, "schedules:a", claim)
    assert running_table.runs() == (("schedules:a", claim),)
    running_table._memory[2048] ^= 1  # the lowest bit of the number
    assert running_table.runs() == ()


def test_the_tasks_of_a_killed_process_are_known(running_table: RunningTable) -> None:
    pid = os.fork()
    if pid == 0:
        running_table.running(1, "schedules:s1")
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(pid, 0)
    assert running_table.names() == ("schedules:s1",)


def test_a_word_too_long_is_cut(running_table: RunningTable) -> None:
    running_table.running(0, "x" * 10_000)
    running_table.running(1, "y")
    (long, short) = running_table.names()
    assert set(long) == {"x"}
    assert short == "y"


def test_a_torn_word_is_no_word(running_table: RunningTable) -> None:
    """A write may end halfway. Then the table gives the old name, the new one, or none, but never a mixture."""
    fresh = RunningTable(1)
    fresh.running(0, LONGEST)
    new = fresh._memory[:2048]
    fresh.close()
    for length in [*range(24), *range(24, 2048, 61)]:
        running_table.running(0, "schedules:before")
        running_table._memory[:length] = new[:length]
        assert running_table.names() in {(), ("schedules:before",), (LONGEST,)}


def test_rubbish_is_read_without_an_error(running_table: RunningTable) -> None:
    rubbish = random.Random(1)
    for _ in range(300):
        running_table._memory[:64] = rubbish.randbytes(64)
        running_table.names()


def test_a_frozen_table_no_longer_changes() -> None:
    running_table = RunningTable(2)
    running_table.running(0, "queue:begun")
    running_table.freeze({0: RunRecord("queue:begun"), 1: RunRecord("queue:done")})
    running_table.idle(0)
    running_table.running(1, "queue:innocent")
    assert running_table.names() == ("queue:begun", "queue:done")


def test_report_suspects_names_the_running_tasks_and_the_last_unsettled_one() -> None:
    running_table = RunningTable(2)
    runs = ActiveRuns(running_table)
    task: Any = SimpleNamespace(row=SimpleNamespace(key="at work"), concluded=False, lease=SimpleNamespace(claim=1))
    runs.begin(0, ActiveRun(task, cast("Any", SimpleNamespace(name="queue"))))
    done = [
        SimpleNamespace(row=SimpleNamespace(key=key), concluded=True, lease=SimpleNamespace(claim=number))
        for number, key in enumerate(("done", "done last"), 2)
    ]
    held = [done[0], task, done[1]]
    open_section = SimpleNamespace(name="queue", source=SimpleNamespace(held=held))
    child: Any = SimpleNamespace(
        _sections=[open_section], _runs=runs, _spec=SimpleNamespace(running_table=running_table)
    )
    HandlerChild.report_suspects(child)
    running_table.idle(0)
    assert running_table.runs() == (("queue:at work", 1), ("queue:done last", 3))
