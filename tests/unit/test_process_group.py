"""A program ends with all that it has started: when it ends, when it is stopped, and when its worker dies."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from psched.errors import ImmediateProcessStopError
from psched.handlers.command import CommandHandler
from tests.unit.commands import in_shell, is_gone, run, shell, stop, wait_for
from tests.unit.fake_task import Ledger

_PATIENCE = 10.0


@pytest.fixture
def running(ledger: Ledger) -> Iterator[Any]:
    """A function that runs a command in a thread, and returns its handler and the thread."""
    threads = []

    def start(**data: Any) -> tuple[CommandHandler, threading.Thread]:
        handler = CommandHandler(ledger.task("command", data))
        thread = threading.Thread(target=handler.run)
        thread.start()
        threads.append(thread)
        return handler, thread

    yield start
    for thread in threads:
        thread.join(_PATIENCE)


def test_what_it_leaves_behind_ends_with_it(ledger: Ledger, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    shell(ledger, "sleep 60 & echo $! >left", cwd=str(tmp_path))
    assert is_gone(int(wait_for(tmp_path / "left")))
    assert ledger.entries == [("finished",)]
    assert "left processes in its process group" in caplog.messages[0]


def test_a_program_that_ignores_sigterm_and_writes_for_ever_is_ended(ledger: Ledger, tmp_path: Path) -> None:
    shell(ledger, "(trap '' TERM; yes) & echo $! >left", cwd=str(tmp_path))
    assert is_gone(int(wait_for(tmp_path / "left")))
    assert ledger.entries == [("finished",)]


def test_what_left_the_group_with_the_pipe_does_not_hold_the_run_up(ledger: Ledger, tmp_path: Path) -> None:
    leave = "import os, time; os.setsid(); print(os.getpid(), file=open('left', 'w'), flush=True); time.sleep(60)"
    shell(ledger, f'{sys.executable} -c "{leave}" & until test -s left; do sleep 0.01; done', cwd=str(tmp_path))
    left = int(wait_for(tmp_path / "left"))
    assert ledger.entries == [("finished",)]
    assert not is_gone(left)
    os.kill(left, signal.SIGKILL)


def test_kill_ends_the_whole_group_and_leaves_the_task_to_the_daemon(
    running: Any, ledger: Ledger, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    handler, thread = running(**in_shell("sleep 60 & echo $! $$ >pids; wait"), cwd=str(tmp_path))
    pids = [int(pid) for pid in wait_for(tmp_path / "pids").split()]
    stop(handler)
    thread.join(_PATIENCE)
    assert [is_gone(pid) for pid in pids] == [True, True]
    assert ledger.entries == []
    assert "was asked to stop: was ended by SIGTERM" in caplog.messages[-1]


def test_kill_does_not_wait_for_a_process_that_ignores_sigterm(running: Any, ledger: Ledger, tmp_path: Path) -> None:
    handler, thread = running(**in_shell("trap '' TERM; echo $$ >pid; while :; do sleep 0.1; done"), cwd=str(tmp_path))
    pid = int(wait_for(tmp_path / "pid"))
    stop(handler)
    thread.join(_PATIENCE)
    assert is_gone(pid)
    assert ledger.entries == []


def test_a_program_that_was_told_to_stop_is_not_finished_whatever_it_says(
    running: Any, ledger: Ledger, tmp_path: Path
) -> None:
    command = "trap 'exit 0' TERM; echo $$ >pid; sleep 60 & wait"
    handler, thread = running(**in_shell(command), cwd=str(tmp_path))
    wait_for(tmp_path / "pid")
    stop(handler)
    thread.join(_PATIENCE)
    assert ledger.entries == []


def test_a_run_told_to_stop_before_it_began_starts_nothing(ledger: Ledger, tmp_path: Path) -> None:
    handler = CommandHandler(ledger.task("command", {"argv": ["touch", str(tmp_path / "touched")]}))
    stop(handler)
    handler.run()
    assert not (tmp_path / "touched").exists()
    assert ledger.entries == []


def test_a_kill_after_the_end_has_no_effect(ledger: Ledger) -> None:
    handler = run(ledger, argv=["true"])
    handler.kill(ImmediateProcessStopError())
    assert ledger.entries == [("finished",)]


WORKER = """
import json, sys
from psched.handlers.command import CommandHandler
from tests.unit.fake_task import Ledger

CommandHandler(Ledger().task("command", json.loads(sys.argv[1]))).run()
"""
STUBBORN = "trap 'echo >termed' TERM; echo $$ >pids; while :; do sleep 0.1; done"


@pytest.mark.parametrize(
    ("data", "sign"),
    [
        ({"shell": True, "command": "sleep 60 & echo $! $$ >pids; wait"}, "pids"),
        ({"shell": True, "command": STUBBORN, "timeout": 2}, "termed"),
    ],
    ids=["running", "being ended"],
)
def test_a_worker_that_is_killed_takes_its_programs_along(data: dict[str, Any], sign: str, tmp_path: Path) -> None:
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}
    command = [sys.executable, "-c", WORKER, json.dumps(data)]
    with subprocess.Popen(command, cwd=tmp_path, env=environment) as worker:
        wait_for(tmp_path / sign)
        worker.kill()
    pids = [int(pid) for pid in wait_for(tmp_path / "pids").split()]
    deadline = time.monotonic() + _PATIENCE
    while not all(is_gone(pid) for pid in pids) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert all(is_gone(pid) for pid in pids)
