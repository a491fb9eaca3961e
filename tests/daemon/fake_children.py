"""A process table whose children are not processes. Their messages come through real pipes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from selectors import DefaultSelector

from psched.application import ApplicationSpec
from psched.config import Settings, from_mapping
from psched.process.child_base import ChildBase
from psched.process.child_protocol import ChildPipe, open_pipes
from psched.process.child_spec import ChildSpec
from psched.process.escalation import Escalation
from psched.process.logs import Log
from psched.process.signals import SignalQueue
from psched.supervisor.child import ChildProcess
from psched.supervisor.fork_and_reap import ProcessTable
from psched.supervisor.loaded_config import LoadedConfig

_NO_PID = 0
_KILLED = -9


class FakeChild(ChildProcess):
    """A child that does what the test requests. `child_pipe`: the child's ends of the pipes."""

    child_pipe: ChildPipe

    def leave(self, code: int) -> None:
        """End with an exit code."""
        self.code = code

    def kill(self, because: str = "") -> None:
        """End as if killed."""
        self.killed_because = because
        self.code = _KILLED


class FakeProcessTable(ProcessTable):
    """Records the children that it forks. The test sets the time, as `now` (monotonic seconds)."""

    def __init__(self) -> None:
        super().__init__(DefaultSelector(), SignalQueue(), Log(None), lambda: None, set, lambda: self.now)
        self.now: float = 100.0
        self.forked: list[FakeChild] = []

    def fork(
        self,
        name: str,
        settings: Settings,
        make: Callable[[ChildPipe], ChildBase],
        spec: ChildSpec | None = None,
        lifetime: float = math.inf,
    ) -> ChildProcess:
        """Record a child, without a process."""
        pipe, child_pipe = open_pipes()
        escalation = Escalation(settings, self.now, lifetime)
        child = FakeChild(name, _NO_PID, pipe, escalation, self.now, spec)
        child.child_pipe = child_pipe
        self.forked.append(child)
        self._children.add(child)
        return child

    def tick(self, now: float) -> None:
        """Receive the messages of each child. Send the order that is due to it, or record that it is killed."""
        for child in self.forked:
            child.receive(now)
            if child.gone:
                self._children.discard(child)
            else:
                child.escalate(now)

    def close(self) -> None:
        """Close all pipes."""
        self.selector.close()
        self.signals.uninstall()
        for child in self.forked:
            child.pipe.close_pipes()
            child.child_pipe.close()


@contextmanager
def fake_process_table() -> Iterator[FakeProcessTable]:
    """Yield a process table whose pipes are closed at the end."""
    process_table = FakeProcessTable()
    try:
        yield process_table
    finally:
        process_table.close()


def sqlite_config(folder: Path, **config: object) -> LoadedConfig:
    """Return a configuration whose only section uses SQLite. The database is never opened."""
    return LoadedConfig(
        from_mapping({"type": "rdb", "url": f"sqlite:///{folder}/psched.db", **config}), ApplicationSpec()
    )
