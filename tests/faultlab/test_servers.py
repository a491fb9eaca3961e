"""Private servers can be broken and restored with their data, and end with the tests."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import ClassVar

import psutil
import pytest
import sqlalchemy as sa

from faultlab.laboratory import Lab
from faultlab.redis import Redis
from faultlab.servers import Server
from faultlab.sql import connect
from faultlab.unprivileged import chown_to_server_user

_KILLED_TESTS = """
import os, signal, sys
from pathlib import Path
from faultlab.mariadb import MariaDB
from faultlab.postgresql import PostgreSQL

server = {"MariaDB": MariaDB, "PostgreSQL": PostgreSQL}[sys.argv[1]](template=Path(sys.argv[2]))
server.start()
server.pause()
print(*server.processes, server.folder, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def url(own_server: Server) -> str:
    """The URL of a database with a table of one row, on a private server."""
    url = own_server.url(own_server.create_database())
    with connect(url) as connection:
        connection.execute(sa.text("CREATE TABLE t (n INTEGER)"))
        connection.execute(sa.text("INSERT INTO t VALUES (7)"))
    return url


def _read(url: str) -> int | None:
    with connect(url) as connection:
        return connection.scalars(sa.text("SELECT n FROM t")).one_or_none()


@pytest.mark.parametrize("end", ["stop", "kill"])
def test_a_server_comes_back_on_its_port_with_its_data(own_server: Server, url: str, end: str) -> None:
    getattr(own_server, end)()
    with pytest.raises(sa.exc.OperationalError):
        _read(url)
    own_server.start()
    assert _read(url) == 7


def test_a_frozen_server_answers_nobody_until_it_is_thawed(own_server: Server, url: str) -> None:
    own_server.pause()
    with ThreadPoolExecutor(1) as pool:
        reading = pool.submit(_read, url)
        with pytest.raises(TimeoutError):
            reading.result(0.2)
        own_server.resume()
        assert reading.result(10) == 7


def test_the_user_of_a_url_may_not_write_on_a_read_only_server(own_server: Server, url: str) -> None:
    own_server.set_read_only()
    with connect(url) as connection, pytest.raises(sa.exc.DBAPIError, match="read.only"):
        connection.execute(sa.text("INSERT INTO t VALUES (8)"))
    own_server.set_writable()
    deadline = time.monotonic() + 10
    while not written(url):
        assert time.monotonic() < deadline, "it stays read-only"


def written(url: str) -> bool:
    """Insert a row in a new session.

    Return whether that succeeded. PostgreSQL needs a moment to apply changed settings.
    """
    with connect(url) as connection, contextlib.suppress(sa.exc.DBAPIError):
        return connection.execute(sa.text("INSERT INTO t VALUES (9)")).rowcount == 1
    return False


def test_a_database_is_dropped_though_a_session_still_reads_it(server: Server) -> None:
    name = server.create_database()
    with connect(server.url(name)) as connection:
        for statement in ("CREATE TABLE t (n INTEGER)", "BEGIN", "SELECT * FROM t"):
            connection.execute(sa.text(statement))
        server.drop_database(name)
        with pytest.raises(sa.exc.OperationalError):
            connection.execute(sa.text("SELECT 1"))


def test_redis_comes_back_with_its_data_and_empties_one_database(lab: Lab) -> None:
    server = lab.private(Redis)
    assert isinstance(server, Redis)
    with server:
        first, second = server.create_database(), server.create_database()
        for database in (first, second):
            server.command("SET", "key", "value", database=database)
        server.kill()
        server.start()
        server.drop_database(first)
        assert server.command("EXISTS", "key", database=first) == b":0"
        assert server.command("EXISTS", "key", database=second) == b":1"


class SlowlyInstalled(Redis):
    """A server that takes so long to prepare its data that another session asks for the data meanwhile."""

    installed: ClassVar[list[Path]] = []

    def _install(self, data: Path) -> None:
        time.sleep(0.2)
        super()._install(data)
        self.installed.append(data)


def test_the_data_of_servers_are_prepared_once_for_all_sessions(tmp_path: Path) -> None:
    chown_to_server_user(tmp_path)
    servers = [SlowlyInstalled(template=tmp_path / "template") for _ in range(2)]
    with ThreadPoolExecutor() as sessions:
        list(sessions.map(Server.start, servers))
    for server in servers:
        server.close()
    assert len(SlowlyInstalled.installed) == 1


def test_a_server_that_cannot_start_says_why(lab: Lab, server: Server) -> None:
    with lab.private(type(server)) as other:
        other.stop()
        shutil.rmtree(other.data)
        other.data.touch()
        with pytest.raises(RuntimeError, match="(?s)does not start.*(Not a directory|not a directory)"):
            other.start()


def test_a_server_whose_port_is_taken_says_so(lab: Lab, server: Server) -> None:
    other = lab.private(type(server))
    other.port = server.port
    with pytest.raises(RuntimeError, match=f"listens on its port {server.port}"):
        other.start()
    other.close()


def test_a_server_dies_with_tests_that_are_killed_even_when_frozen(lab: Lab, server: Server) -> None:
    command = [sys.executable, "-c", _KILLED_TESTS, server.name, str(lab.templates / type(server).__name__)]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, timeout=30, check=False)
    assert done.returncode == -signal.SIGKILL
    *pids, folder = done.stdout.split()
    _wait_until_gone([int(pid) for pid in pids])
    assert not Path(folder).exists()


def _wait_until_gone(pids: list[int]) -> None:
    deadline = time.monotonic() + 10
    while living := list(_living(pids)):
        assert time.monotonic() < deadline, f"still there: {living}"
        time.sleep(0.01)


def _living(pids: list[int]) -> Iterator[psutil.Process]:
    for pid in pids:
        try:
            process = psutil.Process(pid)
            if process.status() != psutil.STATUS_ZOMBIE:
                yield process
        except psutil.NoSuchProcess:
            continue
