"""A daemon (`psched run`) with its own configuration, at one place. Runs in the measuring process."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

import psutil

import psched
from benchmarks.databases import Place
from benchmarks.process_usage import processor_time, tree_of
from benchmarks.shared_counter import VARIABLE, CountedRuns, count_working, read_firsts, read_samples, read_tally
from psched.queue.queue import Queue
from psched.schedules.collection import ScheduleCollection
from tests.programs import ROOT, install_programs

PATIENCE = 180.0
"""Seconds after which a measurement counts as failed."""

APPLICATION = "benchmarks.application:app"


class CommandTimes(NamedTuple):
    """How long a command took, and how much processor time it used, in seconds."""

    seconds: float
    processor: float


class BenchmarkWorker:
    """A configuration in the folder of a place, and the daemon with this configuration.

    The daemon runs within the context.
    """

    def __init__(self, place: Place, processors: int = 2, **config: Any) -> None:
        """Create the tables, but start nothing. `config`: further keys of the configuration."""
        self.place = place
        self.tally_folder = place.folder / "tally"
        shutil.rmtree(self.tally_folder, ignore_errors=True)  # left by an earlier worker at the same place
        self.tally_folder.mkdir()
        self._process: subprocess.Popen[bytes] | None = None
        self._config = {
            "type": "redis" if place.store == "redis" else "rdb",
            "url": place.url,
            "app": APPLICATION,
            "include": str(ROOT),
            "processors": processors,
            "log": str(place.folder / "psched.log"),
            **config,
        }
        for section in ("schedules", "queue"):
            self._config.setdefault(section, {})
        self.config.write_text(json.dumps({"development": self._config}))
        self._run_program("init")

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def config(self) -> Path:
        """The configuration file."""
        return self.place.folder / "psched.yml"

    @property
    def log(self) -> str:
        """The text of the daemon's log."""
        path = self.place.folder / "psched.log"
        return path.read_text() if path.exists() else ""

    @contextmanager
    def queue(self) -> Iterator[Queue]:
        """Yield a client's queue, with its own connections."""
        with psched.open_queue(self.config) as queue:
            yield queue

    @contextmanager
    def schedules(self) -> Iterator[ScheduleCollection]:
        """Yield a client's collection of schedules, with its own connections."""
        with psched.open(self.config) as schedules:
            yield schedules

    @property
    def master(self) -> psutil.Process:
        """The running master."""
        assert self._process is not None
        return psutil.Process(self._process.pid)

    def _run_program(self, *arguments: str) -> None:
        """Run `psched` with these arguments until the command ends."""
        subprocess.run([*self.command, *arguments], check=True, stdout=subprocess.DEVNULL)

    def timed(self, *arguments: str, code: int = 0) -> CommandTimes:
        """Run `psched` with these arguments until the command ends, and return how long the command took.

        `code`: the expected exit code. Raises RuntimeError for another exit code.
        """
        begun = time.perf_counter()
        process = subprocess.Popen([*self.command, *arguments], stdout=subprocess.DEVNULL)
        _, status, usage = os.wait4(process.pid, 0)
        seconds = time.perf_counter() - begun
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode != code:
            raise RuntimeError(f"psched {' '.join(arguments)}: exit code {process.returncode} instead of {code}")
        return CommandTimes(seconds, usage.ru_utime + usage.ru_stime)

    @property
    def command(self) -> list[str]:
        """The words of `psched` with this configuration. The caller appends a command."""
        programs = self.place.folder / "bin"
        if not programs.exists():
            install_programs(programs)
        return [str(programs / "psched"), "-c", str(self.config)]

    def start(self) -> None:
        """Start the daemon, and wait until its children exist."""
        self._process = subprocess.Popen(
            [*self.command, "run"],
            env={**os.environ, VARIABLE: str(self.tally_folder)},
            cwd=self.place.folder,
            start_new_session=True,
        )
        processors = self._config["processors"]
        self.wait(lambda: len(self.master.children()) >= processors)

    def stop(self) -> None:
        """End the daemon gracefully; after 20 s, kill it."""
        process = self._process
        if process is None:
            return
        self._process = None
        children = psutil.Process(process.pid).children(recursive=True) if process.poll() is None else []
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            for child in children:
                child.kill()
            process.kill()
            process.wait()

    def tree(self) -> list[psutil.Process]:
        """Return the master and its descendants."""
        return tree_of([self.master])

    def cpu(self) -> float:
        """Return the processor time that master and descendants have used, in seconds."""
        return processor_time(self.tree())

    def counted(self) -> CountedRuns:
        """Return the number of runs that handlers have counted, and the times of the first and last."""
        return read_tally(self.tally_folder)

    def working(self) -> int:
        """Return how many children have run handlers."""
        return count_working(self.tally_folder)

    def firsts(self) -> list[float]:
        """Return, for each child, the time of its first run (monotonic)."""
        return read_firsts(self.tally_folder)

    def samples(self) -> list[float]:
        """Return the seconds that handlers have recorded."""
        return read_samples(self.tally_folder)

    def wait(self, condition: Callable[[], bool], pause: float = 0.005) -> None:
        """Wait until `condition` returns true.

        Raises RuntimeError, with the end of the log, if the daemon ends, or after `PATIENCE` seconds.
        """
        deadline = time.monotonic() + PATIENCE
        while not condition():
            ended = self._process is not None and self._process.poll() is not None
            if ended or time.monotonic() > deadline:
                raise RuntimeError(
                    f"the daemon {'ended' if ended else f'took longer than {PATIENCE:g} s'}:\n{self.log[-3000:]}"
                )
            time.sleep(pause)
