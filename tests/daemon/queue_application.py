"""The application of the queue's tests: its handlers leave traces beside those of `app`. Runs in children."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from datetime import date

from app import FOLDER, trace

from psched.application import App, Dispatch
from psched.application.handler import HandlerFactory
from psched.task import Task

app = App()


@app.task("quick")
def quick(task: Task) -> None:
    """Done at once; says what it has done."""
    trace("ran", task, fence=task.fence, data=task.data)
    task.update_data({"done": True})


@app.task("short")
def short(task: Task) -> None:
    """Take a moment."""
    trace("began", task)
    time.sleep(0.01)
    trace("ended", task)


@app.task("mixed")
def mixed(task: Task) -> None:
    """Done at once, unless told to stay until stopped, or to die with its process the first time."""
    trace("ran", task)
    if task.data.get("stays"):
        while task.stop_reason is None:
            time.sleep(0.01)
    if task.data.get("dies") and task.attempts == 1:
        os.kill(os.getpid(), signal.SIGKILL)


@app.task("heed", finish=False)
def heed(task: Task) -> None:
    """Run until asked to stop."""
    task.update_data({"progress": 40})
    trace("began", task)
    while task.stop_reason is None:
        time.sleep(0.01)
    trace("stopped", task, reason=type(task.stop_reason).__name__)


@app.task("stubborn", finish=False)
def stubborn(task: Task) -> None:
    """Never stop."""
    trace("began", task)
    while True:
        time.sleep(0.01)


@app.task("freeze")
def freezes(task: Task) -> None:
    """Stop the worker with all its threads, as a host does that loses its power."""
    trace("began", task)
    os.kill(os.getpid(), signal.SIGSTOP)


@app.task("raise", max_attempts=2, retry_wait={"first": 0.01, "jitter": 0})
def raises(task: Task) -> None:
    """Fail each time."""
    trace("ran", task)
    raise ValueError("as told")


@app.task("crash", max_attempts=2)
def crashes(task: Task) -> None:
    """End the worker."""
    trace("ran", task)
    os._exit(3)


@app.task(priority=4)
def greet(task: Task, day: date, names: list[str], *, again: bool = False) -> None:
    """Take arguments, and submit another task of its own, to the queue that this worker serves."""
    trace("greeted", task, day=day.strftime("%d.%m."), names=names)
    if again:
        greet.using(key=f"after {task.key}").submit(day, [*names, "again"])


@app.task("timed", timeout=0.2, max_attempts=1)
async def timed() -> None:
    """Wait to be cancelled."""
    await asyncio.sleep(60)


class Guessing(Dispatch):
    """Says of each type only when asked whether it has a handler."""

    @classmethod
    def route(cls, type: str) -> HandlerFactory | None:
        """Return a handler for what `app` can run."""
        return app.route(type)


class Lingering(Dispatch):
    """Takes a moment to close."""

    @classmethod
    def close(cls) -> None:
        """Say that the worker is about to leave, and keep it."""
        (FOLDER / "lingering").touch()
        time.sleep(1.5)
