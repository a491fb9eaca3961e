"""The pid file: a lock that is held for life, and beside it the process id to signal. Used by pschedd and the master.

Who runs is told by the lock alone, so a stale file is no obstacle and names nobody. The lock is an flock, which belongs
to the open file description: it survives fork and exec, and is gone when the last process that has the descriptor
closes it. So a binary replace hands the descriptor on, and children close theirs.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import time
from contextlib import ExitStack
from pathlib import Path

_MODE = 0o640  # who may open a file may also lock it, and so pass for the daemon
_PATIENCE = 1.0
_PAUSE = 0.02


class PidFileError(Exception):
    """The pid file cannot be used; the message says why and what to do."""


class AlreadyRunningError(PidFileError):
    """Another process holds the pid file's lock. `pid` is what the file says."""

    def __init__(self, path: Path, pid: int) -> None:
        super().__init__(f"already running with pid {pid} ({path})")
        self.pid = pid


class PidFile:
    """The lock of one running daemon. Made by `acquire`, or by `adopt` in the program that replaces it."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path = path
        self.descriptor = descriptor

    @classmethod
    def acquire(cls, path: Path) -> PidFile:
        """Lock the file, creating it if need be. Its content is what it was until `write`.

        Raises AlreadyRunningError, and PidFileError when the path cannot be used safely.
        """
        while True:
            with ExitStack() as undo:
                pid_file = cls(path, _open(path, os.O_RDWR | os.O_CREAT))
                undo.callback(pid_file.close)
                pid_file._take()
                if _is_at(path, pid_file.descriptor):  # else its holder removed it between our open and our lock
                    undo.pop_all()
                    return pid_file

    @classmethod
    def adopt(cls, path: Path, descriptor: int) -> PidFile:
        """Take over a lock that was inherited as `descriptor` and close it on exec from now on."""
        os.set_inheritable(descriptor, False)
        return cls(path, descriptor)

    def _take(self) -> None:
        try:
            if not _lock(self.descriptor, fcntl.LOCK_EX, _PATIENCE):
                raise AlreadyRunningError(self.path, _await_pid(self.path, self.descriptor))
            os.fchmod(self.descriptor, _MODE)
        except OSError as error:
            raise _explained(self.path, error) from error

    def write(self, pid: int) -> None:
        """Make `pid` the process that `read_running` names."""
        text = f"{pid}\n".encode()
        os.pwrite(self.descriptor, text, 0)
        os.ftruncate(self.descriptor, len(text))

    def inheritable(self) -> int:
        """Return the descriptor, made to survive exec, for the program that is going to `adopt` it."""
        os.set_inheritable(self.descriptor, True)
        return self.descriptor

    def close(self) -> None:
        """Let go of this process's copy. The lock stands while another process has the descriptor."""
        os.close(self.descriptor)

    def remove(self) -> None:
        """End the lock and remove the file; where the folder forbids that (privileges were dropped), empty it."""
        try:
            if _is_at(self.path, self.descriptor):
                self.path.unlink()
        except PermissionError:
            os.ftruncate(self.descriptor, 0)
        self.close()


def read_running(path: Path) -> int | None:
    """Return the process id of the daemon that holds the lock, or None when nobody does.

    Raises PidFileError when the file cannot be trusted, read, or is locked by a process that does not write its id.
    """
    try:
        descriptor = _open(path, os.O_RDONLY)
    except PidFileError as error:
        if isinstance(error.__cause__, FileNotFoundError):
            return None
        raise
    try:
        if _lock(descriptor, fcntl.LOCK_SH, 0):
            return None
        return _await_pid(path, descriptor)
    finally:
        os.close(descriptor)


def is_stale(path: Path) -> bool:
    """Tell whether the file was left by a process that died without removing it: it names a pid, nobody holds it."""
    return path.exists() and read_running(path) is None and bool(path.read_bytes().strip())


def _open(path: Path, flags: int) -> int:
    try:
        descriptor = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, _MODE)
    except OSError as error:
        raise _explained(path, error) from error
    try:
        _check_trust(path, os.fstat(descriptor))
    except PidFileError:
        os.close(descriptor)
        raise
    return descriptor


def _check_trust(path: Path, found: os.stat_result) -> None:
    """Refuse a file through which somebody else could make us signal a process of his choice."""
    if not stat.S_ISREG(found.st_mode):
        raise PidFileError(f"pid file {path} is not a regular file; name another one (pid_file)")
    if found.st_mode & stat.S_IWOTH:
        raise PidFileError(f"pid file {path} may be written by anybody; remove it, or chmod o-w")
    if os.geteuid() == 0 and found.st_nlink > 1:
        raise PidFileError(f"pid file {path} has {found.st_nlink} hard links; remove it")


def _explained(path: Path, error: OSError) -> PidFileError:
    if error.errno == errno.ELOOP:
        return PidFileError(f"pid file {path} is a symbolic link; remove it, or name its target (pid_file)")
    return PidFileError(f"pid file {path}: {error.strerror}; choose another place (pid_file) or another user")


def _lock(descriptor: int, operation: int, patience: float) -> bool:
    """Try until `patience` seconds are over: `read_running` of another process holds the lock for an instant."""
    deadline = time.monotonic() + patience
    while True:
        try:
            fcntl.flock(descriptor, operation | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= deadline:
                return False
            time.sleep(_PAUSE)
        else:
            return True


def _await_pid(path: Path, descriptor: int) -> int:
    """Read the pid; its writer may be between locking and writing."""
    deadline = time.monotonic() + _PATIENCE
    while True:
        text = os.pread(descriptor, 32, 0).decode("ascii", "replace").strip()
        if text.isdecimal() and int(text) > 1:
            return int(text)
        if time.monotonic() >= deadline:
            raise PidFileError(f"pid file {path} is locked, but names no process: {text!r}")
        time.sleep(_PAUSE)


def _is_at(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(path.lstat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False
