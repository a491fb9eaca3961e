"""A program that is forked behaves as if a new interpreter had been started for it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from faultlab import forkserver_client
from faultlab.laboratory import Lab
from faultlab.leaks import Holdings, kill_since

_TELL = """
import json, os, signal, sys
told = {
    "name": __name__, "argv": sys.argv, "orig_argv": sys.orig_argv[1:], "beside": sys.path[0], "cwd": os.getcwd(),
    "environ": {**os.environ, "LC_CTYPE": "an interpreter may set it"},
    "leads": os.getsid(0) == os.getpid(),
    "descriptors": sorted(os.listdir("/dev/fd"))[:4],
    "signals": [str(signal.getsignal(number)) for number in range(1, 32)],
}
print(json.dumps(told))
print("error", file=sys.stderr)
sys.exit(3)
"""
_WAIT = "import sys, time; print('up', flush=True); time.sleep(60)"


@pytest.fixture
def program(tmp_path: Path) -> Path:
    """A program that reports its own properties, such as its arguments."""
    (tmp_path / "tell.py").write_text(_TELL)
    return tmp_path / "tell.py"


def test_it_is_what_an_interpreter_would_have_made_of_it(program: Path) -> None:
    argv = [str(program), "one", "two"]
    by_fork = forkserver_client.run(argv, program.parent, 20)
    interpreter = [sys.executable, *argv]
    options = {"stdin": subprocess.DEVNULL, "capture_output": True, "text": True}
    by_exec = subprocess.run(interpreter, check=False, cwd=program.parent, env=dict(os.environ), **options)
    assert (by_fork.returncode, by_fork.stderr) == (by_exec.returncode, by_exec.stderr) == (3, "error\n")
    assert json.loads(by_fork.stdout) == json.loads(by_exec.stdout)


def test_it_may_have_a_session_of_its_own(program: Path) -> None:
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with forkserver_client.start(
        [str(program)], program.parent, os.environ, start_new_session=True, **pipes
    ) as process:
        out, _ = process.communicate()
    assert json.loads(out)["leads"]


def test_its_signals_and_its_end_are_those_of_any_child(tmp_path: Path) -> None:
    (tmp_path / "wait.py").write_text(_WAIT)
    with forkserver_client.start([str(tmp_path / "wait.py")], tmp_path, os.environ, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stdout.readline() == b"up\n"
        assert process.poll() is None
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.01)
        process.terminate()
        assert process.wait(20) == -signal.SIGTERM
        assert process.poll() == -signal.SIGTERM


def test_none_outlives_the_session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "wait.py").write_text(_WAIT)
    with forkserver_client.Forks() as forks:
        monkeypatch.setenv(forkserver_client.SOCKET, str(forks.path))
        process = forkserver_client.start([str(tmp_path / "wait.py")], tmp_path, os.environ, stdout=subprocess.DEVNULL)
        living = psutil.Process(process.pid)
    deadline = time.monotonic() + 10
    while living.is_running():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    with pytest.raises(EOFError):
        process.wait()


def test_sessions_have_servers_of_their_own_with_the_modules_they_ask_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tell.py").write_text("import sys; print('nturl2path' in sys.modules)")
    (tmp_path / "wait.py").write_text(_WAIT)

    def tells() -> str:
        return forkserver_client.run([str(tmp_path / "tell.py")], tmp_path, 20).stdout

    with forkserver_client.Forks() as waiting:
        monkeypatch.setenv(forkserver_client.SOCKET, str(waiting.path))
        process = forkserver_client.start([str(tmp_path / "wait.py")], tmp_path, os.environ, stdout=subprocess.DEVNULL)
        pids = {*waiting.pids}
        for modules, told in (((), "False\n"), (("nturl2path",), "True\n"), (("nturl2path",), "True\n")):
            with forkserver_client.Forks(modules) as forks:
                monkeypatch.setenv(forkserver_client.SOCKET, str(forks.path))
                assert tells() == told
                pids |= {*forks.pids}
        assert process.poll() is None
    with pytest.raises(EOFError):
        process.wait()
    servers = 3 + 1
    assert len(pids) == servers + 1, "of one parent"


def test_the_pid_of_a_new_servers_parent_is_known_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(forkserver_client.PARENT, raising=False)
    with forkserver_client.Forks() as forks:
        assert [psutil.Process(pid).ppid() for pid in forks.pids] == [os.getpid()]


def test_what_a_server_forks_is_a_leak_and_the_server_is_none(tmp_path: Path) -> None:
    (tmp_path / "wait.py").write_text(_WAIT)
    with Lab() as lab, pytest.MonkeyPatch.context() as patch:
        patch.setenv(forkserver_client.SOCKET, str(lab.fork_server()))
        before = Holdings.now(lab)
        process = forkserver_client.start([str(tmp_path / "wait.py")], tmp_path, os.environ, stdout=subprocess.DEVNULL)
        assert {found.pid for found in Holdings.now(lab).processes_since(before, lab)} == {process.pid}
        kill_since(before, lab)
        assert process.wait(20) == -signal.SIGKILL
