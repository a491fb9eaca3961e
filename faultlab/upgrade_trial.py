"""`scripts/upgrade-trial`: upgrades tables to the next layout while a daemon of the previous version uses them.

A daemon of the old version runs schedules that are due every second, and tasks of a queue. The new version has the
layout of next_layout.py. Its `psched init` is killed several times, and then runs in two processes at the same time.
After that, a daemon of the new version runs beside the old daemon, which is restarted and finally stopped. No run may
be lost, repeated or failed, and no schedule may miss a second.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import yaml

import psched
from faultlab.laboratory import Lab
from faultlab.mariadb import MariaDB
from faultlab.postgresql import PostgreSQL
from faultlab.redis import Redis
from faultlab.servers import Server
from psched import NewTask
from psched.queue.queue import Queue

ROOT = Path(__file__).parents[1]
STORES: dict[str, type[Server] | None] = {
    "sqlite": None,
    "mariadb": MariaDB,
    "postgresql": PostgreSQL,
    "redis": Redis,
}
SCHEDULES = 10
KILLS = 4
PATIENCE = 90.0
_HANDLERS = """\
import json, os, time
import psched

app = psched.App()
FILE = os.open(os.environ["RUNS"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)

@app.task("work")
def work(task):
    run = [os.environ["VERSION"], task.key, task.scheduled_time, task.fence]
    os.write(FILE, (json.dumps(run) + "\\n").encode())
"""
_OLD = "import sys; from psched.cli.main import main; sys.exit(main(sys.argv[1:]))"


@dataclass
class UpgradeTrial:
    """One trial: a store, its folder and its processes."""

    store: str
    folder: Path
    old: Path
    url: str
    rows: int
    begun: float = 0
    killed: int = 0
    daemons: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    acknowledged: set[str] = field(default_factory=set)
    faults: list[str] = field(default_factory=list)

    def run(self) -> list[str]:
        """Run the trial, and return the violations."""
        self._prepare()
        with contextlib.ExitStack() as stack:
            stack.callback(self._kill)
            self.daemons["old"] = self._start("old")
            queue = stack.enter_context(psched.open_queue(self._config))
            self._submit(queue, 5)
            self._interrupted_upgrades(queue)
            both = [self._command("new", "init") for _ in range(2)]
            self._submit(queue, 1)
            self._finish(both)
            self._expect("new", 0, "init", "--check")
            self._submit(queue, 3)
            self.daemons["new"] = self._start("new")
            self._submit(queue, 6)
            self._stop("old")
            self._submit(queue, 3)
            self.daemons["old"] = self._start("old")
            self._submit(queue, 6)
            self._wait_until_done()
            self._stop("old")
            self._stop("new")
            self._expect("new", 0, "audit", "--from", str(int(self.begun)))
        return [*self.faults, *self._violations()]

    @property
    def _config(self) -> Path:
        return self.folder / "psched.yml"

    def _prepare(self) -> None:
        (self.folder / "handlers.py").write_text(_HANDLERS)
        place = {"type": "redis" if self.store == "redis" else "rdb", "url": self.url}
        settings = {
            "app": "handlers:app", "include": str(self.folder), "schedules": {"table": "s"}, "queue": {"table": "q"},
            "poll_interval": 0.2, "retention_time": 3600, "processors": 2, **place,
        }  # fmt: skip
        self._config.write_text(yaml.safe_dump({"development": settings}))
        self._expect("old", 0, "init")
        self._fill()
        self.begun = time.time()
        for number in range(SCHEDULES):
            self._expect("old", 0, "add", f"schedule{number}", "work", "* * * * * *", "{}")

    def _fill(self) -> None:
        """Add rows, so that the upgrade takes long enough to be interrupted."""
        with psched.open_queue(self._config) as queue:
            late = time.time() + 86400
            for start in range(0, self.rows, 500):
                queue.submit_many([NewTask(f"late{n}", "late", run_at=late) for n in range(start, start + 500)])

    def _program(self, version: str) -> tuple[list[str], dict[str, str]]:
        """Return the command line and the environment of psched in one of the versions."""
        environ = {**os.environ, "RUNS": str(self.folder / "runs"), "VERSION": version}
        if version == "old":
            return [sys.executable, "-c", _OLD], {**environ, "PYTHONPATH": str(self.old)}
        return [sys.executable, "-m", "faultlab.next_layout"], {**environ, "PYTHONPATH": str(ROOT)}

    def _command(self, version: str, *arguments: str) -> subprocess.Popen[bytes]:
        program, environ = self._program(version)
        log = (self.folder / f"{version}.commands").open("ab")
        with log:
            return subprocess.Popen(
                [*program, "-c", str(self._config), *arguments], env=environ, cwd=self.folder, stdout=log, stderr=log
            )

    def _expect(self, version: str, code: int, *arguments: str) -> None:
        found = self._command(version, *arguments).wait(PATIENCE)
        if found != code:
            self.faults.append(f"psched {' '.join(arguments)} of the {version} version: exit code {found}, not {code}")

    def _interrupted_upgrades(self, queue: Queue) -> None:
        for _ in range(KILLS):
            process = self._command("new", "init")
            self._submit(queue, random.uniform(0.8, 2.5))
            self.killed += process.poll() is None
            process.kill()
            process.wait()

    def _finish(self, processes: Sequence[subprocess.Popen[bytes]]) -> None:
        for process in processes:
            if code := process.wait(PATIENCE):
                self.faults.append(f"psched init: exit code {code}")

    def _start(self, version: str) -> subprocess.Popen[bytes]:
        program, environ = self._program(version)
        with (self.folder / f"{version}.log").open("ab") as log:
            return subprocess.Popen(
                [*program, "-c", str(self._config), "run"], env=environ, cwd=self.folder, stdout=log, stderr=log
            )

    def _stop(self, version: str) -> None:
        process = self.daemons.pop(version)
        process.send_signal(signal.SIGTERM)
        if code := process.wait(PATIENCE):
            self.faults.append(f"the daemon of the {version} version ended with exit code {code}")

    def _kill(self) -> None:
        for process in self.daemons.values():
            process.kill()

    def _submit(self, queue: Queue, seconds: float) -> None:
        """Submit 20 tasks a second for `seconds`. The client is this process, which has the present layout."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            key = f"task{len(self.acknowledged)}"
            queue.submit(key, "work", {})
            self.acknowledged.add(key)
            time.sleep(0.05)

    def _runs(self) -> list[tuple[str, str, int, int]]:
        lines = (self.folder / "runs").read_text().splitlines()
        return [tuple(json.loads(line)) for line in lines]

    def _wait_until_done(self) -> None:
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end and self.acknowledged - {key for _, key, _, _ in self._runs()}:
            time.sleep(0.2)

    def _violations(self) -> Iterator[str]:
        runs = self._runs()
        counts = Counter((key, occurrence) for _, key, occurrence, _ in runs)
        yield from (f"{each} ran {count} times" for each, count in counts.items() if count > 1)
        lost = self.acknowledged - {key for _, key, _, _ in runs}
        yield from (f"{key} did not run" for key in sorted(lost))
        for number in range(SCHEDULES):
            times = sorted(occurrence for _, key, occurrence, _ in runs if key == f"schedule{number}")
            if missing := set(range(times[0], times[-1])) - set(times):
                yield f"schedule{number}: {len(missing)} seconds missing"
        for version in ("old", "new"):
            log = (self.folder / f"{version}.log").read_text()
            yield from (f"{version}: {line}" for line in log.splitlines() if "ERROR" in line or "Traceback" in line)
        shares = Counter(version for version, *_ in runs)
        print(
            f"{self.store}: {len(self.acknowledged)} tasks, {self.killed} inits killed, runs: {dict(shares)}",
            flush=True,
        )
        if min(shares["old"], shares["new"]) < 100:
            yield f"one of the versions has run fewer than 100 times: {dict(shares)}"


def main() -> int:
    """Run the trial on each named store. Return 0 if there were no violations, otherwise 1."""
    parser = argparse.ArgumentParser(prog="scripts/upgrade-trial", description=__doc__.partition("\n")[0])
    parser.add_argument("--store", action="append", choices=list(STORES), help="may be repeated (default: all)")
    parser.add_argument("--old", default="HEAD", help="the revision of the old version (default: HEAD)")
    parser.add_argument(
        "--rows", type=int, default=20_000, help="tasks in the table before the upgrade (default: 20,000)"
    )
    arguments = parser.parse_args()
    failed = False
    with Lab() as lab, tempfile.TemporaryDirectory(prefix="psched-old-") as old:
        archive = subprocess.run(["git", "archive", arguments.old, "psched"], cwd=ROOT, check=True, capture_output=True)
        subprocess.run(["tar", "-x", "-C", old], input=archive.stdout, check=True)
        for store in arguments.store or list(STORES):
            folder = Path(tempfile.mkdtemp(prefix=f"psched-upgrade-{store}-"))
            kind = STORES[store]
            url = f"sqlite:///{folder}/psched.db"
            if kind is not None:
                server = lab.shared(kind)
                url = server.url(server.create_database())
            violations = UpgradeTrial(store, folder, Path(old), url, arguments.rows).run()
            print(f"{store}: {len(violations)} violations", *violations[:20], sep="\n  ", flush=True)
            failed |= bool(violations)
            if violations:
                print(f"  logs: {folder}")
            else:
                shutil.rmtree(folder)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
