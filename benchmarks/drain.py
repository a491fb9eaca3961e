"""Drains a backlog with the psched that is on the import path, and prints the costs as JSON.

`compare` runs this script with each of the two versions. So the script uses only what both versions have: the public
API, and the command `psched`.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import psutil

import psched

APPLICATION = """
import os, time
import psched

app = psched.App()
done = os.open(os.environ["DRAIN_DONE"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

@app.task("returns")
def returns(task):
    os.write(done, b".")

@app.task("finishes", finish=False)
def finishes(task):
    os.write(done, b".")
    task.finish()

@app.task("waits")
def waits(task):
    time.sleep(0.02)
    os.write(done, b".")
"""
PROGRAM = "from psched.cli.main import main; main()"
PATIENCE = 300.0
_PAGE = 5000


def used(process: psutil.Process) -> float:
    """Return the seconds of processor time of a process and its descendants, including children that have ended."""
    times = process.cpu_times()
    own = times.user + times.system + times.children_user + times.children_system
    for child in process.children():
        with suppress(psutil.NoSuchProcess):  # it has ended: the next call counts its time as its parent's
            own += used(child)
    return own


def main() -> None:
    """Parse the command line, drain a backlog, and print the result as JSON."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("url")
    parser.add_argument("--type", default="returns")
    parser.add_argument("--tasks", type=int, default=60_000)
    parser.add_argument("--processors", type=int, default=2)
    parser.add_argument("--server", type=int)
    parser.add_argument("--settings", type=json.loads, default={})
    wanted = parser.parse_args()
    print(json.dumps(drain(wanted)))


def drain(wanted: argparse.Namespace) -> dict[str, float]:
    """Fill a queue, and let a daemon empty it.

    Return the seconds of processor time per 10,000 tasks, and the tasks per second.
    """
    done = wanted.folder / "done"
    (wanted.folder / "drained.py").write_text(APPLICATION)
    config = wanted.folder / "psched.yml"
    store = "redis" if wanted.url.startswith("redis") else "rdb"
    section = {"type": store, "url": wanted.url, "app": "drained:app", "include": ".", "log": "psched.log"}
    config.write_text(
        json.dumps({"development": {**section, "processors": wanted.processors, "queue": {}, **wanted.settings}})
    )
    command = [sys.executable, "-c", PROGRAM, "-c", str(config), "queue"]
    environ = {**os.environ, "DRAIN_DONE": str(done)}
    subprocess.run([*command, "init"], env=environ, check=True, stdout=subprocess.DEVNULL)
    with psched.open_queue(config) as queue:
        for start in range(0, wanted.tasks, _PAGE):
            count = min(_PAGE, wanted.tasks - start)
            queue.submit_many(psched.NewTask(f"task-{start + i:08}", wanted.type, {}) for i in range(count))
        server = psutil.Process(wanted.server) if wanted.server else None
        server_before = used(server) if server else 0.0
        daemon = subprocess.Popen([*command, "run"], env=environ, start_new_session=True)
        try:
            wait_until(lambda: done.exists() and done.stat().st_size > 0, daemon)
            begun, started = time.monotonic(), used(psutil.Process(daemon.pid))  # without the daemon's start
            wait_until(lambda: done.stat().st_size >= wanted.tasks, daemon)
            wait_until(lambda: queue.store.next_due() is None, daemon)
            seconds = time.monotonic() - begun
            own = used(psutil.Process(daemon.pid)) - started
            server_after = used(server) if server else 0.0
        finally:
            daemon.send_signal(signal.SIGTERM)
            daemon.wait(30)
    if done.stat().st_size != wanted.tasks:
        raise RuntimeError(f"{wanted.tasks} tasks were run {done.stat().st_size} times")
    per = 10_000 / wanted.tasks
    spent = server_after - server_before
    return {"psched": own * per, "server": spent * per, "both": (own + spent) * per, "tasks/s": wanted.tasks / seconds}


def wait_until(condition, daemon: subprocess.Popen[bytes]) -> None:  # type: ignore[no-untyped-def] # a script
    """Wait until `condition` returns true. Raises RuntimeError if the daemon ends, or after `PATIENCE` seconds."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        if daemon.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError(f"the daemon ended, or took longer than {PATIENCE:g} s; see psched.log")
        time.sleep(0.005)


if __name__ == "__main__":
    main()
