"""Binary replace: a new master takes over once its children are up. In the old and in the new one.

The new one is exec'ed as the old one was. The two are joined by a pipe on which the new one says that it is ready, and
by the pid file's lock, whose descriptor it inherits. Until then the old one goes on as if nothing were, and so it does
when the new one fails.
"""

from __future__ import annotations

import logging
import math
import os
import signal
import sys
from collections.abc import Mapping, MutableMapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from selectors import EVENT_READ, BaseSelector

import psutil

from psched.process.signals import VERBS
from psched.supervisor.pidfile import PidFile
from psched.supervisor.systemd import Notifier

log = logging.getLogger(__name__)

_VARIABLE = "PSCHED_TAKEOVER"
_READY = b"ready"
_NOT_EXECUTABLE = 127


@dataclass(frozen=True, slots=True)
class ExecCommand:
    """How to start this program once more: arguments for the interpreter, and the folder to do it in."""

    arguments: tuple[str, ...]
    folder: Path

    @classmethod
    def same_again(cls) -> ExecCommand:
        """Return the command that started this process. Ask before the working directory changes."""
        return cls(tuple(sys.orig_argv[1:]), Path.cwd())


@dataclass(frozen=True, slots=True)
class UpgradeHandoff:
    """In the new master: what it was given by the old one."""

    channel: int
    lock: int | None
    old: int = 0
    """The old master's pid."""

    @classmethod
    def look_up(cls, environ: Mapping[str, str]) -> UpgradeHandoff | None:
        """Return what the environment tells, or None in a master that replaces nobody."""
        channel, lock, old = [*environ.get(_VARIABLE, "").split(":"), "", ""][:3]
        if not channel.isdecimal():
            return None
        return cls(int(channel), int(lock) if lock else None, int(old) if old else 0)

    @classmethod
    def claim(cls, environ: MutableMapping[str, str]) -> UpgradeHandoff | None:
        """As `look_up`, and remove it, so that no child of ours takes itself for a master."""
        handoff = cls.look_up(environ)
        environ.pop(_VARIABLE, None)
        if handoff is not None:
            os.set_inheritable(handoff.channel, False)
        return handoff

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
    handoff = UpgradeHandoff.look_up(environ)
    if handoff is None or handoff.lock is None:
        return PidFile.acquire(path)
    return PidFile.adopt(path, handoff.lock)


class NewMaster:
    """In the old master: the new one, from its start until it is ready or has failed."""

    def __init__(
        self, command: ExecCommand, lock: int | None, environ: Mapping[str, str], limit: float, now: float
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


def _start(command: ExecCommand, variables: Mapping[str, str]) -> int:
    """Fork and exec. What is not inheritable, all pipes of ours, is closed by the exec."""
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, VERBS)
    pid = os.fork()
    if pid == 0:
        _exec(command, variables)
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    return pid


def _exec(command: ExecCommand, variables: Mapping[str, str]) -> None:
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


class BinaryUpgrade:
    """The claim of this process to be the master. `limit`: seconds that a new master has to become ready."""

    def __init__(
        self,
        selector: BaseSelector,
        command: ExecCommand,
        pid_file: PidFile | None,
        handoff: UpgradeHandoff | None,
        notifier: Notifier,
        limit: float,
    ) -> None:
        self._selector = selector
        self._command = command
        self._pid_file = pid_file
        self._takeover = handoff
        self._notifier = notifier
        self._limit = limit
        self._replacement: NewMaster | None = None
        self._heir = 0
        self._old = 0
        self._report = ""
        self.refusal: str | None = None
        """Why the last new master that was asked for has not taken over; None when it has, or is starting."""
        self.immediate = False
        """Whether running tasks are to be given back when the new master takes over."""

    @property
    def active(self) -> bool:
        """Whether a new master is starting."""
        return self._replacement is not None

    @property
    def deadline(self) -> float:
        """When `tick` is due at the latest, monotonic."""
        return math.inf if self._replacement is None else self._replacement.deadline

    def processes(self) -> set[int]:
        """Return the new master's pid, while one is starting or has taken over; else nothing."""
        return set() if self._heir == 0 else {self._heir}

    @property
    def old_is_alive(self) -> bool:
        """Whether the master that this one has replaced is still there, for the tasks its workers run."""
        return self._old != 0 and os.getppid() == self._old

    def stop_old(self, immediate: bool) -> None:
        """Pass a stop on to the master that this one has replaced: a service manager stops the new one alone."""
        if self.old_is_alive:
            log.info("the master that was replaced (pid %d) still runs tasks and is told to stop, too", self._old)
            with suppress(ProcessLookupError):
                os.kill(self._old, signal.SIGQUIT if immediate else signal.SIGTERM)

    def begin(self) -> None:
        """Write the pid file, unless there is an old master that it still names."""
        if self._takeover is None:
            self._sign()

    def came_up(self) -> None:
        """The children are up: relieve the old master, if there is one."""
        if self._takeover is not None:
            self._sign()
            self._takeover.ready()
            self._old = self._takeover.old
            self._takeover = None

    def ask(self, immediate: bool, now: float) -> None:
        """Start a new master. Asking again while one is starting can only make it immediate."""
        if self._replacement is not None:
            self.immediate = self.immediate or immediate
            return
        self.immediate = immediate
        self.refusal = None
        lock = None if self._pid_file is None else self._pid_file.inheritable()
        environ = {**os.environ, **self._notifier.environment()}
        try:
            self._replacement = NewMaster(self._command, lock, environ, self._limit, now)
        except OSError as error:
            self.refusal = f"cannot start a new master: {error.strerror}"
            log.error("not replaced: %s", self.refusal)
        else:
            self._heir = self._replacement.pid
            self._selector.register(self._replacement.channel, EVENT_READ)
            log.info("a new master is starting (pid %d)", self._replacement.pid)
        finally:
            if lock is not None:
                os.set_inheritable(lock, False)

    def tick(self, now: float) -> bool:
        """Watch the new master; True once, when it has taken over."""
        replacement = self._replacement
        if replacement is None:
            return False
        if replacement.is_ready():
            self._hand_over(replacement)
            return True
        failure = replacement.failure(now)
        if failure is not None:
            log.error("not replaced: %s; the messages of the new master are in the log; this master goes on", failure)
            self.refusal = failure
            self._forget(replacement)
            self._sign()
        return False

    def abort(self) -> None:
        """End a new master that has not taken over."""
        if self._replacement is not None:
            self._replacement.abort()
            self._forget(self._replacement)
            self.refusal = "this master is stopping"

    def publish(self, report: str) -> None:
        """Write `report` beside our pid, if it is new; while a new master is starting the file is not ours to write."""
        if report != self._report:
            self._report = report
            if self._replacement is None and self._takeover is None:
                try:
                    self._sign()
                except OSError as error:
                    log.warning("the pid file cannot be written: %s; commands do not learn of outcomes", error.strerror)

    def end(self) -> None:
        """Name this process in the pid file no more, unless the file has become another's, or is an old master's.

        The file's lock stands until this process is gone.
        """
        if self._takeover is not None:
            self._takeover.close()
        elif self._pid_file is not None:
            self._pid_file.sign_off()
        self._pid_file = None

    def disown(self) -> None:
        """In a child: close what makes the master the master."""
        if self._pid_file is not None:
            self._pid_file.close()
        if self._takeover is not None:
            self._takeover.close()
        if self._replacement is not None:
            self._replacement.close()

    def _hand_over(self, replacement: NewMaster) -> None:
        log.info("the new master is up (pid %d); this one stops", replacement.pid)
        self._notifier.mainpid(replacement.pid)
        self._notifier.address = None  # from now on the new one speaks
        self._forget(replacement)
        if self._pid_file is not None:
            self._pid_file.close()
            self._pid_file = None

    def _forget(self, replacement: NewMaster) -> None:
        self._selector.unregister(replacement.channel)
        replacement.close()
        self._replacement = None
        self._heir = replacement.pid

    def _sign(self) -> None:
        """Write our pid and the report into the pid file. Raises OSError."""
        if self._pid_file is not None:
            self._pid_file.write(os.getpid(), self._report)
