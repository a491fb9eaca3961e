"""Runs psched's command line in a folder of its own: in this process, or as a process."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from faultlab import forkserver_client
from psched.cli.main import main
from tests.programs import ROOT, install_programs


@dataclass(frozen=True)
class Outcome:
    """The result of a command: its exit code, and its output."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """Standard output, parsed as JSON."""
        return json.loads(self.out)


class Commands:
    """Runs `psched …` with `etc/psched.yml` as the configuration."""

    def __init__(self, folder: Path, capture: pytest.CaptureFixture[str], *group: str) -> None:
        """`group`: words with which every command begins."""
        self.folder = folder
        self._capture = capture
        self._group = group

    def below(self, *group: str) -> Commands:
        """Return an object that runs the commands of a group, in the same folder."""
        return Commands(self.folder, self._capture, *group)

    def configure(self, text: str) -> None:
        """Write the configuration file."""
        (self.folder / "etc").mkdir(exist_ok=True)
        (self.folder / "etc" / "psched.yml").write_text(text)

    def use(self, url: str, more: str = "") -> None:
        """Write a configuration whose only environment, `development`, uses the database `url`."""
        self.configure(f"development:\n  type: rdb\n  url: {url}\n{more}")

    def __call__(self, *arguments: str) -> Outcome:
        """Run a command in this process."""
        self._capture.readouterr()
        code = main((*self._group, *arguments))
        return Outcome(code, *self._capture.readouterr())

    def ok(self, *arguments: str) -> Outcome:
        """Run a command that must succeed and write nothing to standard error."""
        outcome = self(*arguments)
        assert (outcome.code, outcome.err) == (0, "")
        return outcome

    def fault(self, *arguments: str) -> str:
        """Run a command that must fail. Return the one line that it writes to standard error."""
        outcome = self(*arguments)
        assert (outcome.code, outcome.out, outcome.err.count("\n")) == (1, "", 1), outcome
        return outcome.err.removeprefix("psched: ").rstrip("\n")

    def start(self, *arguments: str, **options: Any) -> forkserver_client.Process:
        """Start a command as a process, whose output is buffered, as it is outside the tests."""
        environment = {**os.environ, "PYTHONPATH": str(ROOT), **options.pop("env", {})}
        environment.pop("PYTHONUNBUFFERED", None)
        programs = self.folder.parent / "programs"
        if not programs.exists():
            install_programs(programs)
        return forkserver_client.start(
            [str(programs / "psched"), *self._group, *arguments], self.folder, environment, **options
        )
