"""With mysqlclient psched waits, loses connections and forks as with PyMySQL."""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Iterator
from contextlib import closing

import pytest
import sqlalchemy as sa

from faultlab import prerequisites
from faultlab.proxy import Proxy
from faultlab.servers import Server
from psched.backends.common.retries import RetryReason
from psched.backends.sql import open_database
from psched.backends.sql.database import Database

_SESSION = sa.text("SELECT connection_id()")


@pytest.fixture
def proxy(mariadb: Server) -> Iterator[Proxy]:
    with Proxy(mariadb.port) as proxy:
        yield proxy


@pytest.fixture
def database(mariadb: Server, proxy: Proxy) -> Iterator[Database]:
    prerequisites.require_mysqlclient()
    url = mariadb.url(mariadb.create_database(), proxy.port).replace("mysql:", "mysql+mysqldb:")
    with closing(open_database(f"{url}?read_timeout=1&connect_timeout=1", {})) as database:
        yield database


def test_a_silent_server_is_a_lost_connection_after_the_read_timeout(database: Database, proxy: Proxy) -> None:
    database.scalar(_SESSION, {})
    proxy.black_hole()
    begin = time.monotonic()
    with pytest.raises(sa.exc.OperationalError) as caught:
        database.scalar(_SESSION, {})
    assert database.retry_reason(caught.value) is RetryReason.LOST
    assert time.monotonic() - begin < 8  # two attempts, each with its timeouts
    proxy.pass_on()
    assert database.scalar(_SESSION, {})


def test_a_session_that_the_server_killed_is_replaced(database: Database, mariadb: Server) -> None:
    session = database.scalar(_SESSION, {})
    with mariadb.admin() as cursor:  # type: ignore[attr-defined]
        cursor.execute("KILL %s", [session])
    assert database.scalar(_SESSION, {}) != session


def test_a_wrong_password_is_a_refused_login(mariadb: Server) -> None:
    prerequisites.require_mysqlclient()
    url = mariadb.url("mysql").replace("mysql:", "mysql+mysqldb:").replace("secret@", "wrong@")
    with closing(open_database(url, {})) as database:
        with pytest.raises(sa.exc.OperationalError) as caught:
            database.scalar(_SESSION, {})
        assert database.is_refused(caught.value)
        assert database.retry_reason(caught.value) is None


def test_a_forked_process_that_frees_a_connection_does_not_end_its_parents_session(database: Database) -> None:
    session = database.scalar(_SESSION, {})
    child = os.fork()
    if child == 0:
        database._parents.clear()
        gc.collect()
        os._exit(database.scalar(_SESSION, {}) == session)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert database.scalar(_SESSION, {}) == session
