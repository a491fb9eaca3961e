"""The application of the queue's tests: its handlers leave traces beside those of `app`. Runs in children."""

from __future__ import annotations

import os
import signal
import time

from app import trace

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


class Guessing(Dispatch):
    """Says of each type only when asked whether it has a handler."""

    @classmethod
    def route(cls, type: str) -> HandlerFactory | None:
        """Return a handler for what `app` can run."""
        return app.route(type)
