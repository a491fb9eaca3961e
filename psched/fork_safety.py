"""Replaces locks, flags and connections in a forked process, for clients and handlers that fork.

A forked process has only the thread that called `fork`. A lock that another thread held would stay held, and a flag
that another thread had to reset would stay set. So objects that threads share register here. In the forked process,
their `reset_after_fork` replaces their locks and flags.

Parent and child must not use one connection: each would read answers meant for the other. So the forked process opens
its own connections, and does not touch the connections of the parent. SQLite's connections are closed before the fork.

Tasks do not register. A task belongs to the process that acquired it. In any other process its methods raise before
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
    """An object that threads share. A forked process cannot use the object's locks and connections."""

    def reset_after_fork(self) -> None:
        """In a forked process: create new locks and flags, and do not touch the parent's connections.

        Must take no lock, send nothing to the database and raise nothing, because a thread of the parent may have been
        changing the object during the fork.
        """


class ClosedBeforeFork(Protocol):
    """Connections to close before a fork. Their library, such as SQLite, has locks and state of the whole process."""

    @property
    def fork_patience(self) -> float:
        """The maximum number of seconds that a fork waits for work on the connections to end."""

    def close_before_fork(self) -> None:
        """Close the idle connections. No thread begins work on them until the process has forked."""


class WorkLock:
    """A reentrant shared lock. Threads that work on connections share it, and a thread that forks holds it alone."""

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
        """Keep other threads from beginning work. Then wait up to `seconds` until no other thread is at work."""
        self._entry.acquire()
        self._alone = threading.get_ident()
        end = time.monotonic() + seconds
        while set(self._working) - {threading.get_ident()} and time.monotonic() < end:
            time.sleep(0.001)

    def give_back(self) -> None:
        """If this thread holds the lock alone, let other threads work again."""
        if self._alone == threading.get_ident():
            self._alone = None
            self._entry.release()

    def reset_after_fork(self) -> None:
        """In a forked process: forget the threads that exist only in the parent."""
        me = threading.get_ident()
        self._entry = threading.Lock()
        self._alone = None
        self._working = [thread for thread in self._working if thread == me]


_registering = threading.RLock()  # held during a fork; reentrant: a signal handler may fork while its thread holds it
_fork_aware: WeakSet[ForkAware] = WeakSet()
_closed_before_fork: WeakSet[ClosedBeforeFork] = WeakSet()

work_on_closing = WorkLock()
"""Held during all work on connections that are closed before a fork."""


def register_for_fork(fork_aware: ForkAware) -> None:
    """From now on, call `fork_aware.reset_after_fork` in each forked process.

    Keeps only a weak reference to the object.
    """
    with _registering:
        _fork_aware.add(fork_aware)


def close_before_fork(closing: ClosedBeforeFork) -> None:
    """Call `closing.close_before_fork` before each fork from now on.

    A thread that works on the connections of `closing` must hold `work_on_closing`.
    """
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
    """Reset all objects, even if the reset of one object fails. Python prints the exception and continues."""
    work_on_closing.reset_after_fork()
    with ExitStack() as stack:
        stack.callback(_registering.release)
        for fork_aware in list(_fork_aware):
            stack.callback(fork_aware.reset_after_fork)


os.register_at_fork(before=_before, after_in_parent=_after_in_parent, after_in_child=_after_in_child)
