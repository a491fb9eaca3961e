"""The base class of private servers. Each server has its own folder and loopback port. Runs in the test process.

Each server is the child of a wrapper (server_wrapper.py), so it ends with the tests, even if the tests are killed.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import ClassVar, Self

import psutil

from faultlab.ports import free_port, is_free
from faultlab.unprivileged import chown_to_server_user, server_user

USER = "psched"
PASSWORD = "secret"

_WRAPPER = Path(__file__).with_name("server_wrapper.py")
_IN_MEMORY = Path("/dev/shm")
_ROOM = 6 << 30
"""Bytes that must be free in memory: enough for the servers of six pytest workers."""
_START_LIMIT = 30.0
_STOP_LIMIT = 20.0
_ENDED = (psutil.STATUS_DEAD, psutil.STATUS_ZOMBIE)


class Server(ABC):
    """A server that can be stopped, killed, frozen, and started again with the same port and data.

    A context manager: entering the context starts the server; leaving it ends the server and removes its folder.
    `template`: a folder, which need not exist. One of the sessions that share this folder prepares data there, and each
    server gets a copy. Unless `durable`, the server syncs nothing to disk, and its folder is in memory if there is
    room: its data survive a SIGKILL of the server, but no power cut.
    """

    name: ClassVar[str]
    orderly_end: ClassVar[int] = signal.SIGTERM
    quick_end: ClassVar[int] = signal.SIGKILL  # the signal if the data are no longer needed

    def __init__(self, *, template: Path | None = None, durable: bool = False) -> None:
        self.port = 0
        self.durable = durable
        self.environment: dict[str, str] = {}
        """Additional environment variables of the server, such as a preloaded library. Set them before `start`."""
        self.options: tuple[str, ...] = ()
        """Additional words of the server's command line. Set them before `start`."""
        self.place: Path | None = None  # the parent of the server's folder, such as a small disk; set it before `start`
        self._template = template
        self._folder: Path | None = None
        self._wrapper: subprocess.Popen[bytes] | None = None
        self._pid = 0
        self._databases = 0

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    # What a kind of server must implement

    @abstractmethod
    def _install(self, data: Path) -> None:
        """Create the data folder of a new server, with the server's users."""

    @abstractmethod
    def _command(self) -> list[str]:
        """Return the command line of the server."""

    @abstractmethod
    def _ping(self) -> None:
        """Return if the server answers; otherwise raise the driver's error."""

    @abstractmethod
    def url(self, database: str, port: int | None = None) -> str:
        """Return the URL of a database in psched's form. `port`: the port of a proxy, if given."""

    @abstractmethod
    def create_database(self) -> str:
        """Create an empty database, and return its name."""

    @abstractmethod
    def drop_database(self, name: str) -> None:
        """Drop a database, and end the sessions that use it."""

    @abstractmethod
    def set_read_only(self) -> None:
        """From now on, refuse all writes of psched's user, as a demoted primary does. Sessions continue."""

    @abstractmethod
    def set_writable(self) -> None:
        """Undo `set_read_only`."""

    def ways(self) -> Iterator[Server]:
        """Yield the server that a client should use, for one client after another: always this server."""
        while True:
            yield self

    # Starting, ending and freezing

    @property
    def folder(self) -> Path:
        """The folder with all files of the server. It belongs to the user that the server runs as."""
        if self._folder is None:
            place = _place() if self.place is None and not self.durable else self.place
            self._folder = Path(tempfile.mkdtemp(prefix=f"psched-{self.name.lower()}-", dir=place))
            chown_to_server_user(self._folder)
        return self._folder

    @property
    def data(self) -> Path:
        """The server's data folder."""
        return self.folder / "data"

    @property
    def log(self) -> str:
        """The text of the server's log."""
        path = self.folder / "log"
        return path.read_text(errors="replace") if path.exists() else ""

    @property
    def pid(self) -> int:
        """The pid of the server's main process."""
        if self._wrapper is None:
            raise RuntimeError(f"{self.name} is not running")
        return self._pid

    @property
    def wrapper(self) -> int:
        """The pid of the wrapper, the parent of the server's main process."""
        if self._wrapper is None:
            raise RuntimeError(f"{self.name} is not running")
        return self._wrapper.pid

    @property
    def processes(self) -> set[int]:
        """The pids of all processes of this server now, and of its wrapper."""
        if self._wrapper is None:
            return set()
        tree = psutil.Process(self._wrapper.pid).children(recursive=True)
        return {self._wrapper.pid, *(process.pid for process in tree)}

    @property
    def descriptors(self) -> set[int]:
        """The descriptors of the test process that belong to this server."""
        wrapper = self._wrapper
        return set() if wrapper is None or wrapper.stdin is None else {wrapper.stdin.fileno()}

    def start(self) -> None:
        """Start the server, and wait until it answers.

        Raises:
            RuntimeError: its port is taken, or it has ended, or has not answered within 30 s. The message has the end
                of its log.
        """
        if self._wrapper is not None:
            raise RuntimeError(f"{self.name} is running already")
        if not self.data.exists():
            self._provide_data()
        if self.port == 0:
            self.port = free_port()
        elif not is_free(self.port):
            raise RuntimeError(f"{self.name} cannot start: another process listens on its port {self.port}")
        command = self._command()
        try:
            self._wrapper = self._launch(command)
            self._wait_for_answer()
        except BaseException:
            if self._wrapper is not None:
                self.kill()
            raise

    def stop(self) -> None:
        """Stop the server in an orderly way, and wait for its end."""
        self._end(self.orderly_end)

    def kill(self) -> None:
        """Kill all processes of the server by SIGKILL, and wait for their end."""
        self._end(signal.SIGKILL, also_children=True)

    def pause(self) -> None:
        """Freeze all processes of the server, and wait until they are stopped.

        Connections stay open, but get no answers.
        """
        tree = self._tree()
        _send(tree, signal.SIGSTOP)
        _wait(lambda: all(_status(process) in (psutil.STATUS_STOPPED, *_ENDED) for process in tree))

    def resume(self) -> None:
        """Let a frozen server continue."""
        _send(self._tree(), signal.SIGCONT)

    def close(self) -> None:
        """Kill the server, and remove its folder. The server can then be started again, with new data."""
        if self._wrapper is not None:
            self.resume()
            self._end(self.quick_end)
        if self._folder is not None:
            shutil.rmtree(self._folder)
            self._folder = None

    @contextmanager
    def database(self) -> Iterator[str]:
        """Yield the URL of a new, empty database. Drop the database in the end."""
        name = self.create_database()
        try:
            yield self.url(name)
        finally:
            self.drop_database(name)

    def _new_name(self) -> str:
        self._databases += 1
        return f"psched_{self._databases}"

    def _tree(self) -> list[psutil.Process]:
        try:
            server = psutil.Process(self.pid)
            return [server, *server.children(recursive=True)]
        except psutil.NoSuchProcess:  # the server has ended by itself
            return []

    def _provide_data(self) -> None:
        if self._template is None:
            self._install(self.data)
            return
        with self._template.with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # another session may be preparing the same data
            if not self._template.exists():
                unfinished = self._template.with_suffix(".unfinished")
                self._install(unfinished)
                unfinished.rename(self._template)
        subprocess.run(["cp", "-a", self._template, self.data], check=True)

    def _launch(self, command: list[str]) -> subprocess.Popen[bytes]:
        arguments = [str(_WRAPPER), str(self.folder), self._user(), *command]
        with (self.folder / "log").open("ab") as log:
            wrapper = subprocess.Popen(
                [sys.executable, "-I", *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env={**os.environ, "LC_ALL": "C", **self.environment},
                start_new_session=True,  # a Ctrl-C at the terminal must reach only the tests
            )
        assert wrapper.stdout is not None
        with wrapper.stdout as answer:
            self._pid = int(answer.readline() or 0)
        return wrapper

    def _user(self) -> str:
        """Return the user of the server's process. An empty string means the user of this process."""
        return server_user() or ""

    def _wait_for_answer(self) -> None:
        deadline = time.monotonic() + _START_LIMIT
        while True:
            try:
                return self._ping()
            except Exception as error:
                ended = self._wrapper is None or self._wrapper.poll() is not None
                if ended or time.monotonic() > deadline:
                    raise RuntimeError(f"{self.name} does not start: {error}\n{self.log[-4000:]}") from error
            time.sleep(0.02)

    def _end(self, by: int, *, also_children: bool = False) -> None:
        tree = self._tree()
        _send(tree if also_children else tree[:1], by)
        self._reap()
        _wait(lambda: all(_status(process) in _ENDED for process in tree))

    def _reap(self) -> None:
        assert self._wrapper is not None
        self._wrapper.wait(_STOP_LIMIT)
        assert self._wrapper.stdin is not None
        self._wrapper.stdin.close()
        self._wrapper = None


def _place() -> Path | None:
    """Return a folder in memory, where files take less processor time; None if there is not enough room."""
    with suppress(FileNotFoundError):
        if shutil.disk_usage(_IN_MEMORY).free >= _ROOM:
            return _IN_MEMORY
    return None


def _send(processes: list[psutil.Process], number: int) -> None:
    for process in processes:
        with suppress(psutil.NoSuchProcess):  # a process of the server may end at any moment
            process.send_signal(number)


def _status(process: psutil.Process) -> str:
    try:
        return process.status()
    except psutil.NoSuchProcess:
        return psutil.STATUS_DEAD


def _wait(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + _STOP_LIMIT
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"the server's processes did not react to a signal within {_STOP_LIMIT} s")
        time.sleep(0.005)
