"""Binary replace: a new master takes over once its children are up. In the old and in the new one.

The new one is exec'ed as the old one was. The two are joined by a pipe on which the new one says that it is ready, and
by the pid file's lock, whose descriptor it inherits. Until then the old one goes on as if nothing were, and so it does
when the new one fails.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
from collections.abc import Mapping, MutableMapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from psched.daemon.pidfile import PidFile
from psched.daemon.signals import VERBS

log = logging.getLogger(__name__)

_VARIABLE = "PSCHED_TAKEOVER"
_READY = b"ready"
_NOT_EXECUTABLE = 127


@dataclass(frozen=True, slots=True)
class Command:
    """How to start this program once more: arguments for the interpreter, and the folder to do it in."""

    arguments: tuple[str, ...]
    folder: Path

    @classmethod
    def same_again(cls) -> Command:
        """Return the command that started this process. Ask before the working directory changes."""
        return cls(tuple(sys.orig_argv[1:]), Path.cwd())


@dataclass(frozen=True, slots=True)
class Takeover:
    """In the new master: what it was given by the old one."""

    channel: int
    lock: int | None
    old: int = 0
    """The old master's pid."""

    @classmethod
    def look_up(cls, environ: Mapping[str, str]) -> Takeover | None:
        """Return what the environment tells, or None in a master that replaces nobody."""
        channel, lock, old = [*environ.get(_VARIABLE, "").split(":"), "", ""][:3]
        if not channel.isdecimal():
            return None
        return cls(int(channel), int(lock) if lock else None, int(old) if old else 0)

    @classmethod
    def claim(cls, environ: MutableMapping[str, str]) -> Takeover | None:
        """As `look_up`, and remove it, so that no child of ours takes itself for a master."""
        takeover = cls.look_up(environ)
        environ.pop(_VARIABLE, None)
        if takeover is not None:
            os.set_inheritable(takeover.channel, False)
        return takeover

    def ready(self) -> None:
        """Tell the old master to go. If it is gone already there is nobody left to tell."""
        with suppress(BrokenPipeError):
            os.write(self.channel, _READY)
        self.close()

    def close(self) -> None:
        """Close the channel; in children, too."""
        os.close(self.channel)


def hold_pid_file(path: Path, environ: Mapping[str, str]) -> PidFile:
    """Return the lock on the pid file: inherited in a master that replaces another, acquired in any other.

    Raises AlreadyRunningError and PidFileError.
    """
    takeover = Takeover.look_up(environ)
    if takeover is None or takeover.lock is None:
        return PidFile.acquire(path)
    return PidFile.adopt(path, takeover.lock)


class Replacement:
    """In the old master: the new one, from its start until it is ready or has failed."""

    def __init__(
        self, command: Command, lock: int | None, environ: Mapping[str, str], limit: float, now: float
    ) -> None:
        """Start it. `lock`: the pid file's descriptor. `limit`: seconds it has to become ready. Raises OSError."""
        self.pid = 0
        self.immediate = False
        """Whether running tasks are to be given back when it takes over."""
        self._reader, writer = os.pipe()
        os.set_blocking(self._reader, False)
        os.set_inheritable(writer, True)
        variables = {**environ, _VARIABLE: f"{writer}:{'' if lock is None else lock}:{os.getpid()}"}
        self._over = now + limit
        self._limit = limit
        try:
            self.pid = _start(command, variables)
        except OSError:
            os.close(self._reader)
            raise
        finally:
            os.close(writer)

    @property
    def deadline(self) -> float:
        """When its time is up, monotonic."""
        return self._over

    @property
    def channel(self) -> int:
        """The descriptor that is readable when it is ready or gone."""
        return self._reader

    def is_ready(self) -> bool:
        """Tell whether it can take over."""
        try:
            return os.read(self._reader, len(_READY)) == _READY
        except BlockingIOError:
            return False

    def failure(self, now: float) -> str | None:
        """Say how it failed, or None while it has not."""
        pid, status = os.waitpid(self.pid, os.WNOHANG)
        if pid != 0:
            self.pid = 0
            code = os.waitstatus_to_exitcode(status)
            return f"it ended with exit code {code}" if code >= 0 else f"it was killed by signal {-code}"
        if now >= self._over:
            self.abort()
            return f"it was not ready within {self._limit:g} s"
        return None

    def abort(self) -> None:
        """Kill it with its children."""
        if self.pid == 0:
            return
        family = psutil.Process(self.pid).children(recursive=True)
        os.kill(self.pid, signal.SIGKILL)
        for process in family:
            with suppress(psutil.Error):  # it is gone, or runs as somebody whom we may not kill
                process.kill()
        os.waitpid(self.pid, 0)
        self.pid = 0

    def close(self) -> None:
        """Close our end of the channel; in children, too."""
        os.close(self._reader)


def _start(command: Command, variables: Mapping[str, str]) -> int:
    """Fork and exec. What is not inheritable, all pipes of ours, is closed by the exec."""
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, VERBS)
    pid = os.fork()
    if pid == 0:
        _exec(command, variables)
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    return pid


def _exec(command: Command, variables: Mapping[str, str]) -> None:
    try:
        signal.set_wakeup_fd(-1)
        for number in VERBS | {signal.SIGCHLD}:
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, VERBS)
        os.chdir(command.folder)
        os.execve(sys.executable, [sys.executable, *command.arguments], variables)  # noqa: S606 – no shell is wanted
    except OSError as error:
        log.error("cannot execute %s in %s: %s", sys.executable, command.folder, error)
    finally:
        os._exit(_NOT_EXECUTABLE)
