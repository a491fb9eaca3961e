"""Faults of single workers: they are killed, freeze, run out of something or end themselves. In the test process."""

from __future__ import annotations

import contextlib
import resource
from collections.abc import Iterator
from typing import ClassVar

import psutil

from faultlab.trials.fault import TrialFault

_ROOM = 1 << 20
"""Bytes of address space that a worker has left when its memory is limited."""


class ChildFault(TrialFault):
    """Strikes workers, whichever node they are of."""

    subject = "child"

    def some_worker(self) -> psutil.Process | None:
        """Return a worker, and note that it is touched; None when there is none just now."""
        workers = [worker for node in self.environment.nodes.values() for worker in node.workers()]
        if not workers:
            return None
        worker = self.rng.choice(workers)
        self.pids.add(worker.pid)
        return worker


class Kill(ChildFault):
    """kill -9, one worker after the other."""

    kind = "child: kill -9"

    def begin(self) -> None:
        self.go_on()

    def go_on(self) -> None:
        if worker := self.some_worker():
            with _gone():
                worker.kill()


class Freeze(ChildFault):
    """SIGSTOP until after the lease, then SIGCONT, if there is anybody left to continue."""

    kind = "child: SIGSTOP past the lease"
    lasts = (9.0, 11.0)
    froze = True

    def begin(self) -> None:
        self.worker = self.some_worker()
        if self.worker:
            with _gone():
                self.worker.suspend()

    def heal(self) -> None:
        if self.worker:
            with _gone():
                self.worker.resume()


class _Limited(ChildFault):
    """A resource of a living worker is limited to what it has, and a little."""

    what: ClassVar[int]

    def begin(self) -> None:
        self.worker = self.some_worker()
        if self.worker:
            with _gone():
                self.before = self.worker.rlimit(self.what)
                self.worker.rlimit(self.what, (self.present(self.worker), self.before[1]))

    def present(self, worker: psutil.Process) -> int:
        """Return what the limit is to be."""
        raise NotImplementedError

    def heal(self) -> None:
        if self.worker:
            with _gone():
                self.worker.rlimit(self.what, self.before)


class Memory(_Limited):
    """No more memory."""

    kind = "child: out of memory"
    what = resource.RLIMIT_AS

    def present(self, worker: psutil.Process) -> int:
        return int(worker.memory_info().vms) + _ROOM


class Descriptors(_Limited):
    """No more descriptors."""

    kind = "child: out of descriptors"
    what = resource.RLIMIT_NOFILE

    def present(self, worker: psutil.Process) -> int:
        return worker.num_fds()


class Misdeeds(ChildFault):
    """Handlers that end their worker, leave processes behind, or raise. What else their worker ran is cut off, too."""

    kind = "child: os._exit, forks, exceptions"

    def begin(self) -> None:
        self.all_nodes()
        for _ in range(3):
            for type_ in ("exit", "flaky", "bomb"):
                self.submitter.order(type_)


@contextlib.contextmanager
def _gone() -> Iterator[None]:
    """Do nothing when the process has ended meanwhile."""
    with contextlib.suppress(psutil.NoSuchProcess, ProcessLookupError):
        yield
