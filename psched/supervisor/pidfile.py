"""The pid file contains the master's process id and its status for commands. The master locks it for its whole life.

A daemon runs if and only if the file is locked. A file left behind by a dead daemon is therefore harmless. The lock is
an flock. It belongs to the open file description, so it survives fork and exec, and it is released when the last
process with the descriptor closes it. A binary upgrade passes the descriptor on; children close theirs.

A daemon that ends in an orderly way empties the file and keeps the lock until the process has ended. Then `pschedd
stop` removes the file. So `stop` never reports an end while the daemon is still ending.

The user of the daemon may write any pid into the file, and root's commands read it. Only a process that runs as the
owner of the file and holds the lock is signalled.
"""

from __future__ import annotations

import errno
import fcntl
import os
import pwd
import signal
import stat
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from psched.clock import wait_steps

_MODE = 0o640  # a user who can open the file can lock it, and so pass for the daemon
_PATIENCE = 1.0
_ENDING = 5.0
"""Seconds that a daemon without remaining work may need to end after it has emptied its pid file."""
_PAUSE = 0.02
_LARGEST = 65536
_LONGEST = 32
"""The maximum number of bytes of the first line. This line is the process id."""


class PidFileError(Exception):
    """The pid file cannot be used. The message contains the reason and the remedy."""


class AlreadyRunningError(PidFileError):
    """Another process holds the pid file's lock. `pid` is the process id in the file."""

    def __init__(self, path: Path, pid: int) -> None:
        super().__init__(f"already running with pid {pid} ({path})")
        self.path = path
        self.pid = pid


class _EndedError(Exception):
    """No other process holds the lock: the daemon has ended."""


class PidFile(NamedTuple):
    path: Path
    descriptor: int

    @classmethod
    def acquire(cls, path: Path) -> PidFile:
        """Lock the file. Its content does not change until `write`. Raises AlreadyRunningError and PidFileError."""
        while True:
            with ExitStack() as undo:
                pid_file = cls(path, _open(path, os.O_RDWR | os.O_CREAT))
                undo.callback(pid_file.close)
                try:
                    if not _lock(pid_file.descriptor, fcntl.LOCK_EX, _PATIENCE):
                        raise AlreadyRunningError(path, _await_pid(path, pid_file.descriptor))
                    os.fchmod(pid_file.descriptor, _MODE)
                    pid_file.give_to(os.geteuid(), os.getegid())
                except _EndedError:
                    continue
                except OSError as error:
                    raise _explained(path, error) from error
                if _is_at(path, pid_file.descriptor):  # otherwise another process removed the file before we locked it
                    undo.pop_all()
                    return pid_file

    @classmethod
    def adopt(cls, path: Path, descriptor: int) -> PidFile:
        """Take over a lock that was inherited as `descriptor`. From now on, exec closes the descriptor."""
        os.set_inheritable(descriptor, False)
        return cls(path, descriptor)

    def give_to(self, uid: int, gid: int) -> None:
        """Change the owner of the file to the user that this process will become. Only root does this."""
        found = os.fstat(self.descriptor)
        if os.geteuid() == 0 and (found.st_uid, found.st_gid) != (uid, gid):
            os.fchown(self.descriptor, uid, gid)

    def write(self, pid: int, report: str = "") -> None:
        """Write the process id and the report. `read_running` and `read_report` return them. Raises PidFileError."""
        text = f"{pid}\n{report}\n".encode() if report else f"{pid}\n".encode()
        try:
            os.pwrite(self.descriptor, text, 0)
            os.ftruncate(self.descriptor, len(text))
        except OSError as error:
            raise _explained(self.path, error) from error

    def close(self) -> None:
        """Close this process's descriptor. The lock remains if another process has the descriptor."""
        os.close(self.descriptor)

    def clear(self) -> None:
        """Empty the file, just before this process ends. The lock remains until the process has ended."""
        os.ftruncate(self.descriptor, 0)


def remove_unused(path: Path) -> None:
    """Remove the file if no process holds its lock. If the folder does not permit this, an empty file remains."""
    with _opened(path) as descriptor:
        if descriptor is not None and _lock(descriptor, fcntl.LOCK_EX, 0) and _is_at(path, descriptor):
            with suppress(PermissionError):
                path.unlink()


def read_running(path: Path) -> int | None:
    """Return the process id of the daemon that holds the lock, or None if no daemon runs. Raises PidFileError."""
    return read_report(path)[0]


def read_report(path: Path) -> tuple[int | None, str]:
    """Return the process id like `read_running`, and the report. Raises PidFileError."""
    with suppress(_EndedError), _locked_by_other(path) as descriptor:
        for _ in wait_steps(_PATIENCE, _PAUSE):
            with _checked_daemon(path, descriptor) as (pid, _):
                first, second = _lines(descriptor), _lines(descriptor)
            if first == second and _parse_pid(first[0]) == pid:  # otherwise the daemon is writing the file
                return pid, first[1]
        changing = f"pid file {path} changes faster than it can be read, or its first line is damaged"
        raise PidFileError(f"{changing}; try again, or: {_how_to_free(path)}")
    return None, ""


def signal_running(path: Path, number: int) -> int | None:
    """Signal the daemon. Return its process id, or None if no daemon runs. Raises PidFileError and PermissionError."""
    with (
        suppress(_EndedError, ProcessLookupError),
        _locked_by_other(path) as descriptor,
        _checked_daemon(path, descriptor) as (pid, handle),
    ):
        _send(pid, handle, number)
        return pid
    return None


def is_stale(path: Path) -> bool:
    """Return whether the file belongs to a process that has died: it contains a pid, and is not locked."""
    with _opened(path) as descriptor:
        if descriptor is None or not _lock(descriptor, fcntl.LOCK_SH, 0):
            return False
        return bool(os.pread(descriptor, _LARGEST, 0).strip())


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
    """Refuse a file that lets another user choose the process to signal."""
    if not stat.S_ISREG(found.st_mode):
        raise PidFileError(f"pid file {path} is not a regular file; name another one (pid_file)")
    if found.st_mode & stat.S_IWOTH:
        raise PidFileError(f"pid file {path} is writable by every user; remove it, or chmod o-w")
    if os.geteuid() == 0 and found.st_nlink > 1:
        raise PidFileError(f"pid file {path} has {found.st_nlink} hard links, expected 1; remove it")


def _explained(path: Path, error: OSError) -> PidFileError:
    if error.errno == errno.ELOOP:
        return PidFileError(f"pid file {path} is a symbolic link; remove it, or name its target (pid_file)")
    or_else = ", or free space on its disk" if error.errno in (errno.ENOSPC, errno.EDQUOT) else " or another user"
    return PidFileError(f"pid file {path}: {error.strerror}; choose another place (pid_file){or_else}")


def _lock(descriptor: int, operation: int, patience: float) -> bool:
    """Try to lock for up to `patience` seconds. `read_running` in another process may hold the lock briefly."""
    for _ in wait_steps(patience, _PAUSE):
        with suppress(BlockingIOError):
            fcntl.flock(descriptor, operation | fcntl.LOCK_NB)
            return True
    return False


@contextmanager
def _opened(path: Path) -> Iterator[int | None]:
    """Yield a descriptor for reading, or None if there is no file. Raises PidFileError."""
    try:
        descriptor = _open(path, os.O_RDONLY)
    except PidFileError as error:
        if isinstance(error.__cause__, FileNotFoundError):
            yield None
            return
        raise
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@contextmanager
def _locked_by_other(path: Path) -> Iterator[int]:
    """Yield a descriptor for reading. Raises _EndedError if no other process holds the lock, and PidFileError."""
    with _opened(path) as descriptor:
        if descriptor is None or _lock(descriptor, fcntl.LOCK_SH, 0):
            raise _EndedError
        yield descriptor


def _lines(descriptor: int) -> tuple[str, str]:
    """Return the first two lines.

    Any further lines are left over from a longer, older text: `write` overwrites the start of the file first, and
    truncates the file afterwards.
    """
    text = os.pread(descriptor, _LARGEST, 0).decode("utf-8", "replace")
    pid, _, rest = text.partition("\n")
    return pid.strip(), rest.partition("\n")[0]


def _parse_pid(line: str) -> int | None:
    return int(line) if len(line) <= _LONGEST and line.isdecimal() and int(line) > 0 else None


def _await_pid(path: Path, descriptor: int) -> int:
    """Read the pid. Wait while the process that holds the lock has not written its pid yet, or is ending.

    Raises PidFileError and _EndedError.
    """
    text = ""
    for waited in wait_steps(_ENDING, _PAUSE):
        text = os.pread(descriptor, _LONGEST, 0).decode("ascii", "replace").partition("\n")[0].strip()
        if (pid := _parse_pid(text)) is not None:
            return pid
        _check_lock(descriptor)
        if text and waited >= _PATIENCE:
            break
    raise PidFileError(f"pid file {path} is locked, but names no process: {text!r}; {_how_to_free(path)}")


def _check_lock(descriptor: int) -> None:
    """Raise _EndedError if no other process holds the lock now."""
    if _lock(descriptor, fcntl.LOCK_SH, 0):
        fcntl.flock(descriptor, fcntl.LOCK_UN)
        raise _EndedError


def _how_to_free(path: Path) -> str:
    return f"end the process that holds its lock (fuser {path} names it), remove the file, and start the daemon again"


@contextmanager
def _checked_daemon(path: Path, descriptor: int) -> Iterator[tuple[int, int | None]]:
    """Check that the pid in the file is the daemon's. Yield the pid and its pidfd; None if the system has no pidfds.

    Waits, because a daemon that is starting may not have written its pid yet, or may still run as root. Raises
    PidFileError if the pid remains the pid of another process. Raises _EndedError if no process holds the lock any
    more.
    """
    wrong = ""
    for _ in wait_steps(_PATIENCE, _PAUSE):
        pid = _await_pid(path, descriptor)
        with ExitStack() as stack:
            try:
                handle = _open_process(pid)  # open first, so that the checks below are about this process
                if handle is not None:
                    stack.callback(os.close, handle)
                mismatch = _mismatch(pid, os.fstat(descriptor))
                with suppress(PermissionError):  # the process runs as another user
                    _send(pid, handle, 0)
            except (ProcessLookupError, OverflowError):
                mismatch = "which does not run"
            if not mismatch:
                yield pid, handle
                return
        _check_lock(descriptor)
        wrong = f"pid file {path} names process {pid}, {mismatch}; nothing was signalled"
    raise PidFileError(f"{wrong}; {_how_to_free(path)}")


def _mismatch(pid: int, file: os.stat_result) -> str:
    """Return why a process is not the daemon of this pid file; an empty string if it is.

    In a sandbox, /proc may not show the process. The process is then trusted if this process runs as the owner of the
    file and not as root: no other user can have written the pid, and the owner can signal only its own processes.
    """
    users = _users_of(pid)
    if users is None:
        return "" if file.st_uid == os.geteuid() != 0 else "which does not run"
    if users != {file.st_uid}:
        return f"which runs as {_user(max(users - {file.st_uid}))} while the file is {_user(file.st_uid)}'s"
    return "" if _holds_lock(pid, file) else "which does not hold the file's lock"


def _users_of(pid: int) -> set[int] | None:
    """Return the real, effective and saved user of a process; None if the system does not show them."""
    if sys.platform == "linux":  # importing psutil takes 16 ms of processor time, a fifth of a probe (2026-11-28)
        try:
            text = Path(f"/proc/{pid}/status").read_text(errors="replace")
        except OSError:
            return None
        (line,) = (line for line in text.splitlines() if line.startswith("Uid:"))
        return {*map(int, line.split()[1:4])}
    import psutil  # noqa: PLC0415 – as above

    try:
        return {*psutil.Process(pid).uids()}
    except psutil.Error:
        return None


def _holds_lock(pid: int, file: os.stat_result) -> bool:
    """Return whether the process has the locked file open; True if the system does not show that."""
    process = Path(f"/proc/{pid}")
    try:
        for descriptor in (process / "fd").iterdir():
            with suppress(FileNotFoundError):  # closed in the meantime
                flags = (process / "fdinfo" / descriptor.name).read_text()
                if os.path.samestat(descriptor.stat(), file) and " FLOCK " in flags:
                    return True
    except FileNotFoundError:
        return not Path("/proc/self/fdinfo").exists()  # true: /proc shows too little; false: the process has ended
    except PermissionError:
        return True
    return False


def _send(pid: int, handle: int | None, number: int) -> None:
    """Send a signal through the pidfd, if there is one. Another process may have the pid by now. Raises OSError."""
    if handle is None:
        os.kill(pid, number)
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
