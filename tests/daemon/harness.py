"""A real master with a folder, configuration and application of its own, which a test watches and controls."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

import psutil
import yaml

from faultlab import forkserver_client
from psched.config import Settings, load
from psched.schedules.collection import ScheduleCollection, open_schedules
from psched.store import holder_name
from tests.daemon.prepared_database import DECIDING, empty_database

HERE = Path(__file__).parent
PATIENCE = 25.0
"""Seconds after which a wait for a condition fails. They must be less than the lease of a prefetched row, 30 s."""

_TELLS_CHILDREN = Path(f"/proc/self/task/{os.getpid()}/children").exists()
"""Whether the kernel has /proc/PID/task/TID/children, which lists a process's children."""
_LONGEST_PAUSE = 0.3
"""The longest pause between two polls of a condition that is slow to compute, in seconds."""

_parsed: Callable[[str], dict[str, Any]] = lru_cache(50_000)(json.loads)
"""Parses a line of a file that is polled while it grows. Callers must not change the returned value."""

T = TypeVar("T")

_CONFIG: dict[str, Any] = {
    "type": "rdb",
    "url": "sqlite:///psched.db",
    "app": ["app:app", "app:Classes"],
    "include": ".",
    "log": "psched.log",
    "poll_interval": 0.05,
    "retry_wait": 0.2,
    "child_kill_interval": 0.3,
    "child_heartbeat_interval": 0.1,
    "child_heartbeat_limit": 10,
    "child_fork_frequency_limit": 0,
}


def wait_for(condition: Callable[[], T | None], explain: Callable[[], str] = str, within: float = PATIENCE) -> T:
    """Return the first true value of `condition`. Fails with `explain()` if there is none within `within` seconds.

    A slow condition is polled less often, to leave the processor to the tested processes. So is a condition that has
    been polled for a while. Some conditions run a program, such as systemctl.
    """
    deadline = time.monotonic() + within
    pause = 0.01
    while True:
        begun = time.monotonic()
        found = condition()
        ended = time.monotonic()
        if found:
            return found
        if ended > deadline:
            raise AssertionError(f"it never came true\n{explain()}")
        time.sleep(max(pause, min(4 * (ended - begun), _LONGEST_PAUSE)))
        pause = min(1.2 * pause, 0.05)


class Daemon:
    """A folder with `psched.yml` and `app.py` (a copy of `application.py`), and the master that uses them.

    The end of the context kills what is left of the master and its children.
    """

    def __init__(self, folder: Path, **config: Any) -> None:
        """Write the files and create the tables, but start nothing.

        `config`: keys that replace the defaults; None removes a key.
        """
        self.folder = folder
        self.environ: dict[str, str] = {}
        self._process: forkserver_client.Process | None = None
        self._settings = dict(_CONFIG)
        shutil.copy(HERE / "application.py", folder / "app.py")
        self.configure(**config)
        if DECIDING.isdisjoint(config):
            (folder / "psched.db").write_bytes(empty_database())
        else:
            with self.schedules() as schedules:
                schedules.store.create_tables()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        if error is not None:
            print(self.explain())
        if self._process is not None and self._process.poll() is None:
            family = children_of(self.master, recursive=True)
            self._process.kill()
            for process in family:
                _kill(process)
            self._process.wait()
        if self._process is not None and self._process.stderr is not None:
            self._process.stderr.close()

    def configure(self, **config: Any) -> None:
        """Change keys of the configuration file. None removes a key."""
        merged = {**self._settings, **config}
        self._settings = {key: value for key, value in merged.items() if value is not None}
        self.config.write_text(yaml.safe_dump({"development": self._settings}))

    @property
    def config(self) -> Path:
        """The path of the configuration file."""
        return self.folder / "psched.yml"

    def pause(self, seconds: float) -> None:
        """Wait, so that the test can then check that something has not happened."""
        time.sleep(seconds)

    def settings(self) -> Settings:
        """Return the present configuration."""
        return load(self.config)

    def edit_app(self, old: str, new: str) -> None:
        """Change the application's source."""
        source = (self.folder / "app.py").read_text()
        assert old in source
        self.write_app(source.replace(old, new))

    def write_app(self, source: str) -> None:
        """Replace the application's source, with a time that is 2 s later.

        Python takes a compiled file as current if its source's size and time (in whole seconds) have not changed.
        """
        app = self.folder / "app.py"
        later = app.stat().st_mtime + 2
        app.write_text(source)
        os.utime(app, (later, later))

    def schedules(self) -> ScheduleCollection:
        """Open the schedules for use in the test process."""
        section = self.settings().schedules
        assert section is not None
        return open_schedules(section, holder_name("test"))

    def add(self, key: str, type_: str, cron: str = "* * * * *", now: bool = True) -> None:
        """Add a schedule. With `now` its first run is due now, before its first occurrence."""
        with self.schedules() as schedules:
            moment = int(schedules.store.now())
            run_at = moment if now else None
            schedules.add(key, type_, cron=cron, next_time=moment, next_run_time=run_at, data={})

    def start(self, wait: bool = True, options: Mapping[str, Any] | None = None, **popen: Any) -> Self:
        """Start the master. With `wait`, wait until its children are up. `options`: see `worker.Surroundings`."""
        self.forget_ready()
        command = [str(HERE / "master.py"), str(self.config), json.dumps(options or {})]
        environ = {**os.environ, "PYTHONPATH": str(HERE.parents[1]), **self.environ}
        popen = {"stderr": subprocess.PIPE, **popen}
        self._process = forkserver_client.start(command, self.folder, environ, **popen)
        if wait:
            self.wait_until_ready()
        return self

    def wait_until_ready(self) -> int:
        """Wait until a master's children are up, and return the master's pid."""
        ready = self.folder / "ready"
        return self.wait_for(lambda: int(ready.read_text() or 0) if ready.exists() else None)

    def forget_ready(self) -> None:
        """Forget the present master, so that `wait_until_ready` waits for the next one."""
        (self.folder / "ready").unlink(missing_ok=True)

    @property
    def process(self) -> forkserver_client.Process:
        """The master, as the process that the test started."""
        assert self._process is not None, "not started"
        return self._process

    @property
    def master(self) -> psutil.Process:
        """The master, as psutil sees it."""
        return psutil.Process(self.process.pid)

    def workers(self, master: psutil.Process | None = None) -> dict[int, psutil.Process]:
        """Return the living workers by slot."""
        found = {}
        for child in children_of(self.master if master is None else master):
            words = _title(child).split()
            if words[:2] == ["psched:", "worker"]:
                found[int(words[2])] = child
        return found

    def fetchers(self, master: psutil.Process | None = None) -> list[psutil.Process]:
        """Return the living fetching child, if there is one."""
        children = children_of(self.master if master is None else master)
        return [child for child in children if _title(child).startswith("psched: fetcher ")]

    def worker(self, slot: int = 1) -> psutil.Process:
        """Wait until the worker in a slot is up, and return it."""
        return self.wait_for(lambda: (found := self.workers().get(slot)) and (found if _is_up(found) else None))

    def wait_for_workers(self, count: int) -> None:
        """Wait until the slots 1 to `count` have workers, and no other slot has one."""
        wanted = set(range(1, count + 1))
        self.wait_for(lambda: self.workers().keys() == wanted)

    def wait_for_successor(self, slot: int, old: int) -> psutil.Process:
        """Wait until a slot has another worker than the one with pid `old`. Return the new worker."""
        return self.wait_for(lambda: (found := self.workers().get(slot)) and (found if found.pid != old else None))

    def titles(self) -> list[str]:
        """Return the process titles of master and children."""
        return [_title(process) for process in [self.master, *children_of(self.master)]]

    def signal(self, number: int) -> None:
        """Send a signal to the master."""
        self.process.send_signal(number)

    def traces(self, event: str | None = None, key: str | None = None) -> list[dict[str, Any]]:
        """Return the traces that handlers wrote, in order. `event`, `key`: only traces of this event or key."""
        file = self.folder / "traces"
        lines = read_lines(file)
        return [line for line in lines if event in (None, line["event"]) and key in (None, line["key"])]

    def wait_for_trace(
        self, event: str, key: str | None = None, count: int = 1, within: float = PATIENCE
    ) -> dict[str, Any]:
        """Wait for the `count`-th trace of this event (and key), and return it. `within`: seconds."""
        return self.wait_for(lambda: dict(enumerate(self.traces(event, key))).get(count - 1), within)

    def go(self, key: str) -> None:
        """Let a handler of type `wait` end. `key`: the schedule's."""
        (self.folder / f"{key}.go").touch()

    @property
    def log(self) -> str:
        """The text of the log file; empty if there is none."""
        file = self.folder / "psched.log"
        return file.read_text() if file.exists() else ""

    def wait_for_log(self, text: str, count: int = 1) -> None:
        """Wait until the log contains `text` at least `count` times."""
        self.wait_for(lambda: self.log.count(text) >= count)

    def wait_for(self, condition: Callable[[], T | None], within: float = PATIENCE) -> T:
        """Wait until a condition is true. If it never is, the failure shows the log."""
        return wait_for(condition, self.explain, within)

    def wait_until_gone(self, processes: list[psutil.Process]) -> None:
        """Wait until all these processes have ended."""
        self.wait_for(lambda: not [process for process in processes if is_alive(process)])

    def end(self, number: int | None = None) -> int:
        """Wait for the master's end and return its exit code. `number`: the signal to send first; None: no signal."""
        if number is not None:
            self.signal(number)
        self.wait_for(lambda: self.process.poll() is not None)
        return self.process.wait()

    def stop(self) -> None:
        """Stop the master immediately. Check that its exit code is 0 and that no child is left."""
        family = children_of(self.master, recursive=True)
        assert self.end(signal.SIGQUIT) == 0, self.explain()
        self.wait_until_gone(family)

    def errors(self) -> str:
        """Return the stderr of a master that has ended."""
        assert self.process.stderr is not None
        return self.process.stderr.read().decode()

    def explain(self) -> str:
        """Return the state of the processes, the traces and the log, for the message of a failed test."""
        alive = self._process is not None and self._process.poll() is None
        return f"alive: {self.titles() if alive else 'no'}\ntraces: {self.traces()}\nlog:\n{self.log}"


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Return the values of the file's lines, in order. The last line is left out while it is not complete."""
    whole, _, _ = path.read_text().rpartition("\n") if path.exists() else ("", "", "")
    return [_parsed(line) for line in whole.splitlines()]


def children_of(process: psutil.Process, recursive: bool = False) -> list[psutil.Process]:
    """Return the children of a process.

    Avoids psutil's search where it can, which reads all processes and takes 7 ms.
    """
    if not _TELLS_CHILDREN:
        return process.children(recursive=recursive)
    found = []
    for pid in _forked_by(Path(f"/proc/{process.pid}/task")):
        with suppress(psutil.NoSuchProcess):
            child = psutil.Process(pid)
            found += [child, *(children_of(child, recursive) if recursive else [])]
    return found


def _forked_by(tasks: Path) -> list[int]:
    """Return the pids of the children of a process. `tasks`: its folder /proc/PID/task."""
    pids: list[int] = []
    for task in tasks.iterdir() if tasks.exists() else ():
        with suppress(FileNotFoundError, ProcessLookupError):  # the thread has just ended
            pids += map(int, (task / "children").read_text().split())
    return pids


def is_alive(process: psutil.Process) -> bool:
    """Return whether a process is running. A zombie is not."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _title(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline()).strip()
    except psutil.Error:
        return ""


def _is_up(worker: psutil.Process) -> bool:
    return _title(worker).split()[3:4] not in ([], ["booting"])


def _kill(process: psutil.Process) -> None:
    try:
        process.kill()
    except psutil.NoSuchProcess:
        return
