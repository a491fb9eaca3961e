"""psched queue run serves the queue only; psched run serves every section."""

from __future__ import annotations

import json

import pytest

from tests.cli.commands import Commands
from tests.cli.worker import running, wait_for

APP = """
import psched
app = psched.App()
@app.task("t")
def handle(task):
    with open(task.data["file"], "a") as file:
        file.write(f"{task.key}\\n")
"""
BOTH = """
development:
  type: rdb
  url: sqlite:///../psched.db
  poll_interval: 0.1
  app: jobs:app
  include: ..
  schedules: {}
  queue: {}
"""


@pytest.fixture
def both(fresh: Commands) -> Commands:
    """A command line with a schedule and a task, both due.

    The schedule's handler writes the file `scheduled`, the task's handler `ran`.
    """
    (fresh.folder / "jobs.py").write_text(APP)
    fresh.configure(BOTH)
    fresh.ok("init")
    fresh.ok("add", "schedule", "t", "@daily", file_of(fresh, "scheduled"), "-a", "1356966000")
    fresh.ok("queue", "submit", "task", "t", file_of(fresh, "ran"))
    return fresh


def file_of(psched: Commands, name: str) -> str:
    return json.dumps({"file": str(psched.folder / name)})


def test_queue_run_serves_the_queue_only(both: Commands) -> None:
    with running(both, "queue", "run"):
        pass
    assert both.ok("queue", "show", "task", "--json").json["status"] == "finished"
    assert not (both.folder / "scheduled").exists()
    assert both.ok("show", "schedule", "--json").json["next_run_time"] == 1356966000


def test_run_serves_both_sections(both: Commands) -> None:
    with running(both, "run") as process:
        wait_for(both.folder / "scheduled", process)
    assert both.ok("queue", "show", "task", "--json").json["status"] == "finished"
    assert both.ok("show", "schedule", "--json").json["next_run_time"] > 1356966000


def test_queue_run_serves_a_configuration_without_sections(fresh: Commands) -> None:
    (fresh.folder / "jobs.py").write_text(APP)
    fresh.use("sqlite:///../psched.db", "  poll_interval: 0.1\n")
    fresh.ok("queue", "init")
    fresh.ok("queue", "submit", "task", "t", file_of(fresh, "ran"))
    with running(fresh, "queue", "run", "-r", "jobs.py", "app"):
        pass
    assert fresh.ok("queue", "show", "task", "--json").json["status"] == "finished"


FAILING = """
import pathlib
import psched
app = psched.App()
@app.task("t")
def handle(task):
    file = pathlib.Path(task.data["file"])
    if file.exists():
        file.with_name("mended").touch()
    else:
        file.touch()
        raise ValueError("not yet")
"""


def test_what_has_failed_for_good_is_listed_with_its_error_and_may_be_tried_again(fresh: Commands) -> None:
    (fresh.folder / "jobs.py").write_text(FAILING)
    fresh.use("sqlite:///../psched.db", "  poll_interval: 0.1\n  app: jobs:app\n  include: ..\n")
    fresh.ok("queue", "init")
    fresh.ok("queue", "submit", "task", "t", file_of(fresh, "ran"), "--max-attempts", "1")
    with running(fresh, "queue", "run"):
        pass
    (failed,) = fresh.ok("queue", "list", "--status", "failed", "--json").json
    assert (failed["attempts"], failed["max_attempts"]) == (1, 1)
    assert "ValueError: not yet" in failed["last_error"]
    assert "not yet" in fresh.ok("queue", "show", "task").out
    fresh.ok("queue", "retry", "task")
    with running(fresh, "queue", "run") as process:
        wait_for(fresh.folder / "mended", process)
    assert fresh.ok("queue", "show", "task", "--json").json["status"] == "finished"


PATIENT = """
import pathlib
import time
import psched
app = psched.App()
@app.task("t")
def handle(task):
    file = pathlib.Path(task.data["file"])
    file.touch()
    while task.stop_reason is None:
        time.sleep(0.01)
    file.with_name("told").write_text(type(task.stop_reason).__name__)
    raise task.stop_reason
"""


def test_the_handler_of_a_running_task_is_told_that_it_is_cancelled(fresh: Commands) -> None:
    (fresh.folder / "jobs.py").write_text(PATIENT)
    more = "  poll_interval: 0.1\n  task_heartbeat_interval: 0.2\n  app: jobs:app\n  include: ..\n"
    fresh.use("sqlite:///../psched.db", more)
    fresh.ok("queue", "init")
    fresh.ok("queue", "submit", "task", "t", file_of(fresh, "ran"))
    with running(fresh, "queue", "run") as process:
        fresh.ok("queue", "cancel-request", "task")
        wait_for(fresh.folder / "told", process)
    assert (fresh.folder / "told").read_text() == "CancelRequestedError"
    assert fresh.ok("queue", "show", "task", "--json").json["status"] == "cancelled"
