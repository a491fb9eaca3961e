"""Faults of single workers and fetching children: they are killed, freeze, run out of a resource, or end themselves.

Runs in the test process.
"""

from __future__ import annotations

import contextlib
import resource
from collections.abc import Iterator
from typing import ClassVar

import psutil

from faultlab.trials.fault import TrialFault
from faultlab.trials.node import TrialNode

_ROOM = 1 << 20
"""Bytes of address space that a worker may still allocate when its memory is limited."""


class ChildFault(TrialFault):
    """A fault of workers, of any node."""

    subject = "child"

    def candidates(self, node: TrialNode) -> list[psutil.Process]:
        """Return the processes of a node that the fault may strike."""
        return node.workers()

    def some_child(self) -> psutil.Process | None:
        """Return one of the candidates of all nodes, and record that the fault touches it; None if there is none."""
        children = [child for node in self.environment.nodes.values() for child in self.candidates(node)]
        if not children:
            return None
        child = self.rng.choice(children)
        self.pids.add(child.pid)
        return child


class Kill(ChildFault):
    """SIGKILL for one worker after another."""

    kind = "child: kill -9"

    def begin(self) -> None:
        self.go_on()

    def go_on(self) -> None:
        if worker := self.some_child():
            with _gone():
                worker.kill()


class Freeze(ChildFault):
    """SIGSTOP until the lease has ended, then SIGCONT, if the process still exists."""

    kind = "child: SIGSTOP past the lease"
    lasts = (9.0, 11.0)
    froze = True

    def begin(self) -> None:
        self.worker = self.some_child()
        if self.worker:
            with _gone():
                self.worker.suspend()

    def heal(self) -> None:
        if self.worker:
            with _gone():
                self.worker.resume()


class KillFetcher(Kill):
    """SIGKILL for one fetching child after another."""

    kind = "fetcher: kill -9"
    subject = "fetcher"
    excuses = False

    def candidates(self, node: TrialNode) -> list[psutil.Process]:
        return node.fetchers()


class FreezeFetcher(Freeze):
    """SIGSTOP. The master kills a fetching child that is frozen for longer than 3 s."""

    kind = "fetcher: SIGSTOP"
    subject = "fetcher"
    excuses = False

    def candidates(self, node: TrialNode) -> list[psutil.Process]:
        return node.fetchers()


class _Limited(ChildFault):
    """Limits a resource of a worker to what the worker uses now, and a little more."""

    what: ClassVar[int]

    def begin(self) -> None:
        self.worker = self.some_child()
        if self.worker:
            with _gone():
                self.before = self.worker.rlimit(self.what)
                self.worker.rlimit(self.what, (self.present(self.worker), self.before[1]))

    def present(self, worker: psutil.Process) -> int:
        """Return the limit to set."""
        raise NotImplementedError

    def heal(self) -> None:
        if self.worker:
            with _gone():
                self.worker.rlimit(self.what, self.before)


class Memory(_Limited):
    """A worker gets no more memory."""

    kind = "child: out of memory"
    what = resource.RLIMIT_AS

    def present(self, worker: psutil.Process) -> int:
        return int(worker.memory_info().vms) + _ROOM


class Descriptors(_Limited):
    """A worker gets no more file descriptors."""

    kind = "child: out of descriptors"
    what = resource.RLIMIT_NOFILE

    def present(self, worker: psutil.Process) -> int:
        return worker.num_fds()


class Misdeeds(ChildFault):
    """Handlers that end their worker, leave processes behind, or raise. The worker's other runs are cut off, too."""

    kind = "child: os._exit, forks, exceptions"

    def begin(self) -> None:
        self.all_nodes()
        for _ in range(3):
            for type_ in ("exit", "flaky", "bomb"):
                self.submitter.order(type_)


@contextlib.contextmanager
def _gone() -> Iterator[None]:
    """Ignore that the process has ended in the meantime."""
    with contextlib.suppress(psutil.NoSuchProcess, ProcessLookupError):
        yield
