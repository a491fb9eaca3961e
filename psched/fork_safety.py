"""What a process that was forked off makes anew: connections, locks, conditions and flags. In clients that fork.

Only the thread that forks goes on in the new process. A lock that another thread held is held there for good, a flag
that another thread would have taken back stays, and an answer that another thread waits for is the parent's. So what
several threads share registers here, and makes anew in the new process what a thread may have been amid. Two
processes that speak on one connection read each other's answers, and to close it would end the parent's session; so
connections are left alone, for good, and new ones are made. SQLite's are closed before the fork.

Tasks do not register: they belong to the process that took them, and refuse every other before they take a lock.
"""

from __future__ import annotations

import os
import threading
import time
from typing import Generic, Protocol, TypeVar
from weakref import WeakSet

T = TypeVar("T")


class Shared(Protocol):
    """Something that threads share, and that a process which was forked off cannot use as it is."""

    def begin_anew(self) -> None:
        """In a process that was forked off: make locks and flags anew, and leave the parent's connections as they are.

        Takes no lock, asks no database and raises nothing: any of its parts may be as a thread that is gone left it.
        """
        ...


class Closing(Protocol):
    """Connections of a library that keeps locks and state of its own for all connections of a process (SQLite)."""

    @property
    def fork_patience(self) -> float:
        """The seconds that a fork waits for what is amid work on the connections."""
        ...

    def close_before_fork(self) -> None:
        """Close the connections that are not at work. No thread begins work until the process has forked."""
        ...


class WorkLock:
    """Held by any number of threads at work, or by a thread that forks, alone. A thread at work may enter again."""

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
        """Keep other threads from beginning work, and wait up to `seconds` until none is at work."""
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

    def begin_anew(self) -> None:
        """In a process that was forked off: know of the calling thread only."""
        me = threading.get_ident()
        self._entry = threading.Lock()
        self._alone = None
        self._working = [thread for thread in self._working if thread == me]


class _Registered(Generic[T]):
    """What is to be told of a fork, while it lives: threads add to it, and the one that forks copies it."""

    def __init__(self) -> None:
        self._lock = threading.RLock()  # its holder may be interrupted by a signal, and fork then
        self._members: WeakSet[T] = WeakSet()

    def add(self, member: T) -> None:
        with self._lock:
            self._members.add(member)

    def copy(self) -> list[T]:
        with self._lock:
            return list(self._members)

    def begin_anew(self) -> None:
        self._lock = threading.RLock()


_shared: _Registered[Shared] = _Registered()
_closing: _Registered[Closing] = _Registered()

work_on_closing = WorkLock()
"""Entered for all work on connections that are closed before a fork."""


def register_for_fork(shared: Shared) -> None:
    """Let `shared` begin anew in each process that is forked off from now on."""
    _shared.add(shared)


def close_before_fork(closing: Closing) -> None:
    """Let `closing` close its connections before each fork from now on; work on them enters `work_on_closing`."""
    _closing.add(closing)


def _before() -> None:
    closing = _closing.copy()
    work_on_closing.take_alone(max((each.fork_patience for each in closing), default=0))
    for each in closing:
        each.close_before_fork()


def _after_in_child() -> None:
    _shared.begin_anew()
    _closing.begin_anew()
    work_on_closing.begin_anew()
    for shared in _shared.copy():
        shared.begin_anew()


os.register_at_fork(before=_before, after_in_parent=work_on_closing.give_back, after_in_child=_after_in_child)
