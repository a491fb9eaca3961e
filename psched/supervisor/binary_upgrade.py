"""Binary upgrade: a new master takes over once its children are up. In the old and in the new master.

The new master is exec'ed as the old one was. It inherits a pipe, on which it reports that it is ready, and the
descriptor of the locked pid file. Until it is ready, and when it fails, the old master goes on unchanged.
"""

from __future__ import annotations

import logging
import math
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from selectors import EVENT_READ, BaseSelector

from psched.supervisor.child import kill_tree
from psched.supervisor.master_status import RequestStatus
from psched.supervisor.pidfile import PidFile
from psched.supervisor.systemd import Notifier

log = logging.getLogger(__name__)

HANDOFF_VARIABLE = "PSCHED_TAKEOVER"
_READY = b"ready"


@dataclass(frozen=True, slots=True)
class ExecCommand:
    """Starts this program again: the arguments of the interpreter, and the working directory."""

    arguments: tuple[str, ...]
    folder: Path


@dataclass(frozen=True, slots=True)
class UpgradeHandoff:
    """Inherited by the new master: the descriptors of the pipe and of the pid file, and the old master's pid."""

    pipe: int
    lock: int | None
    old_pid: int

    @classmethod
    def from_environment(cls) -> UpgradeHandoff | None:
        if HANDOFF_VARIABLE not in os.environ:
            return None
        pipe, lock, old_pid = os.environ[HANDOFF_VARIABLE].split(":")
        os.set_inheritable(int(pipe), False)
        return cls(int(pipe), int(lock) if lock else None, int(old_pid))


def hold_pid_file(path: Path) -> PidFile:
    """Inherit the lock from the old master, or acquire it. Raises AlreadyRunningError and PidFileError."""
    handoff = UpgradeHandoff.from_environment()
    if handoff is None or handoff.lock is None:
        return PidFile.acquire(path)
    return PidFile.adopt(path, handoff.lock)


class NewMaster:
    """In the old master: the new master, from its start until it is ready or has failed."""

    def __init__(
        self, command: ExecCommand, lock: int | None, environ: Mapping[str, str], limit: float, now: float
    ) -> None:
        """Start it. `lock`: the pid file's descriptor. `limit`: seconds it has to become ready. Raises OSError."""
        self.deadline = now + limit
        self._limit = limit
        self.pipe, writer = os.pipe()
        """Readable when the new master is ready or gone."""
        os.set_blocking(self.pipe, False)
        try:
            self._process = subprocess.Popen(
                [sys.executable, *command.arguments],
                cwd=command.folder,
                env={**environ, HANDOFF_VARIABLE: f"{writer}:{'' if lock is None else lock}:{os.getpid()}"},
                pass_fds=[writer] if lock is None else [writer, lock],
            )
        except OSError:
            os.close(self.pipe)
            raise
        finally:
            os.close(writer)
        self.pid = self._process.pid

    def is_ready(self) -> bool:
        try:
            return os.read(self.pipe, len(_READY)) == _READY
        except BlockingIOError:
            return False

    def failure(self, now: float) -> str | None:
        code = self._process.poll()
        if code is not None:
            return f"it ended with exit code {code}" if code >= 0 else f"it was killed by signal {-code}"
        if now >= self.deadline:
            self.abort()
            return f"it was not ready within {self._limit:g} s"
        return None

    def abort(self) -> None:
        if self._process.poll() is None:
            kill_tree(self.pid)
            self._process.wait()


@dataclass(slots=True)
class BinaryUpgrade:
    """Starts a new master, or takes over from an old one; owns the pid file."""

    selector: BaseSelector
    command: ExecCommand
    pid_file: PidFile | None
    handoff: UpgradeHandoff | None
    notifier: Notifier
    limit: float
    request: RequestStatus = field(default_factory=RequestStatus)
    immediate: bool = False
    """Whether running tasks are stopped and given back when the new master takes over."""
    _new_master: NewMaster | None = None
    _takeover: NewMaster | None = None
    _old_pid: int = 0
    _status: str = ""

    @property
    def active(self) -> bool:
        return self._new_master is not None

    @property
    def deadline(self) -> float:
        return math.inf if self._new_master is None else self._new_master.deadline

    def processes(self) -> set[int]:
        return {new.pid for new in (self._new_master, self._takeover) if new is not None}

    @property
    def old_is_alive(self) -> bool:
        """Whether the replaced master still waits for the tasks of its workers."""
        return self._old_pid != 0 and os.getppid() == self._old_pid

    def stop_old(self, immediate: bool) -> None:
        """Pass a stop on to the old master: a service manager stops the new one alone."""
        if self.old_is_alive:
            log.info("stopping the old master (pid %d), which still runs tasks", self._old_pid)
            with suppress(ProcessLookupError):
                os.kill(self._old_pid, signal.SIGQUIT if immediate else signal.SIGTERM)

    def begin(self) -> None:
        """Write the pid file, unless there is an old master that it still names."""
        if self.handoff is None:
            self._write_pid_file()

    def came_up(self) -> None:
        """Take over from the old master, if there is one."""
        if self.handoff is not None:
            self._write_pid_file()
            with suppress(BrokenPipeError):  # the old master may be gone already
                os.write(self.handoff.pipe, _READY)
            os.close(self.handoff.pipe)
            self._old_pid = self.handoff.old_pid
            self.handoff = None

    def start(self, immediate: bool, now: float) -> None:
        """While a new master is starting, a second call can only make the upgrade immediate."""
        if self._new_master is not None:
            self.immediate = self.immediate or immediate
            return
        self.immediate = immediate
        lock = None if self.pid_file is None else self.pid_file.descriptor
        environ = {**os.environ, **self.notifier.environment()}
        try:
            self._new_master = NewMaster(self.command, lock, environ, self.limit, now)
        except OSError as error:
            folder = self.command.folder
            self._refuse(f"cannot execute {sys.executable} in {folder}: {error.strerror}")
        else:
            self.selector.register(self._new_master.pipe, EVENT_READ)
            log.info("a new master is starting (pid %d)", self._new_master.pid)

    def tick(self, now: float) -> bool:
        """Supervise the new master; True once, when it has taken over."""
        new = self._new_master
        if new is None:
            return False
        if new.is_ready():
            self._hand_over(new)
            return True
        failure = new.failure(now)
        if failure is not None:
            self._refuse(f"{failure}; the messages of the new master are in the log")
            self._forget(new)
            self._write_pid_file()
        return False

    def abort(self, why: str) -> None:
        """End the new master, unless it has taken over: then it may have passed on the stop that leads here."""
        new = self._new_master
        if new is None:
            return
        if new.is_ready():
            self._hand_over(new)
            return
        new.abort()
        self._forget(new)
        self.request.end(why)

    def publish(self, status: str) -> None:
        """Write `status` beside the pid, if it is new. While a new master is starting, the file is not written."""
        if status != self._status:
            self._status = status
            if self._new_master is None and self.handoff is None:
                try:
                    self._write_pid_file()
                except OSError as error:
                    log.warning("cannot write the pid file: %s; commands get no outcome", error.strerror)

    def end(self) -> None:
        """Empty the pid file, unless it names another master. Its lock stands until this process is gone."""
        if self.handoff is not None:
            os.close(self.handoff.pipe)
        elif self.pid_file is not None:
            self.pid_file.clear()
        self.pid_file = None

    def close_in_child(self) -> None:
        if self.pid_file is not None:
            self.pid_file.close()
        if self.handoff is not None:
            os.close(self.handoff.pipe)
        if self._new_master is not None:
            os.close(self._new_master.pipe)

    def _hand_over(self, new: NewMaster) -> None:
        log.info("the new master is up (pid %d); this one stops", new.pid)
        self.notifier.mainpid(new.pid)
        self.notifier.address = None  # from now on the new master reports
        self.request.end(None)
        self._forget(new)
        self._takeover = new
        if self.pid_file is not None:
            self.pid_file.close()
            self.pid_file = None

    def _refuse(self, reason: str) -> None:
        self.request.end(reason)
        log.error("upgrade refused: %s; this master goes on", reason)

    def _forget(self, new: NewMaster) -> None:
        self.selector.unregister(new.pipe)
        os.close(new.pipe)
        self._new_master = None

    def _write_pid_file(self) -> None:
        if self.pid_file is not None:
            self.pid_file.write(os.getpid(), self._status)
