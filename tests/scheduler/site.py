"""One place in a database, the schedulers of a test on it, and processes that have schedulers there."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self, TypeVar

from psched import Scheduler, create_scheduler
from psched.clock import boottime
from psched.model import TaskRow
from psched.scheduler.order import INSTANCE
from psched.scheduler.place import Opened, place_of
from psched.store import TaskFilter
from tests.daemon.harness import PATIENCE, read_lines, wait_for
from tests.programs import ROOT

T = TypeVar("T")

_INSTANCE = Path(__file__).with_name("instance.py")


class Site:
    """Leaves nothing running. `records`: the file that the handlers of its processes write."""

    def __init__(self, url: str, prefix: str, folder: Path) -> None:
        self.url = url
        self.prefix = prefix
        self.folder = folder
        self.records = folder / "records"
        self.deaths: dict[int, float] = {}
        self._stack = ExitStack()
        self._opened: Opened | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: Any) -> None:
        print(self.explain())
        self._stack.__exit__(*error)

    def scheduler(self, **options: Any) -> Scheduler:
        """Return a scheduler that is stopped at the end of the test."""
        options = {"prefix": self.prefix, "poll_interval": 0.05, **options}
        scheduler = create_scheduler(options.pop("url", self.url), **options)
        self._stack.callback(scheduler.stop)
        return scheduler

    def opened(self) -> Opened:
        """Return the stores, their tables made."""
        if self._opened is None:
            self._opened = place_of(self.url, self.prefix, "UTC", {}, 300).open()
            self._stack.callback(self._opened.close)
            self._opened.make_tables()
        return self._opened

    def tasks(self) -> list[TaskRow]:
        """Return all tasks, retired or not, without the signs of instances."""
        return [row for row in self.opened().queue.list(TaskFilter()) if row.type != INSTANCE]

    def now(self) -> float:
        """Return the database's time."""
        return self.opened().queue.now()

    def wait_until_over(self, key: str) -> None:
        """Wait until a task is finished or failed."""
        opened = self.opened()

        def is_over() -> bool:
            row = opened.queue.get(key)
            return row is not None and row.due is None

        self.wait_for(is_over)

    def process(self, *registrations: dict[str, Any], **options: Any) -> Instance:
        """Start a process with a scheduler that binds the handlers of `instance.py` and registers these."""
        options = {"prefix": self.prefix, "poll_interval": 0.1, **options}
        instance = Instance(self, [self.url, options, registrations])
        self._stack.callback(instance.end)
        return instance

    def lines(self, event: str) -> list[dict[str, Any]]:
        """Return what the handlers of processes recorded under this event."""
        return [line for line in read_lines(self.records) if line["event"] == event]

    def wait_for(self, condition: Callable[[], T | None], within: float = PATIENCE) -> T:
        """Wait for a condition; what the processes said explains why it never came true."""
        return wait_for(condition, self.explain, within)

    def explain(self) -> str:
        """Return what the processes have said and recorded."""
        said = [f"== {path.name}\n{path.read_text()[-3000:]}" for path in sorted(self.folder.glob("*.err"))]
        return "\n".join([*said, *(str(line) for line in (read_lines(self.records)[-60:]))])


class Instance:
    """A process with a scheduler."""

    def __init__(self, site: Site, arguments: Sequence[Any]) -> None:
        self._site = site
        with (site.folder / f"{boottime():.3f}.err").open("w") as errors:
            self.process = subprocess.Popen(
                [sys.executable, str(_INSTANCE), json.dumps(arguments)],
                env={**os.environ, "PYTHONPATH": str(ROOT), "PSCHED_TEST_RECORDS": str(site.records)},
                stdin=subprocess.PIPE,
                stderr=errors,
            )

    @property
    def pid(self) -> int:
        """Its pid, as the records have it."""
        return self.process.pid

    def wait_until_up(self) -> Self:
        """Wait until its scheduler has started."""
        self._site.wait_for(lambda: any(line["pid"] == self.pid for line in self._site.lines("up")))
        return self

    def kill(self) -> None:
        """SIGKILL it, and note when that was."""
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        self._site.deaths[self.pid] = boottime()

    def stop(self) -> None:
        """Let it stop its scheduler and end."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        assert self.process.wait(20) == 0, self._site.explain()

    def end(self) -> None:
        """Leave nothing of it."""
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        if self.process.stdin is not None:
            self.process.stdin.close()
