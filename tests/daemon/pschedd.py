"""pschedd in a folder of its own, controlled by its commands."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

from faultlab import forkserver_client
from psched.config import load
from psched.schedules.collection import ScheduleCollection, open_schedules
from psched.supervisor.pidfile import read_running
from tests.daemon.harness import wait_for
from tests.programs import install_programs

CONFIG = """\
development:
  type: rdb
  url: sqlite:///psched.db
  app: app:app
  include: .
  log: psched.log
  pid_file: psched.pid
  poll_interval: 0.1
  retry_wait: 1
  child_fork_frequency_limit: 0.1
  processors: 1
"""
APPLICATION = """\
import os, time
from pathlib import Path
import psched

app = psched.App()
here = Path(__file__).parent

@app.task("short")
def short(task):
    with open(here / "short", "a") as trace:
        trace.write(f"{os.getsid(0)} {os.getcwd()} {os.fstat(0).st_rdev == os.stat(os.devnull).st_rdev}\\n")

@app.task("long")
def long(task):
    (here / "long-began").touch()
    while not (here / "long-may-end").exists():
        time.sleep(0.02)
    (here / "long-ended").touch()
"""


@dataclass(frozen=True)
class Pschedd:
    """A daemon with the configuration etc/psched.yml in `folder`. The daemon's files are beside the configuration."""

    folder: Path

    def __call__(self, action: str, *options: str) -> subprocess.CompletedProcess[str]:
        """Run a command of pschedd in `folder`."""
        return forkserver_client.run([str(self.folder / "bin/pschedd"), action, *options], self.folder, 50)

    def add(self, key: str, type: str) -> None:
        """Add a schedule that is due each second from now on."""
        with self._schedules() as schedules:
            schedules.add(key, type, cron="* * * * * *")

    def create_tables(self) -> None:
        with self._schedules() as schedules:
            schedules.store.create_tables()

    @property
    def etc(self) -> Path:
        return self.folder / "etc"

    @property
    def config(self) -> Path:
        return self.etc / "psched.yml"

    @property
    def log(self) -> str:
        log = self.etc / "psched.log"
        return log.read_text() if log.exists() else "(no log)"

    @property
    def pid(self) -> int | None:
        return read_running(self.etc / "psched.pid")

    def configure(self, old: str, new: str) -> None:
        text = self.config.read_text()
        assert old in text
        self.config.write_text(text.replace(old, new))

    def start(self) -> int:
        """Start the daemon, which must succeed. Return the master's pid."""
        done = self("start")
        assert done.returncode == 0, done.stderr + self.log
        pid = self.pid
        assert pid is not None
        return pid

    def wait_for(self, name: str) -> Path:
        """Wait until the application has written this file. Return the file's path."""
        trace = self.etc / name
        self.wait_until(trace.exists)
        return trace

    def wait_until(self, condition: Callable[[], object]) -> None:
        wait_for(condition, lambda: self.log)

    @contextmanager
    def foreground(self) -> Iterator[forkserver_client.Process]:
        """Run the daemon in the foreground. If it still runs at the end of the block, kill it."""
        argv = [str(self.folder / "bin/pschedd"), "run"]
        with forkserver_client.start(argv, self.folder, os.environ, stdin=subprocess.DEVNULL) as process:
            try:
                yield process
            finally:
                process.kill()

    def _schedules(self) -> ScheduleCollection:
        return open_schedules(load(self.config).sections[0], "tests")


@contextmanager
def installed(folder: Path) -> Iterator[Pschedd]:
    """Yield a daemon that has a configuration and tables but is not started. At the end kill what is left of it."""
    daemon = Pschedd(folder)
    install_programs(folder / "bin")
    daemon.etc.mkdir()
    daemon.config.write_text(CONFIG)
    (daemon.etc / "app.py").write_text(APPLICATION)
    daemon.create_tables()
    try:
        yield daemon
    finally:
        for pid_file in daemon.etc.glob("*.pid"):
            if (pid := read_running(pid_file)) is not None:
                for process in [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]:
                    process.kill()
