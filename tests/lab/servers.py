"""A private server in a folder of its own on a loopback port: what all kinds have in common. In the test process.

Each server process runs under a guardian (guardian.py), so it ends with the tests even when they are killed.
"""

from __future__ import annotations

import os
import pwd
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import ClassVar, Self

import psutil

from tests.lab.clock import WallClock, build_shim

HOST = "127.0.0.1"
USER = "psched"
PASSWORD = "secret"

_GUARDIAN = Path(__file__).with_name("guardian.py")
_START_LIMIT = 30.0
_STOP_LIMIT = 20.0
_PORTS = range(20_000, 32_000)
"""Below the ephemeral ports: while a server is down, no outgoing connection can take its port."""


class Server(ABC):
    """A server that may be stopped, killed, frozen and started again on the same port and data.

    A context object: entering starts it, leaving ends it and removes its folder. With `template`, a folder that need
    not exist, the data are prepared there once and copied for each server. Unless `durable`, nothing is synced to
    disk: the data survive a kill -9 of the server, but no power cut.
    """

    name: ClassVar[str]

    def __init__(self, *, template: Path | None = None, durable: bool = False) -> None:
        self.port = 0
        self.durable = durable
        self.environment: dict[str, str] = {}
        """Set more variables here before `start` (such as a preloaded library)."""
        self._template = template
        self._folder: Path | None = None
        self._guardian: subprocess.Popen[bytes] | None = None
        self._server: psutil.Process | None = None
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

    # What the kinds differ by

    @abstractmethod
    def _install(self, data: Path) -> None:
        """Create the data folder of a new server, with its users."""

    @abstractmethod
    def _command(self) -> list[str]:
        """Return the command line of the server."""

    @abstractmethod
    def _ping(self) -> None:
        """Return when the server answers; raises the driver's error when it does not."""

    @abstractmethod
    def url(self, database: str, port: int | None = None) -> str:
        """Return the URL of a database in psched's spelling, through another `port` (a proxy's) if given."""

    @abstractmethod
    def create_database(self) -> str:
        """Create an empty database and return its name."""

    @abstractmethod
    def drop_database(self, name: str) -> None:
        """Drop a database, along with the sessions that use it."""

    # Life

    @property
    def folder(self) -> Path:
        """Everything the server has on disk; of the user it runs as."""
        if self._folder is None:
            self._folder = Path(tempfile.mkdtemp(prefix=f"psched-{self.name.lower()}-"))
            own(self._folder)
        return self._folder

    @property
    def data(self) -> Path:
        """The server's data folder."""
        return self.folder / "data"

    @property
    def log(self) -> str:
        """What the server has written to its log."""
        path = self.folder / "log"
        return path.read_text(errors="replace") if path.exists() else ""

    @property
    def pid(self) -> int:
        """The main process of the running server."""
        return self._running.pid

    @property
    def processes(self) -> set[int]:
        """The pids that belong to this server at this moment, its guardian included."""
        if self._guardian is None:
            return set()
        tree = psutil.Process(self._guardian.pid).children(recursive=True)
        return {self._guardian.pid, *(process.pid for process in tree)}

    @property
    def descriptors(self) -> set[int]:
        """The file descriptors that the test process keeps open for this server."""
        guardian = self._guardian
        return set() if guardian is None or guardian.stdin is None else {guardian.stdin.fileno()}

    def start(self) -> None:
        """Start the server and return when it answers.

        Raises:
            RuntimeError: it ended, or did not answer within 30 s; its log is in the message.
        """
        if self._guardian is not None:
            raise RuntimeError(f"{self.name} is running")
        if not self.data.exists():
            self._provide_data()
        self.port = self.port or free_port()
        self._guardian = self._launch()
        self._wait_for_answer()

    def stop(self) -> None:
        """End the server in good order; returns when it has ended."""
        self._running.send_signal(signal.SIGTERM)
        self._reap()

    def kill(self) -> None:
        """Kill the server with all its processes, as kill -9 or the kernel would; returns when it has ended."""
        tree = self._tree()
        for process in tree:
            process.kill()
        self._reap()
        deadline = time.monotonic() + _STOP_LIMIT
        while any(_lives(process) for process in tree) and time.monotonic() < deadline:
            time.sleep(0.01)

    def pause(self) -> None:
        """Freeze all processes of the server: connections stay open, nothing answers."""
        for process in self._tree():
            process.suspend()

    def resume(self) -> None:
        """Let a frozen server go on."""
        for process in reversed(self._tree()):
            process.resume()

    def close(self) -> None:
        """End the server by force and remove its folder; the object can be started anew after that."""
        if self._guardian is not None:
            self.kill()
        if self._folder is not None:
            shutil.rmtree(self._folder)
            self._folder = None

    @contextmanager
    def database(self) -> Iterator[str]:
        """Yield the URL of a new, empty database, and drop it afterwards."""
        name = self.create_database()
        try:
            yield self.url(name)
        finally:
            self.drop_database(name)

    def _new_name(self) -> str:
        self._databases += 1
        return f"psched_{self._databases}"

    @property
    def _running(self) -> psutil.Process:
        if self._server is None:
            raise RuntimeError(f"{self.name} is not running")
        return self._server

    def _tree(self) -> list[psutil.Process]:
        return [self._running, *self._running.children(recursive=True)]

    def _provide_data(self) -> None:
        if self._template is None:
            self._install(self.data)
            return
        if not self._template.exists():
            self._install(self._template)
        subprocess.run(["cp", "-a", self._template, self.data], check=True)

    def _launch(self) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-I", str(_GUARDIAN), str(self.folder), ordinary_user() or "", *self._command()]
        with (self.folder / "log").open("ab") as log:
            guardian = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env={**os.environ, "LC_ALL": "C", **self.environment},
                start_new_session=True,  # a Ctrl-C at the terminal is for the tests
            )
        assert guardian.stdout is not None
        with guardian.stdout as answer:
            pid = answer.readline()
        if not pid:
            guardian.communicate()
            raise RuntimeError(f"{self.name} cannot be run: {self.log}")
        self._server = psutil.Process(int(pid))
        return guardian

    def _wait_for_answer(self) -> None:
        deadline = time.monotonic() + _START_LIMIT
        while True:
            try:
                return self._ping()
            except Exception as error:
                if self._ended() or time.monotonic() > deadline:
                    raise RuntimeError(f"{self.name} does not start: {error}\n{self.log[-4000:]}") from error
            time.sleep(0.02)

    def _ended(self) -> bool:
        return self._guardian is None or self._guardian.poll() is not None

    def _reap(self) -> None:
        assert self._guardian is not None
        self._guardian.wait(_STOP_LIMIT)
        assert self._guardian.stdin is not None
        self._guardian.stdin.close()
        self._guardian = self._server = None


class Lab:
    """The servers that the tests of a session share, started when first asked for. A context object."""

    def __init__(self) -> None:
        self._folder: Path | None = None
        self._shared: dict[type[Server], Server] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        for server in self._shared.values():
            server.close()
        if self._folder is not None:
            shutil.rmtree(self._folder)

    def shared(self, kind: type[Server]) -> Server:
        """Return the running server that all tests share. They must leave it as they found it."""
        if kind not in self._shared:
            self._shared[kind] = self.private(kind).__enter__()
        return self._shared[kind]

    def private(self, kind: type[Server], *, durable: bool = False) -> Server:
        """Return a new server, not started, for one test to do with as it likes."""
        return kind(template=self.folder / kind.__name__, durable=durable)

    def wall_clock(self) -> WallClock:
        """Return a wall clock that shows the true time until it is set."""
        library = self.folder / "clock_shim.so"
        if not library.exists():
            build_shim(self.folder)
        return WallClock(library, self.folder / f"clock-{uuid.uuid4().hex}")

    @property
    def folder(self) -> Path:
        """Where prepared data are kept for the session."""
        if self._folder is None:
            self._folder = Path(tempfile.mkdtemp(prefix="psched-lab-"))
            own(self._folder)
        return self._folder

    @property
    def processes(self) -> set[int]:
        """The pids of the shared servers."""
        return set().union(*(server.processes for server in self._shared.values()))

    @property
    def descriptors(self) -> set[int]:
        """The file descriptors kept open for the shared servers."""
        return set().union(*(server.descriptors for server in self._shared.values()))


def _lives(process: psutil.Process) -> bool:
    """Tell whether a process still holds its files and ports, which a zombie does not."""
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def ordinary_user() -> str | None:
    """Return whom servers run as: nobody when we are root, as PostgreSQL refuses root; None means ourselves."""
    return "nobody" if os.geteuid() == 0 else None


def own(path: Path) -> None:
    """Give a path to the user that servers run as."""
    if user := ordinary_user():
        shutil.chown(path, user)


def run_as_owner(command: list[str | Path], text: str = "") -> None:
    """Run a command as the servers' user, `text` on its stdin.

    Raises:
        RuntimeError: it failed; its output is in the message.
    """
    user = ordinary_user()
    done = subprocess.run(
        command,
        input=text,
        text=True,
        capture_output=True,
        cwd="/",
        check=False,
        user=user,
        group=pwd.getpwnam(user).pw_gid if user else None,
        extra_groups=[] if user else None,
    )
    if done.returncode != 0:
        raise RuntimeError(f"{command[0]} ended with {done.returncode}: {done.stdout}{done.stderr}")


def free_port(choose: Callable[[range], int] = random.choice) -> int:
    """Return a loopback port that nobody listens on."""
    while True:
        port = choose(_PORTS)
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if probe.connect_ex((HOST, port)) != 0:
                return port
