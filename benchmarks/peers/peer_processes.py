"""The processes of one peer, which use the peers' virtualenv. Runs in the measuring process."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

from benchmarks.databases import Place
from benchmarks.process_usage import processor_time, tree_of
from benchmarks.shared_counter import VARIABLE, CountedRuns, read_samples, read_tally
from tests.programs import ROOT

_HERE = Path(__file__).parent
_VENV = ROOT / ".bench-peers"
_PATIENCE = 120.0


def install() -> None:
    """Create the virtualenv of the peers, with the dependency group `bench`, unless the virtualenv exists."""
    if (_VENV / ".complete").exists():
        return
    wanted = tomllib.loads((ROOT / "pyproject.toml").read_text())["dependency-groups"]["bench"]
    subprocess.run([sys.executable, "-m", "venv", _VENV], check=True)
    subprocess.run([_VENV / "bin/python", "-m", "pip", "install", "--quiet", *wanted], check=True)
    (_VENV / ".complete").touch()


class Crew:
    """The processes of one peer at one place."""

    def __init__(self, script: str, place: Place) -> None:
        self._command = [str(_VENV / "bin/python"), str(_HERE / script)]
        self._place = place
        self._folder = place.folder / "tally"
        self._folder.mkdir()
        self._workers: list[psutil.Process] = []
        self._environment = {**os.environ, "PYTHONPATH": str(ROOT), VARIABLE: str(self._folder)}

    def run(self, verb: str, operand: object) -> str:
        """Run the script with one verb until the script ends, and return its output."""
        words = self._words(verb, operand)
        return subprocess.run(words, env=self._environment, check=True, stdout=subprocess.PIPE, text=True).stdout

    @contextmanager
    def at_work(self, processes: int, verb: str, count: int) -> Iterator[None]:
        """Start workers, and in the end kill them with all their descendants."""
        log = (self._place.folder / "peer.log").open("wb")
        words = self._words(verb, count)
        started = [
            subprocess.Popen(words, env=self._environment, stdout=log, stderr=log, start_new_session=True)
            for _ in range(processes)
        ]
        self._workers = [psutil.Process(process.pid) for process in started]
        try:
            yield
        finally:
            for process in self.tree():
                with suppress(psutil.NoSuchProcess):
                    process.kill()
            for each in started:
                each.wait()
            log.close()

    def tree(self) -> list[psutil.Process]:
        """Return the workers and their descendants."""
        return tree_of(self._workers)

    def cpu(self) -> float:
        """Return the processor time that workers and descendants have used, in seconds."""
        return processor_time(self.tree())

    def counted(self) -> CountedRuns:
        """Return the number of runs that handlers have counted, and the times of the first and last."""
        return read_tally(self._folder)

    def samples(self) -> list[float]:
        """Return the seconds that handlers have recorded."""
        return read_samples(self._folder)

    def wait(self, condition: Callable[[], bool], pause: float = 0.02) -> None:
        """Wait until `condition` returns true. Raises RuntimeError if a worker ends, or after `_PATIENCE` seconds."""
        deadline = time.monotonic() + _PATIENCE
        while not condition():
            ended = any(not worker.is_running() or worker.status() == psutil.STATUS_ZOMBIE for worker in self._workers)
            if ended or time.monotonic() > deadline:
                raise RuntimeError((self._place.folder / "peer.log").read_text()[-2000:])
            time.sleep(pause)

    def _words(self, verb: str, operand: object) -> list[str]:
        return [*self._command, verb, self._place.url, str(operand)]
