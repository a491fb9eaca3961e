"""A store with schedules and tasks in every state, two daemons, and `psched web`, all as processes."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psched
from faultlab.servers import Server
from psched.model import NewTask
from tests.programs import install_programs

HOSTILE = "<script>alert(1)</script>\"'\u202etxt.exe\x07\x1b[31m\n<img src=x onerror=alert(2)>/../é"
"""A hostile key. Everyone who may add schedules or tasks can choose such a key."""
_DAEMONS = 2
_PATIENCE = 60.0

_APPLICATION = """
import time
import psched

app = psched.App()


@app.task("quick")
def quick(task):
    time.sleep(0.05)


@app.task("fails")
def fails(task):
    raise ValueError(f"no such account: {task.key} <b>\\u202e")


@app.task("long", store_result=True)
def long(task):
    for number in range(1, 100_000):
        task.progress(number, 100_000, "counting")
        time.sleep(1)


@app.task("result", store_result=True)
def result(task):
    return {"rows": 3, "password": "hunter2", "html": "<b>bold</b>"}
"""


@dataclass(frozen=True)
class Site:
    """The addresses of the pages with actions, and of the read-only pages.

    `config`: the configuration of the former.
    """

    store: str
    url: str
    read_only_url: str
    config: Path
    server: Server | None


@contextmanager
def site(store: str, url: str, server: Server | None, folder: Path, daemons: int = _DAEMONS) -> Iterator[Site]:
    """Start the daemons and the pages for a store with rows in every state. Yield their addresses."""
    folder.mkdir(parents=True)
    (folder / "shop.py").write_text(_APPLICATION)
    config, read_only = folder / "psched.yml", folder / "read-only.yml"
    web = {"actions": True, "show_data": True, "timezone": "Europe/Berlin"}
    settings: dict[str, Any] = {
        "type": "redis" if store == "redis" else "rdb",
        "url": url,
        "app": "shop:app",
        "include": str(folder),
        "log": str(folder / "psched.log"),
        "processors": 3,
        "retry_wait": 5,
        "alert_interval": 5,
        "schedules": {},
        "queue": {"retention_time": 3600},
        "web": web,
    }
    config.write_text(json.dumps({"development": settings}))
    read_only.write_text(json.dumps({"development": settings | {"web": {}}}))
    install_programs(folder / "bin")
    psched_ = str(folder / "bin/psched")
    subprocess.run([psched_, "-c", str(config), "init"], check=True, stdout=subprocess.DEVNULL)
    fill(config)
    with ExitStack() as stack:
        for _ in range(daemons):
            stack.enter_context(_ended([psched_, "-c", str(config), "run"], folder))
        served = [
            stack.enter_context(_ended([psched_, "-c", str(each), "web", "--listen", "127.0.0.1:0"], folder))
            for each in (config, read_only)
        ]
        urls = [_address(process, folder) for process in served]
        if daemons:
            _wait_for_runs(config)
        yield Site(store, urls[0], urls[1], config, server)


def fill(config: Path) -> None:
    """Store schedules and tasks in every state."""
    with psched.open(config) as schedules, psched.open_queue(config) as queue:
        schedules.add("every-2-s", "quick", cron="*/2 * * * * *", owner="shop", tags=("often",), description="A pulse")
        schedules.add("failing", "fails", cron="*/10 * * * * *", max_attempts=2)
        schedules.add("long-run", "long", cron="* * * * * *")
        schedules.add("nightly", "quick", cron="30 2 * * *", timezone="Europe/Berlin", delay=60, data={"token": "x"})
        schedules.add("paused", "quick", cron="@hourly")
        schedules["paused"].pause()
        schedules.add("once", "quick", cron="@at 2031-03-01T09:00", timezone="America/New_York")
        schedules.add("nobody-runs-it", "unknown-type", cron="* * * * *")
        schedules.add(HOSTILE, HOSTILE, cron="0 0 * * *", data={HOSTILE: HOSTILE}, owner=HOSTILE)
        schedules["nightly"].modify(cron="15 3 * * *")
        for number in range(30):
            schedules.add(f"report-{number:02}", "quick", cron=f"{number} {number % 24} * * *", timezone="Asia/Tokyo")
        later = time.time() + 86400
        queue.submit_many(NewTask(f"later-{number:03}", "quick", run_at=later + number) for number in range(120))
        queue.submit_many(NewTask(f"batch-{number}", "unknown-type", {"n": number}) for number in range(5))
        for number in range(4):
            queue.submit(f"failed-{number}", "fails", {"n": number}, max_attempts=1, headers={"trace": "abc"})
        queue.submit("long-0", "long", {"of": "alice"}, user="alice", max_running=1)
        queue.submit("long-1", "long", user="alice", max_running=1)
        queue.submit("long-2", "long", user="bob", max_running=2)
        queue.submit("result", "result", {"password": "hunter2", "shown": [1, {"api_key": "x"}]})
        queue.submit("cancelled", "quick", run_at=later)
        queue["cancelled"].cancel_request()
        queue.submit(HOSTILE, HOSTILE, {HOSTILE: HOSTILE}, user=HOSTILE, headers={"h": HOSTILE})


def _wait_for_runs(config: Path) -> None:
    with psched.open_queue(config) as queue, psched.open(config) as schedules:

        def has_run() -> bool:
            statuses = {key: queue[key].metadata().status for key in ("result", "failed-3")}
            failed = next(iter(schedules.history("failing", failed=True)), None)
            return statuses == {"result": "finished", "failed-3": "failed"} and failed is not None

        wait_for(has_run)


def wait_for(condition: Callable[[], bool], within: float = _PATIENCE) -> None:
    """Wait until the condition is true. Raises TimeoutError after `within` seconds."""
    until = time.monotonic() + within
    while not condition():
        if time.monotonic() > until:
            raise TimeoutError("it never came true")
        time.sleep(0.1)


@contextmanager
def _ended(
    command: list[str], folder: Path, environment: Mapping[str, str] | None = None
) -> Iterator[subprocess.Popen[str]]:
    with (folder / "errors").open("a") as errors:
        process = subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=errors, text=True)
        try:
            yield process
        finally:
            process.send_signal(3 if "run" in command else 15)  # QUIT: running handlers are killed
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            if process.stdout is not None:
                process.stdout.close()


def _address(process: subprocess.Popen[str], folder: Path) -> str:
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        raise RuntimeError(f"psched web has ended: {(folder / 'errors').read_text()[-1000:]}")
    return f"http://{urlsplit(line.split()[-1]).netloc}"
