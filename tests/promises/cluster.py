"""Several real masters on one table, and the records of their runs."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self, TypeVar

import psutil

from psched import cron
from psched.clock import boottime
from psched.queue.queue import Queue, open_queue
from psched.schedules.collection import ScheduleCollection
from psched.store import holder_name
from tests.compat.unchecked_rules import rules_unchecked
from tests.daemon.harness import PATIENCE, Daemon, children_of, is_alive, read_lines, wait_for
from tests.promises.run_history import Run, judge, read_runs

HERE = Path(__file__).parent
EVERY_SECOND = "* * * * * *"
YEARLY = "0 0 1 1 *"

T = TypeVar("T")


class Cluster:
    """Masters by name. Each has its own folder, configuration and log; all use the table that `config` names.

    The end of the context kills what still runs, and prints what is known, in case the test has failed.
    """

    def __init__(self, folder: Path, **config: Any) -> None:
        self.config = {"app": "recording_handlers:Handlers", "include": str(HERE), "alive_time": 60, **config}
        self.masters: dict[str, Daemon] = {}
        self.deaths: dict[int, float] = {}
        self.file = folder / "records"
        self.folder = folder
        self._stack = ExitStack()
        self._schedules: ScheduleCollection | None = None
        self._queue: Queue | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: Any) -> None:
        print(self.explain())
        self._stack.__exit__(*error)

    def master(self, name: str = "a", environ: Mapping[str, str] | None = None, **config: Any) -> Daemon:
        """Prepare another master, but do not start it. `config`: further keys of its configuration."""
        folder = self.folder / name
        folder.mkdir()
        daemon = self._stack.enter_context(Daemon(folder, **{**self.config, **config}))
        daemon.environ = {"PSCHED_TEST_RECORDS": str(self.file), **(environ or {})}
        self.masters[name] = daemon
        return daemon

    def start(self, *names: str, **config: Any) -> Self:
        """Prepare masters with these names, start them in parallel, and wait until all are up."""
        masters = [self.master(name, **config).start(wait=False) for name in names]
        for master in masters:
            master.wait_until_ready()
        return self

    @property
    def schedules(self) -> ScheduleCollection:
        """The schedules of the first master, opened in the test process."""
        if self._schedules is None:
            self._schedules = self._stack.enter_context(next(iter(self.masters.values())).schedules())
        return self._schedules

    @property
    def queue(self) -> Queue:
        """The queue of the first master, opened in the test process, with its tables made.

        The configuration must have a queue.
        """
        if self._queue is None:
            section = next(iter(self.masters.values())).settings().queue
            assert section is not None
            self._queue = self._stack.enter_context(open_queue(section, holder_name("test")))
            self._queue.store.create_tables()
        return self._queue

    def now(self) -> int:
        """Return the database's time in unix seconds."""
        return int(self.schedules.store.now())

    def add(self, key: str, type: str, since: int | None = None, rule: str = YEARLY, **data: Any) -> int:
        """Add a schedule. Return its first occurrence, which is the first one at or after `since`.

        Without `since` its first occurrence is the last one before now, and the next one is far away.
        """
        now = self.now()
        first = occurrences(rule, now - 366 * 86400, now)[-1] if since is None else cron.first_time(rule, since, "UTC")
        with rules_unchecked():
            self.schedules.add(key, type, cron=rule, next_time=first, data=data)
        return first

    def go(self, key: str) -> None:
        """Let a schedule's run end, if its handler waits for that."""
        (self.folder / f"{key}.go").touch()

    def lines(self, event: str, key: str | None = None) -> list[dict[str, Any]]:
        """Return the recorded lines of this event. `key`: only lines with this key."""
        return [line for line in read_lines(self.file) if line["event"] == event and key in (None, line.get("key"))]

    def runs(self, key: str | None = None) -> list[Run]:
        """Return the recorded runs in the order in which they began. `key`: only runs of this key."""
        return [run for run in read_runs(self.file) if key in (None, run.key)]

    def wait_for_run(self, key: str, count: int = 1) -> Run:
        """Wait until the `count`-th run of a schedule has begun, and return this run."""
        return self.wait_for(lambda: dict(enumerate(self.runs(key), 1)).get(count))

    def wait_for_end(self, key: str, count: int = 1) -> Run:
        """Wait until the `count`-th run of a schedule is settled, and return this run."""

        def settled() -> Run | None:
            run = dict(enumerate(self.runs(key), 1)).get(count)
            return None if run is None or run.outcome is None else run

        return self.wait_for(settled)

    def wait_until_run(self, keys: Sequence[str], occurrence: int, within: float = PATIENCE) -> None:
        """Wait until all these schedules have run this occurrence or a later one."""

        def all_there() -> bool:
            reached = {run.key for run in self.runs() if run.end is not None and run.occurrence >= occurrence}
            return reached.issuperset(keys)

        self.wait_for(all_there, within)

    def wait_for(self, condition: Callable[[], T | None], within: float = PATIENCE) -> T:
        """Wait until a condition is true. If it never is, the failure shows the logs."""
        return wait_for(condition, self.explain, within)

    def kill(self, pid: int) -> float:
        """Kill a process by SIGKILL. Record and return the time of its death, in boottime seconds."""
        process = psutil.Process(pid)
        process.kill()
        wait_for(lambda: not is_alive(process))
        self.deaths[pid] = boottime()
        return self.deaths[pid]

    def kill_master(self, name: str) -> list[psutil.Process]:
        """Kill a master by SIGKILL. Return its children, whose deaths the test must record when they are gone."""
        master = self.masters[name]
        children = children_of(master.master, recursive=True)
        master.process.kill()
        master.process.wait()
        return children

    def stop(self) -> None:
        """Stop all masters that still run, and check that each ends well."""
        for master in self.masters.values():
            if master.process.poll() is None:
                master.stop()

    def judge(self, required: Mapping[str, Sequence[int]]) -> list[str]:
        """Return the violations in the history of the required schedules."""
        runs = [run for run in self.runs() if run.key in required]
        return judge(runs, required, self.deaths)

    def explain(self) -> str:
        """Return the state of each master and the last records, for the message of a failed test."""
        parts = [f"== {name}\n{master.explain()}" for name, master in self.masters.items()]
        return "\n".join([*parts, "== records", *(str(run) for run in self.runs()[-100:])])


def occurrences(rule: str, since: int, until: float) -> list[int]:
    """Return the occurrences of a rule from `since` to `until`, in UTC."""
    found = []
    occurrence = cron.first_time(rule, since, "UTC")
    while occurrence <= until:
        found.append(occurrence)
        occurrence = cron.next_time(rule, occurrence, "UTC")
    return found


def wall_of(moment: float) -> float:
    """Return the unix seconds of a moment that is given in boottime seconds."""
    return time.time() - boottime() + moment
