"""The master's children: forks them, reaps them, and kills the orphans of crashed children."""

from __future__ import annotations

import atexit
import logging
import math
import os
import signal
import sys
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from selectors import EVENT_READ, BaseSelector

import psutil

from psched.child.main import child_main
from psched.clock import Clock, monotonic
from psched.config import Settings
from psched.process.child_base import ChildBase
from psched.process.child_protocol import ChildPipe, MasterPipe, open_pipes
from psched.process.child_spec import ChildSpec
from psched.process.escalation import Escalation
from psched.process.linux import signal_at_death_of_parent
from psched.process.logs import Log
from psched.process.signals import MASTER_SIGNALS, SignalQueue
from psched.supervisor.child import ChildProcess, OomKills
from psched.telemetry import emit

log = logging.getLogger(__name__)

_CRASHED = 70
_INTERVAL = 1.0
"""Seconds between two searches for orphans."""


class OrphanReaper:
    """Kills the processes that the handlers of a crashed child have left running.

    Linux makes the master the parent of a dead child's descendants, in any session or group. An orphan that appears
    just after a child has crashed belonged to that child. The orphan is killed before the child's leases are released:
    otherwise it could continue to work on a task that another worker runs again. An orphan that appears at any other
    time was left running on purpose, such as a daemon that a command started, and is not killed.

    The master looks for orphans every second while tasks run, and within a second after a run has ended. A program that
    becomes an orphan between the last look and a crash is killed, too. Children that existed before this object are
    ignored.
    """

    def __init__(self) -> None:
        self._before = _children()
        self._known: set[int] = set()
        self._next_look = 0.0
        self.deadline = math.inf
        """The latest time of the next `look`, in monotonic seconds."""

    def look_soon(self, now: float) -> None:
        """Let the next `look` follow in a second, because a run has ended.

        A child reports at most one ended run a second, so further runs may end without a report.
        """
        self.deadline = now + _INTERVAL

    def look(self, ours: Collection[int], now: float) -> None:
        """Reap dead orphans, and remember the living ones. Do nothing within a second after the last look.

        `ours`: the children that are not orphans.
        """
        if now >= self._next_look:
            self._next_look = now + _INTERVAL
            self.deadline = math.inf if now >= self.deadline else max(self.deadline, self._next_look)
            self._known = set(self._reap(_children() - self._before - set(ours)))

    def kill_new(self, ours: Collection[int]) -> None:
        """Kill each orphan that no `look` has found, with its descendants. `ours`: as for `look`."""
        for pid in self._reap(_children() - self._before - self._known - set(ours)):
            with suppress(psutil.Error):
                orphan = psutil.Process(pid)
                family = [orphan, *orphan.children(recursive=True)]
                log.warning("killing a process left by a dead child: %s (pid %d)", orphan.name(), pid)
                for process in family:
                    process.kill()

    def _reap(self, pids: Iterable[int]) -> Iterable[int]:
        """Reap the dead processes among `pids`, and yield the living ones."""
        for pid in pids:
            with suppress(ChildProcessError):
                if os.waitpid(pid, os.WNOHANG) == (0, 0):
                    yield pid


def _children() -> set[int]:
    """Return the children of this process. The main thread has forked all of them."""
    try:
        return {int(word) for word in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()}
    except OSError:
        return set()


@dataclass
class ProcessTable:
    selector: BaseSelector
    signals: SignalQueue
    log_file: Log
    close_in_child: Callable[[], None]
    other_children: Callable[[], set[int]]
    """Returns the pids of other children of this process. These children are not orphans."""
    clock: Clock = monotonic
    _master: int = field(default_factory=os.getpid)
    _oom_kills: OomKills = field(default_factory=OomKills)
    _children: set[ChildProcess] = field(default_factory=set)
    _orphans: OrphanReaper = field(default_factory=OrphanReaper)

    @property
    def deadline(self) -> float:
        return min(self._orphans.deadline, *(child.escalation.deadline for child in self._children), math.inf)

    def fork(
        self,
        name: str,
        settings: Settings,
        make: Callable[[ChildPipe], ChildBase],
        spec: ChildSpec | None = None,
        lifetime: float = math.inf,
    ) -> ChildProcess:
        """Fork a child that runs `make(pipe)`, and kill it after `lifetime` seconds. Raises OSError.

        Signals are blocked during the fork: until the child has installed its own handlers, a signal sent to the child
        would be written to the master's queue.
        """
        pipe, child_pipe = open_pipes()
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, MASTER_SIGNALS | {signal.SIGCHLD})
        try:
            pid = os.fork()
            if pid == 0:
                self._run_child(pipe, partial(child_main, name, settings, child_pipe, self.log_file, make))
        except OSError:
            pipe.close()
            raise
        finally:
            child_pipe.close()
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        now = self.clock()
        escalation = Escalation(settings, now, lifetime)
        child = ChildProcess(name, pid, pipe, escalation, now, spec)
        self._children.add(child)
        emit("fork", name=name, pid=pid)
        self.selector.register(pipe.messages, EVENT_READ, child)
        return child

    def tick(self, now: float) -> None:
        """Receive messages of the children, send the orders that are due, reap dead children and kill their orphans."""
        has_crashed = False
        for child in list(self._children):
            if child.receive(now):
                self._orphans.look_soon(now)
            gone = child.reap(now)
            if gone and child.was_sigkilled and not child.killed_here:
                child.out_of_memory = self._oom_kills.take()
            if (gone or child.pipe.ended) and child.pipe.messages in self.selector.get_map():
                self.selector.unregister(child.pipe.messages)
            if not gone:
                child.escalate(now)
            else:
                child.pipe.close()
                self._children.remove(child)
                emit("child_exit", name=child.name, pid=child.pid, code=child.code, reason=child.end, cause=child.cause)
                has_crashed = has_crashed or (child.ready and not child.left)
        self._oom_kills.look(now)
        ours = {child.pid for child in self._children} | self.other_children()
        if has_crashed:
            self._orphans.kill_new(ours)
        self._orphans.look(ours, now)

    def reset_deadlines(self, now: float) -> None:
        for child in self._children:
            child.escalation.host_resumed(now)

    def reopen_logs(self) -> None:
        self.log_file.reopen()
        for child in self._children:
            child.pipe.send(signal.SIGUSR2)

    def _run_child(self, master_pipe: MasterPipe, main: Callable[[], int]) -> None:
        """Run the child and exit. Never return, because the caller is code of the master."""
        code = _CRASHED
        try:
            master_pipe.close_pipes()
            self._forget_master()
            _leave_master_group(self._master)
            code = main()
        except BaseException:
            log.critical("internal error of psched; this child ends", exc_info=True)
        finally:
            for stream in (sys.stdout, sys.stderr):
                with suppress(Exception):  # a handler may have closed the pipe
                    stream.flush()
            os._exit(code)

    def _forget_master(self) -> None:
        """Close the master's ends of all siblings' pipes, so that the death of a sibling or the master is noticed."""
        atexit._clear()
        self.signals.abandon()
        self.selector.close()
        for sibling in self._children:
            sibling.pipe.close()
        self.close_in_child()


def _leave_master_group(master: int) -> None:
    """Create a process group, read nothing from the terminal, and let the kernel send SIGQUIT when the master dies.

    The death signal exists only on Linux. It is a second safeguard besides the end of the orders pipe. The kernel sends
    it when the *thread* that forked this process ends. The master has only one thread. The signal is blocked until the
    child has its signal queue.
    """
    os.setpgid(0, 0)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    if nothing != 0:
        os.close(nothing)
    signal_at_death_of_parent(signal.SIGQUIT)
    if os.getppid() != master:  # the master died before the death signal was set
        os.kill(os.getpid(), signal.SIGQUIT)
