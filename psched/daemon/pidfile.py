"""The pid file: a lock that is held for life, and beside it the process id to signal. Used by pschedd and the master.

Who runs is told by the lock alone, so a stale file is no obstacle and names nobody. The lock is an flock, which belongs
to the open file description: it survives fork and exec, and is gone when the last process that has the descriptor
closes it. So a binary replace hands the descriptor on, and children close theirs.

The pid in the file is a claim of the user's who may write it, and root's commands read it. It is believed of a process
that runs as the file's owner and holds the lock; nothing else is signalled.
"""

from __future__ import annotations

import errno
import fcntl
import os
import pwd
import signal
import stat
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import psutil

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
            self.give_to(os.geteuid(), os.getegid())
        except OSError as error:
            raise _explained(self.path, error) from error

    def give_to(self, uid: int, gid: int) -> None:
        """Make this user the file's owner: the one that the process is going to run as. Only root can give it away."""
        found = os.fstat(self.descriptor)
        if os.geteuid() == 0 and (found.st_uid, found.st_gid) != (uid, gid):
            os.fchown(self.descriptor, uid, gid)

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

    Raises PidFileError when the file cannot be trusted or read, or is locked and names another process.
    """
    with _locked_by_other(path) as descriptor:
        return None if descriptor is None else _await_holder(path, descriptor).pid


def signal_running(path: Path, number: int) -> int | None:
    """Signal the daemon that holds the lock and return its process id, or None when nobody does.

    Whatever the file says, no process is signalled but one that runs as the file's owner and holds the lock. Raises
    PidFileError as `read_running` does, and PermissionError.
    """
    with _locked_by_other(path) as descriptor:
        if descriptor is None:
            return None
        holder = _await_holder(path, descriptor)
        try:
            _send(holder, number)
        except ProcessLookupError:
            return None
        return holder.pid


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


@contextmanager
def _locked_by_other(path: Path) -> Iterator[int | None]:
    """Yield a descriptor of the file while somebody holds its lock; None when nobody does."""
    try:
        descriptor = _open(path, os.O_RDONLY)
    except PidFileError as error:
        if isinstance(error.__cause__, FileNotFoundError):
            yield None
            return
        raise
    try:
        yield None if _lock(descriptor, fcntl.LOCK_SH, 0) else descriptor
    finally:
        os.close(descriptor)


def _await_pid(path: Path, descriptor: int) -> int:
    """Read the pid; its writer may be between locking and writing."""
    deadline = time.monotonic() + _PATIENCE
    while True:
        text = os.pread(descriptor, 32, 0).decode("ascii", "replace").partition("\n")[0].strip()
        if text.isdecimal() and int(text) > 1:
            return int(text)
        if time.monotonic() >= deadline:
            raise PidFileError(f"pid file {path} is locked, but names no process: {text!r}")
        time.sleep(_PAUSE)


def _await_holder(path: Path, descriptor: int) -> psutil.Process:
    """Return the process that the file names, once that is the daemon.

    The lock's holder may not have written its own pid yet, or be about to become the user it runs as. Raises
    PidFileError when it stays another process.
    """
    deadline = time.monotonic() + _PATIENCE
    while True:
        pid = _await_pid(path, descriptor)
        process, doubt = _look_at(pid, os.fstat(descriptor))
        if process is not None:
            return process
        if time.monotonic() >= deadline:
            raise PidFileError(f"pid file {path} names process {pid}, {doubt}; nothing was signalled")
        time.sleep(_PAUSE)


def _look_at(pid: int, file: os.stat_result) -> tuple[psutil.Process | None, str]:
    """Return the process `pid` if it may be the daemon of this pid file, else why it is not."""
    try:
        process = psutil.Process(pid)  # it knows when the process began, and so is not deceived when the pid is reused
        found = {*process.uids()}
        holds_lock = _holds_lock(pid, file)
    except psutil.Error:
        return None, "which does not run"
    if found != {file.st_uid}:
        return None, f"which runs as {_user(max(found - {file.st_uid}))} while the file is {_user(file.st_uid)}'s"
    if not holds_lock:
        return None, "which does not hold the file's lock"
    return process, ""


def _holds_lock(pid: int, file: os.stat_result) -> bool:
    """Tell whether the process has the locked file open. Where the system does not say, its user must be enough."""
    descriptors = Path(f"/proc/{pid}/fd")
    try:
        mine = [each.name for each in descriptors.iterdir() if _is_of(each, file)]
        return any(" FLOCK " in Path(f"/proc/{pid}/fdinfo/{name}").read_text() for name in mine)
    except FileNotFoundError:
        return not Path("/proc/self/fdinfo").exists()  # else it has just ended, or closed the file
    except PermissionError:
        return True


def _is_of(descriptor: Path, file: os.stat_result) -> bool:
    with suppress(FileNotFoundError):  # closed meanwhile
        return os.path.samestat(descriptor.stat(), file)
    return False


def _send(process: psutil.Process, number: int) -> None:
    """Signal exactly this process, though it may end, and its pid be another's, at any moment.

    Raises ProcessLookupError and PermissionError.
    """
    with ExitStack() as stack:
        handle = _open_process(process.pid)
        if handle is not None:
            stack.callback(os.close, handle)
        if not process.is_running():
            raise ProcessLookupError(errno.ESRCH, os.strerror(errno.ESRCH))
        if handle is None:
            os.kill(process.pid, number)
        else:
            signal.pidfd_send_signal(handle, number)


def _open_process(pid: int) -> int | None:
    """Return a pidfd, or None on macOS and on Linux before 5.3. Raises ProcessLookupError."""
    if not hasattr(os, "pidfd_open"):
        return None
    try:
        return os.pidfd_open(pid)
    except OSError as error:
        if error.errno == errno.ENOSYS:
            return None
        raise


def _user(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"uid {uid}"


def _is_at(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(path.lstat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False
