"""Becoming a process of one's own after a fork: group, input, and the wish to die with the master. In children."""

from __future__ import annotations

import atexit
import logging
import os
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from selectors import EVENT_READ, BaseSelector

from psched.clock import Clock, monotonic
from psched.process.channel import ChildPipe, MasterPipe, open_pipes
from psched.process.linux import signal_at_death_of_parent
from psched.process.signals import VERBS, SignalQueue
from psched.supervisor.child import ChildProcess
from psched.supervisor.oom_kills import OomKills
from psched.supervisor.orphans import OrphanReaper
from psched.telemetry import emit


def be_own_process(master: int) -> None:
    """Lead a process group of our own, read nothing from the terminal, and be told when the master dies.

    The kernel's word (Linux) is a second belt beside the end of the orders pipe. It comes when the *thread* that
    forked us ends; the master has one only. It is blocked until the child has its signal queue.
    """
    os.setpgid(0, 0)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    if nothing != 0:
        os.close(nothing)
    signal_at_death_of_parent(signal.SIGQUIT)
    if os.getppid() != master:  # it died before we asked
        os.kill(os.getpid(), signal.SIGQUIT)


log = logging.getLogger(__name__)

Job = Callable[[ChildPipe], int]
"""What a child does, up to its exit code. It is called with the signals in `VERBS` blocked."""

_CRASHED = 70
_BLOCKED = VERBS | {signal.SIGCHLD}


class ProcessTable:
    """Every process of this master."""

    def __init__(
        self,
        selector: BaseSelector,
        signals: SignalQueue,
        disown: Callable[[], None],
        others: Callable[[], set[int]],
        clock: Clock = monotonic,
        oom_kills: OomKills | None = None,
    ) -> None:
        """`disown` is called in each child, and closes what else must not be inherited.

        `others`: the pids of this process's children that were not forked here, and are no orphans either.
        """
        self._selector = selector
        self._signals = signals
        self._disown = disown
        self._others = others
        self._clock = clock
        self._oom_kills = OomKills() if oom_kills is None else oom_kills
        self._living: set[ChildProcess] = set()
        self._strays = OrphanReaper()
        self._forsaken = False

    @property
    def deadline(self) -> float:
        """When `tick` is due at the latest."""
        return self._strays.deadline

    def fork(self, name: str, job: Job) -> ChildProcess:
        """Fork a child that does `job` and never returns. Raises OSError when the system has no process left.

        Signals are blocked meanwhile: one that reached the child before it has handlers of its own would be written
        to the master's queue.
        """
        ends, theirs = open_pipes()
        master = os.getpid()
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, _BLOCKED)
        try:
            pid = os.fork()
            if pid == 0:
                self._live(job, ends, ChildPipe(*theirs), master)
        except OSError:
            ends.close()
            raise
        finally:
            for descriptor in theirs[:2]:
                os.close(descriptor)
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        now = self._clock()
        child = ChildProcess(name, pid, ends, born=now, heard=now)
        self._living.add(child)
        emit("fork", name=name, pid=pid)
        self._selector.register(ends.words, EVENT_READ, child)
        return child

    def tick(self, now: float) -> None:
        """Hear every child, and bury those that are dead, with what they had started if they died by accident."""
        for child in list(self._living):
            if child.hear(now):
                self._strays.expect(now)
            gone = child.reap(now)
            if gone and child.killed and not child.killed_here:
                child.out_of_memory = self._oom_kills.take()
            if gone or child.ends.ended:
                self._unwatch(child)
            if gone:
                child.ends.close()
                self._living.remove(child)
                emit("child_exit", name=child.name, pid=child.pid, code=child.code, reason=child.end)
                self._forsaken = self._forsaken or (child.ready and not child.left)
        self._oom_kills.look(now)
        ours = {child.pid for child in self._living} | self._others()
        if self._forsaken:
            self._forsaken = False
            self._strays.kill_new(ours)
        self._strays.look(ours, now)

    def _unwatch(self, child: ChildProcess) -> None:
        if child.ends.words in self._selector.get_map():
            self._selector.unregister(child.ends.words)

    def _live(self, job: Job, masters: MasterPipe, ours: ChildPipe, master: int) -> None:
        """Be the child; never return into the master's code."""
        code = _CRASHED
        try:
            masters.close_pipes()
            self._forget_master()
            be_own_process(master)
            code = job(ours)
        except BaseException:
            log.critical("a child ends by an error of psched's own", exc_info=True)
        finally:
            _flush()
            os._exit(code)

    def _forget_master(self) -> None:
        """Close the master's ends of every sibling's pipes: else a sibling's death, or the master's, goes unseen."""
        atexit._clear()
        self._signals.abandon()
        self._selector.close()
        for sibling in self._living:
            sibling.ends.close()
        self._disown()


def _flush() -> None:
    """Write out what a handler printed; it may have closed the files, too."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):
            stream.flush()
