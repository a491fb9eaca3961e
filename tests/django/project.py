"""A copy of the sample project in examples/django, and methods by which a test controls it."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import psutil

from faultlab.forkserver_client import Process, start
from tests.daemon.harness import wait_for
from tests.programs import ROOT

HERE = Path(__file__).parent

_SETTINGS = """\
import os
from shop.settings import *

if "TEST_NAME" in os.environ:
    DATABASES["default"]["TEST"] = {"NAME": os.environ["TEST_NAME"]}
INSTALLED_APPS += ["promises"]
PSCHED["app"] = [PSCHED["app"], "promises.jobs:app"]
PSCHED |= {"processors": 1, "poll_interval": 0.1, "child_fork_frequency_limit": 0, "child_kill_interval": 0.5}
"""
_SET_UP = "import django, json, os\ndjango.setup()\n"


class Project:
    """The sample project with another app, `promises`, and with the settings file `tested.py`."""

    def __init__(self, folder: Path, database_url: str | None, settings: str = "") -> None:
        """Copy the project and make its tables.

        `database_url`: None for SQLite. `settings`: lines added to the settings.
        """
        self.folder = folder / "project"
        skipped = shutil.ignore_patterns("__pycache__", "*.sqlite3*", "psched.*")
        shutil.copytree(ROOT / "examples/django", self.folder, ignore=skipped)
        shutil.copytree(HERE / "promises", self.folder / "promises", ignore=skipped)
        self.environ = {**os.environ, "DJANGO_SETTINGS_MODULE": "tested", "PYTHONPATH": str(ROOT)}
        self.environ.pop("PYTHONWARNINGS", None)
        if database_url is not None:
            self.environ["DATABASE_URL"] = database_url
            self.environ["TEST_NAME"] = database_url.rpartition("/")[2]
        self.configure(settings)

    def configure(self, settings: str) -> None:
        """Write the settings file: the sample's settings, followed by these lines."""
        (self.folder / "tested.py").write_text(_SETTINGS + settings)

    def manage(self, *words: str, code: int = 0) -> str:
        """Run manage.py, check its exit code, and return what it prints."""
        return self.run("manage.py", *words, code=code)

    def python(self, program: str) -> Any:
        """Run Python code with Django set up. Return the JSON value in the last line that it prints, if any."""
        (self.folder / "program.py").write_text(f"{_SET_UP}{program}")
        printed = self.run("program.py").splitlines()
        return json.loads(printed[-1]) if printed else None

    @contextmanager
    def worker(self, *words: str) -> Iterator[psutil.Process]:
        """Run `manage.py psched run`. Yield the master when its children are up, and stop it at the end."""
        with (self.folder / "worker.out").open("ab") as output:
            process = self._start("manage.py", "psched", "run", *words, output=output)
        master = psutil.Process(process.pid)
        try:
            wait_for(lambda: "up: " in self.log or process.poll() is not None, lambda: self.log + self.output, 40)
            assert process.poll() is None, self.log + self.output
            yield master
            process.send_signal(signal.SIGTERM)
            assert process.wait(30) == 0, self.log
        finally:
            if process.poll() is None:
                for each in [*master.children(recursive=True), master]:
                    each.kill()
                process.wait()

    @property
    def output(self) -> str:
        """The output of `worker`."""
        return (self.folder / "worker.out").read_text()

    @property
    def log(self) -> str:
        """The daemon's log."""
        file = self.folder / "psched.log"
        return file.read_text() if file.exists() else ""

    def run(self, file: str, *words: str, code: int = 0) -> str:
        """Run a Python program of the project, check its exit code, and return what it prints."""
        with tempfile.TemporaryFile() as output:
            process = self._start(file, *words, output=output)
            try:
                ended = process.wait(100)
            except subprocess.TimeoutExpired:
                process.kill()
                raise
            output.seek(0)
            printed = output.read().decode()
        assert ended == code, printed
        return printed

    def _start(self, file: str, *words: str, output: IO[bytes]) -> Process:
        return start([str(self.folder / file), *words], self.folder, self.environ, stdout=output, stderr=output)
