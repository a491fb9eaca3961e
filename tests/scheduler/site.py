"""The tables of a test, and the schedulers and processes that use them."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, Self, TypeVar

import psutil

from faultlab import forkserver_client
from psched import Scheduler, create_scheduler
from psched.model import TaskFilter, TaskRow
from psched.scheduler.instance_registry import INSTANCE
from psched.scheduler.stores import OpenStores, open_scheduler_stores, scheduler_settings
from tests.daemon.harness import PATIENCE, is_alive, read_lines, wait_for
from tests.programs import ROOT

T = TypeVar("T")

_INSTANCE = Path(__file__).with_name("instance.py")


class Site:
    """The tables, schedulers and processes of one test. All are stopped at the end of the context.

    `records`: the file to which the processes' handlers write.
    """

    def __init__(self, url: str, prefix: str, folder: Path, launcher: Launcher) -> None:
        self._launcher = launcher
        self.url = url
        self.prefix = prefix
        self.folder = folder
        self.records = folder / "records"
        self._stack = ExitStack()
        self._opened: OpenStores | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: Any) -> None:
        print(self.output())
        self._stack.__exit__(*error)

    def scheduler(self, **options: Any) -> Scheduler:
        """Return a scheduler, which is stopped at the end of the test."""
        options = {"prefix": self.prefix, "poll_interval": 0.05, **options}
        scheduler = create_scheduler(options.pop("url", self.url), **options)
        self._stack.callback(scheduler.stop)
        return scheduler

    def opened(self) -> OpenStores:
        """Return the stores, whose tables exist. All calls return the same stores."""
        if self._opened is None:
            self._opened = self.open_stores()
            self._stack.callback(self._opened.close)
            self._opened.create_tables()
        return self._opened

    def open_stores(self) -> OpenStores:
        """Return new stores, which the caller must close."""
        return open_scheduler_stores(scheduler_settings(self.url, self.prefix, "UTC", None, 300))

    def tasks(self) -> list[TaskRow]:
        """Return all tasks, retired or not, without the heartbeat rows of instances."""
        return [row for row in self.opened().queue.list(TaskFilter()) if row.type != INSTANCE]

    def now(self) -> float:
        """Return the database's time in unix seconds."""
        return self.opened().queue.now()

    def wait_until_over(self, key: str) -> None:
        """Wait until a task has finished or failed."""
        opened = self.opened()

        def is_over() -> bool:
            row = opened.queue.get(key)
            return row is not None and row.due is None

        self.wait_for(is_over)

    def process(self, *registrations: dict[str, Any], launcher: Launcher | None = None, **options: Any) -> Instance:
        """Start a process with a scheduler that binds the handlers of `instance.py` and makes these registrations."""
        options = {"prefix": self.prefix, "poll_interval": 0.1, **options}
        instance = Instance(
            self, (launcher or self._launcher).start([str(self.records), self.url, options, registrations])
        )
        self._stack.callback(instance.kill)
        return instance

    def lines(self, event: str) -> list[dict[str, Any]]:
        """Return the lines that the handlers of processes recorded for this event."""
        return [line for line in read_lines(self.records) if line["event"] == event]

    def wait_for(self, condition: Callable[[], T | None], within: float = PATIENCE) -> T:
        """Wait until a condition is true. If it never is, the failure shows the output of the processes."""
        return wait_for(condition, self.output, within)

    def output(self) -> str:
        """Return the output and the records of the processes."""
        output = [f"== {path.name}\n{path.read_text()[-3000:]}" for path in sorted(self.folder.glob("*.err"))]
        return "\n".join([*output, *(str(line) for line in (read_lines(self.records)[-60:]))])


class Launcher:
    """Forks instances from a process that has already imported everything. Use it as a context manager.

    `environ`: further environment variables of the instances.
    """

    def __init__(self, environ: Mapping[str, str] | None = None) -> None:
        self._environ = dict(environ or {})

    def __enter__(self) -> Self:
        environ = {**os.environ, "PYTHONPATH": str(ROOT), **self._environ}
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        self._process = forkserver_client.start([str(_INSTANCE)], Path.cwd(), environ, **pipes)
        return self

    def __exit__(self, *error: object) -> None:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()

    def start(self, arguments: Sequence[Any]) -> int:
        """Start an instance, and return its pid."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps(arguments).encode() + b"\n")
        self._process.stdin.flush()
        return int(self._process.stdout.readline())


class Instance:
    """A process with a scheduler."""

    def __init__(self, site: Site, pid: int) -> None:
        self.pid = pid
        self._site = site
        self._process = psutil.Process(pid)

    def wait_until_up(self) -> Self:
        """Wait until the scheduler of this process has started."""
        self._site.wait_for(lambda: any(line["pid"] == self.pid for line in self._site.lines("up")))
        return self

    def kill(self) -> None:
        """Send SIGKILL, and wait for the end of the process."""
        with suppress(psutil.NoSuchProcess):
            self._process.kill()
        self._site.wait_for(lambda: not is_alive(self._process))

    def stop(self) -> None:
        """Send SIGTERM, and wait for the end of the process. Check that it has stopped its scheduler before."""
        self._process.terminate()
        self._site.wait_for(lambda: not is_alive(self._process))
        assert any(line["pid"] == self.pid for line in self._site.lines("down")), self._site.output()
