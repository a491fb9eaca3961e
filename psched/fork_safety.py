"""Replaces locks, flags and connections in a forked process, for clients and handlers that fork.

Only the thread that forks continues in the new process. There a lock held by another thread would stay held, and a flag
would stay set if another thread had to reset it. So objects that several threads share register here, and
`reset_after_fork` replaces such parts in the new process.

Two processes that use one connection read each other's answers, and closing the connection would end the parent's
session. So the new process leaves the parent's connections alone and opens its own. SQLite's connections are closed
before the fork.

Tasks do not register. A task belongs to the process that acquired it; in any other process its methods raise before
they take a lock.
"""

from __future__ import annotations

import os
import threading
import time
from contextlib import ExitStack
from typing import Protocol
from weakref import WeakSet


class ForkAware(Protocol):
    """An object that threads share, and that a forked process cannot use as it is."""

    def reset_after_fork(self) -> None:
        """In a forked process: make locks and flags anew, and leave the parent's connections as they are.

        Takes no lock, asks no database and raises nothing: a thread of the parent may have left any part half changed.
        """


class ClosedBeforeFork(Protocol):
    """Connections of a library that keeps locks and state of its own for all connections of a process (SQLite)."""

    @property
    def fork_patience(self) -> float:
        """The seconds that a fork waits for work on the connections."""

    def close_before_fork(self) -> None:
        """Close the idle connections. No thread begins work until the process has forked."""


class WorkLock:
    """A lock held by any number of threads at work, or by one thread that forks. A thread at work may enter again."""

    def __init__(self) -> None:
        self._entry = threading.Lock()
        self._working: list[int] = []
        self._alone: int | None = None

    def __enter__(self) -> None:
        me = threading.get_ident()
        if me in self._working:
            self._working.append(me)
        else:
            with self._entry:
                self._working.append(me)

    def __exit__(self, *error: object) -> None:
        self._working.remove(threading.get_ident())

    def take_alone(self, seconds: float) -> None:
        """Keep other threads from beginning work, and wait up to `seconds` until none of them is at work."""
        self._entry.acquire()
        self._alone = threading.get_ident()
        end = time.monotonic() + seconds
        while set(self._working) - {threading.get_ident()} and time.monotonic() < end:
            time.sleep(0.001)

    def give_back(self) -> None:
        """Let work begin again, if this thread has taken the lock alone."""
        if self._alone == threading.get_ident():
            self._alone = None
            self._entry.release()

    def reset_after_fork(self) -> None:
        """In a forked process: forget all threads but the calling one."""
        me = threading.get_ident()
        self._entry = threading.Lock()
        self._alone = None
        self._working = [thread for thread in self._working if thread == me]


_registering = threading.RLock()  # held over a fork; a signal handler may fork while its own thread holds it
_fork_aware: WeakSet[ForkAware] = WeakSet()
_closed_before_fork: WeakSet[ClosedBeforeFork] = WeakSet()

work_on_closing = WorkLock()
"""Held by all work on connections that are closed before a fork."""


def register_for_fork(fork_aware: ForkAware) -> None:
    """Call `reset_after_fork` of `fork_aware` in each process that is forked from now on, as long as it lives."""
    with _registering:
        _fork_aware.add(fork_aware)


def close_before_fork(closing: ClosedBeforeFork) -> None:
    """Let `closing` close its connections before each fork from now on; work on them enters `work_on_closing`."""
    with _registering:
        _closed_before_fork.add(closing)


def _before() -> None:
    _registering.acquire()
    work_on_closing.take_alone(max((closing.fork_patience for closing in list(_closed_before_fork)), default=0))
    for closing in list(_closed_before_fork):
        closing.close_before_fork()


def _after_in_parent() -> None:
    work_on_closing.give_back()
    _registering.release()


def _after_in_child() -> None:
    """Reset all objects, also after one that fails. Python prints what is raised here, and continues."""
    work_on_closing.reset_after_fork()
    with ExitStack() as stack:
        stack.callback(_registering.release)
        for fork_aware in list(_fork_aware):
            stack.callback(fork_aware.reset_after_fork)


os.register_at_fork(before=_before, after_in_parent=_after_in_parent, after_in_child=_after_in_child)
