"""The application of the queue's tests. Its handlers write traces, like those of `app`, and run in the workers."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from datetime import date

from app import FOLDER, trace

from psched.application import App, Dispatch
from psched.application.handler_base import HandlerFactory
from psched.task import Task

app = App()


@app.task("quick")
def quick(task: Task) -> None:
    """Write `done` into the data, and end immediately."""
    trace("ran", task, fence=task.fence, data=task.data)
    task.update_data({"done": True})


@app.task("short")
def short(task: Task) -> None:
    """Run for 10 ms."""
    trace("began", task)
    time.sleep(0.01)
    trace("ended", task)


@app.task("mixed")
def mixed(task: Task) -> None:
    """End immediately.

    With `stays` in the data: run until asked to stop. With `dies`: the first attempt kills its process.
    """
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
    """Stop the worker with all its threads, like a host that freezes."""
    trace("began", task)
    os.kill(os.getpid(), signal.SIGSTOP)


@app.task("raise", max_attempts=2, retry_wait={"first": 0.01, "jitter": 0})
def raises(task: Task) -> None:
    """Fail at each attempt."""
    trace("ran", task)
    raise ValueError("as told")


@app.task("crash", max_attempts=2)
def crashes(task: Task) -> None:
    """End the worker's process."""
    trace("ran", task)
    os._exit(3)


@app.task(priority=4)
def greet(task: Task, day: date, names: list[str], *, again: bool = False) -> None:
    """Take arguments. With `again`: submit another task of this type to the same queue."""
    trace("greeted", task, day=day.strftime("%d.%m."), names=names)
    if again:
        greet.using(key=f"after {task.key}").submit(day, [*names, "again"])


@app.task("timed", timeout=0.2, max_attempts=1)
async def timed() -> None:
    """Wait until the timeout cancels this."""
    await asyncio.sleep(60)


class Guessing(Dispatch):
    """Has no list of its types: says for a single type whether it has a handler."""

    @classmethod
    def route(cls, type: str) -> HandlerFactory | None:
        """Return the handler that `app` has for this type."""
        return app.route(type)


class Lingering(Dispatch):
    """Takes 1.5 s to close."""

    @classmethod
    def close(cls) -> None:
        """Write the file `lingering`, and keep the worker from ending."""
        (FOLDER / "lingering").touch()
        time.sleep(1.5)
