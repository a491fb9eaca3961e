"""A nursery on paper: its children's words come through real pipes, but no process is forked. In the test process."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from selectors import DefaultSelector

from psched.application import ApplicationSpec
from psched.config import from_mapping
from psched.process.channel import ChildPipe, open_pipes
from psched.process.signals import SignalQueue
from psched.supervisor.child import ChildProcess
from psched.supervisor.forking import Job, ProcessTable
from psched.supervisor.reload import LoadedConfig

_NOBODY = 0
_KILLED = -9


class PaperChild(ChildProcess):
    """A child that does what the test says. `voice`: its ends of the pipes."""

    reporter: ChildPipe

    def leave(self, code: int) -> None:
        """Let it end."""
        self.code = code

    def kill(self, because: str = "") -> None:
        """Kill nobody: it has ended."""
        self.code = _KILLED


class PaperNursery(ProcessTable):
    """Has children, at the time that the test sets as `now` (monotonic seconds)."""

    def __init__(self) -> None:
        super().__init__(DefaultSelector(), SignalQueue(), lambda: None, set, lambda: self.now)
        self.now = 100.0
        self.born: list[PaperChild] = []

    def fork(self, name: str, job: Job) -> ChildProcess:
        """Write a child down."""
        ends, theirs = open_pipes()
        child = PaperChild(name, _NOBODY, ends, born=self.now, heard=self.now)
        child.reporter = ChildPipe(*theirs)
        self.born.append(child)
        return child

    def tick(self, now: float) -> None:
        """Hear every child."""
        for child in self.born:
            child.hear(now)

    def close(self) -> None:
        """Close all pipes."""
        self._selector.close()
        self._signals.uninstall()
        for child in self.born:
            child.ends.close_pipes()
            child.reporter.close()


@contextmanager
def paper_nursery() -> Iterator[PaperNursery]:
    """Give a nursery whose pipes are closed at the end."""
    process_table = PaperNursery()
    try:
        yield process_table
    finally:
        process_table.close()


def plan_of(folder: Path, **config: object) -> LoadedConfig:
    """Return a plan of a section on SQLite; nothing opens it."""
    return LoadedConfig(
        from_mapping({"type": "rdb", "url": f"sqlite:///{folder}/psched.db", **config}), ApplicationSpec()
    )
