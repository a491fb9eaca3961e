"""The pid file: only the process that holds its lock counts as the daemon."""

from __future__ import annotations

import errno
import os
import pwd
import re
import signal
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager, suppress
from functools import partial
from pathlib import Path

import psutil
import pytest

from faultlab.prerequisites import not_run
from psched.supervisor import pidfile
from psched.supervisor.pidfile import (
    AlreadyRunningError,
    PidFile,
    PidFileError,
    is_stale,
    read_report,
    read_running,
    remove_unused,
    signal_running,
)
from tests.daemon.harness import wait_for

FREE = r"end the process that holds its lock \(fuser .* names it\), remove the file, and start the daemon again"
_HOLDER = """
import os, sys, time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from psched.supervisor.pidfile import PidFile
pid_file = PidFile.acquire(Path(sys.argv[1]))
pid_file.write(os.getpid())
print("locked", flush=True)
sys.stdin.readline()
pid_file.clear()
print("signed off", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "psched.pid"


@pytest.fixture
def holder(path: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that holds the lock of the pid file until its stdin is closed."""
    with subprocess.Popen(
        [sys.executable, "-c", _HOLDER, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "locked\n"
        yield process
        process.kill()


def test_the_file_holds_the_pid_and_a_newline(path: Path) -> None:
    pid_file = PidFile.acquire(path)
    pid_file.write(1234567)
    pid_file.write(4711)
    assert path.read_bytes() == b"4711\n"
    pid_file.close()


def test_a_file_that_cannot_be_written_is_named(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int, text: bytes, place: int) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with closing(PidFile.acquire(path)) as pid_file:
        monkeypatch.setattr(os, "pwrite", full)
        with pytest.raises(PidFileError, match=f"pid file {path}: No space left on device; choose another place") as e:
            pid_file.write(1)
    assert str(e.value).endswith("(pid_file), or free space on its disk")


def test_a_holder_in_another_process_is_named_and_keeps_its_lock(path: Path, holder: subprocess.Popen[str]) -> None:
    assert read_running(path) == holder.pid
    with pytest.raises(AlreadyRunningError, match=rf"already running with pid {holder.pid}") as caught:
        PidFile.acquire(path)
    assert caught.value.pid == holder.pid
    assert path.read_text() == f"{holder.pid}\n"


def test_a_killed_holder_leaves_a_stale_file_that_names_no_process(path: Path, holder: subprocess.Popen[str]) -> None:
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    assert is_stale(path)
    assert read_running(path) is None
    PidFile.acquire(path).close()


def test_a_stale_file_with_the_pid_of_a_living_process_is_not_believed(path: Path) -> None:
    path.write_text(f"{os.getpid()}\n")
    assert read_running(path) is None


def test_a_clean_end_leaves_an_empty_file_that_is_removed_when_it_is_not_locked(
    path: Path, holder: subprocess.Popen[str]
) -> None:
    remove_unused(path)
    assert read_running(path) == holder.pid
    holder.communicate()
    assert holder.returncode == 0
    assert path.read_text() == ""
    assert read_running(path) is None
    assert not is_stale(path)
    remove_unused(path)
    assert not path.exists()
    remove_unused(path)


def _none(path: Path) -> None:
    assert signal_running(path, 0) is None


def _acquired(path: Path) -> None:
    PidFile.acquire(path).close()


@pytest.mark.parametrize("look", [read_running, read_report, _none, _acquired])
def test_a_daemon_counts_as_gone_only_when_its_process_is(
    path: Path, holder: subprocess.Popen[str], look: Callable[[Path], object]
) -> None:
    assert holder.stdin is not None
    assert holder.stdout is not None
    holder.stdin.write("\n")
    holder.stdin.flush()
    assert holder.stdout.readline() == "signed off\n"
    with ThreadPoolExecutor(1) as pool:
        looking = pool.submit(look, path)
        wait_for(lambda: looking.done() or str(path.resolve()) in [file.path for file in psutil.Process().open_files()])
        assert not looking.done()
        holder.communicate()
        assert looking.result() in (None, (None, ""))


def test_a_file_swapped_in_after_the_check_is_not_read(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path.touch(0o640)
    other = tmp_path / "other"
    other.write_text("4711\n")
    check = pidfile._check_trust

    def replaced(path: Path, found: os.stat_result) -> None:
        check(path, found)
        path.unlink()
        path.symlink_to(other)

    monkeypatch.setattr(pidfile, "_check_trust", replaced)
    assert not is_stale(path)
    assert path.is_symlink()


@pytest.mark.parametrize("text", ["{pid}\nreport\n", "0{pid}\nreport\n", " {pid} \nreport\n"])
def test_the_report_is_read_however_the_pid_is_spelled(path: Path, text: str) -> None:
    with _written(path, text.format(pid=os.getpid())):
        assert read_running(path) == os.getpid()
        assert read_report(path) == (os.getpid(), "report")


def test_a_line_that_goes_on_after_the_pid_is_refused_in_the_end(path: Path) -> None:
    with (
        _written(path, f"{os.getpid()}{' ' * 40}{'9' * 5000}\nreport\n"),
        pytest.raises(PidFileError, match="try again"),
    ):
        read_report(path)


@pytest.mark.parametrize("text", ["garbage\n", "", "\0\0\n4711\n", "12 34\n"])
def test_garbage_in_a_locked_file_is_reported_with_the_remedy(path: Path, text: str) -> None:
    first = text.partition("\n")[0]
    message = re.escape(f"pid file {path} is locked, but names no process: {first!r}; ") + FREE
    with _written(path, text):
        for attempt in (PidFile.acquire, read_running, read_report):
            with pytest.raises(PidFileError, match=message):
                attempt(path)


@contextmanager
def _written(path: Path, text: str) -> Iterator[None]:
    """Hold the lock of a pid file that contains `text`."""
    pid_file = PidFile.acquire(path)
    path.write_text(text)
    yield
    pid_file.close()


def test_the_lock_goes_with_the_descriptor_through_fork_and_exec(path: Path) -> None:
    pid_file = PidFile.acquire(path)
    pid_file.write(os.getpid())
    successor = subprocess.Popen(
        [sys.executable, "-c", _ADOPTER, str(path), str(pid_file.descriptor)],
        pass_fds=[pid_file.descriptor],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert successor.stdout is not None
    assert successor.stdout.readline() == "not inheritable\n"
    pid_file.close()
    assert read_running(path) == successor.pid
    successor.communicate()
    assert read_running(path) is None


_ADOPTER = """
import os, sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from psched.supervisor.pidfile import PidFile
pid_file = PidFile.adopt(Path(sys.argv[1]), int(sys.argv[2]))
pid_file.write(os.getpid())
print("inheritable" if os.get_inheritable(pid_file.descriptor) else "not inheritable", flush=True)
sys.stdin.read()
pid_file.clear()
"""


def test_a_child_that_closes_its_copy_does_not_end_the_lock(path: Path) -> None:
    pid_file = PidFile.acquire(path)
    pid_file.write(os.getpid())
    child = os.fork()
    if child == 0:
        pid_file.close()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert read_running(path) == os.getpid()
    pid_file.close()


def test_a_symbolic_link_is_not_followed(path: Path, tmp_path: Path) -> None:
    target = tmp_path / "precious"
    target.write_text("kept")
    path.symlink_to(target)
    for attempt in (PidFile.acquire, read_running):
        with pytest.raises(PidFileError, match="symbolic link; remove it"):
            attempt(path)
    assert target.read_text() == "kept"


def test_a_file_that_anybody_may_write_is_refused(path: Path) -> None:
    path.write_text("1\n")
    path.chmod(0o666)
    with pytest.raises(PidFileError, match="is writable by every user"):
        PidFile.acquire(path)


def test_strangers_may_neither_read_nor_lock_the_file(path: Path) -> None:
    path.write_text("1\n")
    path.chmod(0o644)
    pid_file = PidFile.acquire(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    pid_file.close()


def test_a_fifo_is_refused_without_waiting_for_its_other_end(path: Path) -> None:
    os.mkfifo(path, 0o600)
    with pytest.raises(PidFileError, match="not a regular file"):
        read_running(path)


@pytest.fixture
def foreign(tmp_path: Path) -> Iterator[Callable[[str], Path]]:
    """A function that makes a pid file with this content.

    The user nobody owns it, and a process of nobody's locks it.
    """
    if os.geteuid() != 0:
        not_run("only root can act for several users, run the tests as root")
    account = pwd.getpwnam("nobody")
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="psched-pid-")))
        os.chown(folder, account.pw_uid, account.pw_gid)

        def make(content: str) -> Path:
            path = folder / "psched.pid"
            path.write_text(content)
            path.chmod(0o640)
            os.chown(path, account.pw_uid, account.pw_gid)
            argv = ["flock", "--no-fork", str(path), "sleep", "1000"]
            holder = stack.enter_context(subprocess.Popen(argv, user="nobody", group=account.pw_gid, extra_groups=[]))
            stack.callback(holder.kill)
            wait_for(lambda: "lock:\t1: FLOCK" in _locks_of(holder.pid, path))
            return path

        yield make


def _locks_of(pid: int, path: Path) -> str:
    """Return what /proc/PID/fdinfo says about the descriptors by which the process has the file open."""
    found = []
    for each in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):  # the process, which is starting, has closed this descriptor
            if os.path.realpath(each) == str(path):
                found.append(each.name)
    return "".join(Path(f"/proc/{pid}/fdinfo/{name}").read_text() for name in found)


@pytest.fixture
def victim() -> Iterator[Callable[[str], subprocess.Popen[bytes]]]:
    """A function that starts a process of this user. A signal would end that process."""
    with ExitStack() as stack:

        def start(user: str) -> subprocess.Popen[bytes]:
            process = stack.enter_context(subprocess.Popen(["sleep", "1000"], user=user))
            stack.callback(process.kill)
            return process

        yield start


@pytest.mark.needs("flock")
@pytest.mark.parametrize("user", ["root", "daemon", "nobody"])
def test_the_owner_of_a_pid_file_cannot_make_root_signal_another_process(
    foreign: Callable[[str], Path], victim: Callable[[str], subprocess.Popen[bytes]], user: str
) -> None:
    """The process is root's, another user's, or the owner's own, but not the daemon."""
    target = victim(user)
    path = foreign(f"{target.pid}\n")
    doubt = "does not hold the file's lock" if user == "nobody" else f"runs as {user} while the file is nobody's"
    for attempt in (partial(signal_running, path, signal.SIGKILL), partial(read_running, path)):
        with pytest.raises(
            PidFileError, match=f"names process {target.pid}, which {doubt}; nothing was signalled; {FREE}"
        ):
            attempt()
    assert target.poll() is None


@pytest.mark.needs("flock")
@pytest.mark.parametrize("content", ["-1\n", "0\n", "1\n", "-{group}\n", "+{group}\n", "", "999999999999999999\n"])
def test_a_number_that_is_no_ordinary_pid_is_never_signalled(
    foreign: Callable[[str], Path], victim: Callable[[str], subprocess.Popen[bytes]], content: str
) -> None:
    target = victim("nobody")
    path = foreign(content.format(group=os.getpgid(target.pid)))
    refusal = "names no process: |which (does not run|runs as root while the file is nobody's); nothing was signalled; "
    with pytest.raises(PidFileError, match=f"({refusal}).*{FREE}"):
        signal_running(path, signal.SIGKILL)
    assert target.poll() is None


def test_the_holder_of_the_lock_is_signalled(path: Path, holder: subprocess.Popen[str]) -> None:
    assert signal_running(path, signal.SIGTERM) == holder.pid
    assert holder.wait() == -signal.SIGTERM
    assert signal_running(path, signal.SIGTERM) is None


def test_the_file_is_given_to_the_user_of_the_process_it_names(path: Path) -> None:
    if os.geteuid() != 0:
        not_run("only root can give a file away, run the tests as root")
    pid_file = PidFile.acquire(path)
    account = pwd.getpwnam("nobody")
    pid_file.give_to(account.pw_uid, account.pw_gid)
    assert (path.stat().st_uid, path.stat().st_gid) == (account.pw_uid, account.pw_gid)
    pid_file.close()
    again = PidFile.acquire(path)
    assert path.stat().st_uid == 0, "who runs as root signs a file of root's"
    again.close()


def test_a_missing_folder_is_named(path: Path) -> None:
    with pytest.raises(PidFileError, match=r"nowhere/psched\.pid: No such file"):
        PidFile.acquire(path.parent / "nowhere" / "psched.pid")


def test_a_file_removed_by_another_process_does_not_break_the_end(path: Path) -> None:
    pid_file = PidFile.acquire(path)
    path.unlink()
    successor = PidFile.acquire(path)
    successor.write(os.getpid())
    pid_file.clear()
    pid_file.close()
    assert read_running(path) == os.getpid(), "the file at the path is the successor's"
    successor.close()


def test_a_process_that_waited_for_the_lock_of_a_removed_file_locks_the_new_one(path: Path) -> None:
    pid_file = PidFile.acquire(path)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(PidFile.acquire, path)
        wait_for(lambda: [file.path for file in psutil.Process().open_files()].count(str(path.resolve())) == 2)
        path.unlink()
        pid_file.close()
        successor = waiting.result()
    successor.write(os.getpid())
    assert read_running(path) == os.getpid()
    successor.close()
