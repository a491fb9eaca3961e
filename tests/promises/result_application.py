"""An application whose workers are killed after a handler has returned and before the run is settled."""

from __future__ import annotations

import json
import os
import signal
import threading
from pathlib import Path
from typing import Any

import psched
from psched.telemetry import Event, attach

FILE = Path(os.environ["PSCHED_TEST_RECORDS"]).with_name("results")
DELAYS = (0.0, 0.0, 0.001, 0.004, 0.02)
"""Seconds from the handler's return to the kill: before, during or after the settling."""

app = psched.App()


def recorded(key: str) -> list[int]:
    """Return the fences of the runs of a task that have begun so far."""
    lines = FILE.read_text().splitlines() if FILE.exists() else []
    return [line["fence"] for line in map(json.loads, lines) if line["key"] == key]


@app.task("measure")
def measure(task: psched.Task, kills: int) -> dict[str, Any]:
    """Return a value that differs for each run of the task.

    The first `kills` runs are killed soon after they return.
    """
    fences = [*recorded(task.key), task.fence]
    line = json.dumps({"key": task.key, "fence": task.fence}) + "\n"
    descriptor = os.open(FILE, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o640)
    os.write(descriptor, line.encode())
    os.close(descriptor)
    task.progress(len(fences), kills + 1, f"fence {task.fence}")
    return {"fence": task.fence, "run": len(fences), "text": f"{task.fence} " * 1000}


def kill_after_return(event: Event, fields: dict[str, Any]) -> None:
    task = fields["task"]
    run = len(recorded(task.key))
    if run > task.data["kills"]:
        return
    delay = DELAYS[(run + len(task.key)) % len(DELAYS)]
    if delay == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    threading.Timer(delay, os.kill, (os.getpid(), signal.SIGKILL)).start()


attach(kill_after_return, "run_end")
