"""The handlers that the benchmark runs, in children of `psched run`."""

from __future__ import annotations

import os
import time
from typing import Any

from benchmarks import plan
from benchmarks.shared_counter import ACQUIRES, STATEMENTS, tally_of_environment
from psched.acquisition.task_source import TaskSource
from psched.application import App
from psched.model import Claim
from psched.task import Task

app = App()
tally = tally_of_environment()


@app.task("returns")
def returns(task: Task) -> None:
    """Do nothing. When the function returns, psched finishes the task."""
    tally.count()


@app.task("finishes", finish=False)
def finishes(task: Task) -> None:
    """Do nothing but finish the task. `task.finish()` returns when the end is durable."""
    tally.count()
    task.finish()


@app.task("waits")
def waits(task: Task) -> None:
    """Sleep for 20 ms, which takes no processor time."""
    time.sleep(0.02)
    tally.count()


@app.task("picked")
def picked(task: Task) -> None:
    """Record how many seconds ago the task was submitted."""
    tally.sample(time.monotonic() - task.data["sent"])
    tally.count()


def load(task: Task) -> None:
    """Sleep for the seconds in the task's data, and raise if the data says so. Record how long the task waited."""
    plan.handle(tally, task.data["sent"] if task.attempts == 1 else None, task.data["seconds"])
    if task.attempts <= task.data["raises"]:
        raise RuntimeError("as planned")


for name in plan.TYPE_NAMES:
    app.task(name)(load)


@app.task("late")
def late(task: Task) -> None:
    """Record how many seconds late the run is. The database and the handler are on one host, so they have one clock."""
    tally.sample(time.time() - task.data.get("due", task.scheduled_time))
    tally.count()


def _time_acquires() -> None:
    """Record the seconds of each acquire that returns rows, in the process that acquires."""
    fetch_multi = TaskSource.fetch_multi

    def timed(self: TaskSource, *arguments: Any, **options: Any) -> tuple[list[Claim], float]:
        begun = time.monotonic()
        claims, deadline = fetch_multi(self, *arguments, **options)
        if claims:
            tally.sample(time.monotonic() - begun)
        return claims, deadline

    TaskSource.fetch_multi = timed  # type: ignore[method-assign]


if os.environ.get(ACQUIRES):
    _time_acquires()


def _count_statements() -> None:
    """Count the statements that this process sends to SQLite, because SQLite has no server that counts them."""
    import sqlite3  # noqa: PLC0415 – else it is a megabyte of each worker whose memory is measured, on other stores

    connect = sqlite3.connect

    def counted(*arguments: Any, **options: Any) -> sqlite3.Connection:
        connection: sqlite3.Connection = connect(*arguments, **options)
        connection.set_trace_callback(lambda _: tally.count())
        return connection

    sqlite3.connect = counted  # type: ignore[assignment]


if os.environ.get(STATEMENTS):
    _count_statements()
