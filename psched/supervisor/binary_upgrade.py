"""Binary upgrade: a new master takes over when its children are up. Used in the old and in the new master.

The new master is started by the same command as the old one. It inherits a pipe, on which it reports that it is ready,
and the descriptor of the locked pid file. Until the new master is ready, the old master continues unchanged. If the new
master fails, the old master keeps running.
"""

from __future__ import annotations

import logging
import math
import os
import signal
import subprocess
import sys
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
_IS_INIT = "this master is process 1: if it ended, its container would end, too; start a new container instead"


@dataclass(frozen=True, slots=True)
class ExecCommand:
    """Starts this program again, in the same folder and with the same arguments of the Python interpreter."""

    arguments: tuple[str, ...]
    folder: Path


@dataclass(frozen=True, slots=True)
class UpgradeHandoff:
    """What the new master inherits: the descriptors of the pipe and of the pid file, and the old master's pid."""

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
    """Take over the pid file's lock from the old master, or acquire it. Raises AlreadyRunningError and PidFileError."""
    handoff = UpgradeHandoff.from_environment()
    if handoff is None or handoff.lock is None:
        return PidFile.acquire(path)
    return PidFile.adopt(path, handoff.lock)


@dataclass(slots=True)
class BinaryUpgrade:
    """Starts a new master, or takes over from an old master. Owns the pid file."""

    selector: BaseSelector
    command: ExecCommand
    pid_file: PidFile | None
    handoff: UpgradeHandoff | None
    notifier: Notifier
    limit: float
    request: RequestStatus = field(default_factory=RequestStatus)
    immediate: bool = False
    """Whether running tasks are stopped and released when the new master takes over."""
    deadline: float = math.inf
    """If the new master is not ready by this time (monotonic seconds), it is killed."""
    _new_master: subprocess.Popen[bytes] | None = None
    _pipe: int | None = None
    """A descriptor that is readable when the new master is ready or has ended; None while no new master is starting."""
    _old_pid: int = 0
    _status: str = ""

    @property
    def active(self) -> bool:
        return self._pipe is not None

    def processes(self) -> set[int]:
        return set() if self._new_master is None else {self._new_master.pid}

    @property
    def old_is_alive(self) -> bool:
        """Whether the replaced master still waits for the running tasks of its workers."""
        return self._old_pid != 0 and os.getppid() == self._old_pid

    def stop_old(self, immediate: bool) -> None:
        """Stop the replaced master, too, because a service manager signals only the new one."""
        if self.old_is_alive:
            log.info("stopping the old master (pid %d), which still runs tasks", self._old_pid)
            with suppress(ProcessLookupError):
                os.kill(self._old_pid, signal.SIGQUIT if immediate else signal.SIGTERM)

    def begin(self) -> None:
        """Write the pid file. In a new master do nothing: until `came_up`, the file names the old master."""
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
        """Start a new master.

        While the new master is starting, a further call starts no second new master, but can make the upgrade
        immediate.
        """
        self.immediate = immediate or (self.active and self.immediate)
        if self.active:
            return
        if os.getpid() == 1:
            self._refuse(_IS_INIT)
            return
        reader, writer = os.pipe()
        os.set_blocking(reader, False)
        lock = None if self.pid_file is None else self.pid_file.descriptor
        handoff = f"{writer}:{'' if lock is None else lock}:{os.getpid()}"
        try:
            self._new_master = subprocess.Popen(
                [sys.executable, *self.command.arguments],
                cwd=self.command.folder,
                env={**os.environ, **self.notifier.environment(), HANDOFF_VARIABLE: handoff},
                pass_fds=[writer] if lock is None else [writer, lock],
            )
        except OSError as error:
            os.close(reader)
            self._refuse(f"cannot execute {sys.executable} in {self.command.folder}: {error.strerror}")
        else:
            self._pipe, self.deadline = reader, now + self.limit
            self.selector.register(reader, EVENT_READ)
            log.info("a new master is starting (pid %d)", self._new_master.pid)
        finally:
            os.close(writer)

    def tick(self, now: float) -> bool:
        """Supervise the new master. Return True only once: when the new master has taken over."""
        new = self._new_master
        if new is None or not self.active:
            return False
        if self._hand_over_if_ready(new):
            return True
        code = new.poll()
        if code is None and now < self.deadline:
            return False
        self._kill(new)
        if code is None:
            failure = f"the new master was not ready within {self.limit:g} s"
        else:
            end = f"ended with exit code {code}" if code >= 0 else f"was killed by signal {-code}"
            failure = f"the new master {end}"
        self._refuse(f"{failure}; its messages are in the log")
        self._write_pid_file()
        return False

    def abort(self, why: str) -> None:
        """Kill the new master if it is not ready yet.

        A new master that is ready has taken over. It may itself have sent this process the stop signal.
        """
        new = self._new_master
        if new is not None and self.active and not self._hand_over_if_ready(new):
            self._kill(new)
            self.request.end(why)

    def publish(self, status: str) -> None:
        """Write a changed `status` into the pid file. While a new master is starting, the file is not written."""
        if status != self._status:
            self._status = status
            if not self.active and self.handoff is None:
                try:
                    self._write_pid_file()
                except OSError as error:
                    log.warning("cannot write the pid file: %s; pschedd cannot show the status", error.strerror)

    def end(self) -> None:
        """If the pid file names this process, empty it. This process keeps the lock until it has ended."""
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
        if self._pipe is not None:
            os.close(self._pipe)

    def _hand_over_if_ready(self, new: subprocess.Popen[bytes]) -> bool:
        try:
            if self._pipe is None or os.read(self._pipe, len(_READY)) != _READY:
                return False
        except BlockingIOError:
            return False
        log.info("the new master is up (pid %d); this master stops", new.pid)
        self.notifier.notify(MAINPID=new.pid)  # systemd accepts MAINPID only from the present main process
        self.notifier.address = None  # from now on the new master reports
        self.request.end(None)
        self._close_pipe()
        if self.pid_file is not None:
            self.pid_file.close()
            self.pid_file = None
        return True

    def _refuse(self, reason: str) -> None:
        self.request.end(reason)
        log.error("upgrade refused: %s; this master continues", reason)

    def _kill(self, new: subprocess.Popen[bytes]) -> None:
        if new.poll() is None:
            kill_tree(new.pid)
            new.wait()
        self._new_master = None
        self._close_pipe()

    def _close_pipe(self) -> None:
        if self._pipe is not None:
            self.selector.unregister(self._pipe)
            os.close(self._pipe)
        self._pipe, self.deadline = None, math.inf

    def _write_pid_file(self) -> None:
        if self.pid_file is not None:
            self.pid_file.write(os.getpid(), self._status)
