"""A pooler between psched and its database: each transaction sets what psched needs, and none of that outlives it.

The conformance tests run through poolers too: see `POOLERS` in databases.py.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import psycopg
import pymysql
import pytest
import sqlalchemy as sa

from faultlab.mysql_multiplexer import MultiplexedMariaDB
from faultlab.pgbouncer import PgBouncer
from faultlab.servers import PASSWORD, Server
from psched import ConfigError
from psched.backends import open_stores
from psched.backends.sql import open_database
from psched.backends.sql.database import Database
from psched.backends.sql.host_wakeup import HostWakeup
from psched.errors import AlreadyExistsError, PoolerError
from psched.model import NewTask
from psched.store import Stores, StoreSettings
from tests.stores.bench import HOURLY, LONG_AGO, soon
from tests.stores.databases import STORES

DATA = {"text": "'; DROP TABLE queue; -- \\ %s %(x)s ä", "number": -1}

SETTINGS = {
    "statement_timeout": "8s",
    "lock_timeout": "4s",
    "idle_in_transaction_session_timeout": "10s",
    "transaction_isolation": "read committed",
    "enable_seqscan": "off",
    "enable_bitmapscan": "off",
    "enable_sort": "off",
    "jit": "off",
}


@pytest.fixture
def pooler(postgresql: Server, request: pytest.FixtureRequest) -> Iterator[PgBouncer]:
    """A PgBouncer in the mode of the test's parameter, with one session for all clients of a database."""
    with PgBouncer(postgresql, request.param) as pooler:
        yield pooler


@pytest.fixture
def database(pooler: PgBouncer) -> Iterator[str]:
    """The name of an empty database behind the pooler."""
    name = pooler.create_database()
    yield name
    pooler.drop_database(name)


def opened(type_: str, url: str, pooler: str = "auto", **further: Any) -> Stores:
    settings = StoreSettings(url, "host/1/x", schedules="schedules", queue="queue", pooler=pooler, **further)
    return open_stores(type_, settings)


def session_of(neighbour: psycopg.Connection[Any]) -> list[tuple[Any, ...]]:
    """Return the state of a client's session: settings, prepared statements, cursors, channels, locks, tables."""
    neighbour.execute("DO $$ BEGIN END $$")  # loads PL/pgSQL, which has settings of its own
    settings = neighbour.execute("SELECT pg_backend_pid()::text, name, setting FROM pg_settings ORDER BY name")
    others = [
        neighbour.execute(query).fetchall()
        for query in (
            "SELECT name FROM pg_prepared_statements",
            "SELECT name FROM pg_cursors WHERE name <> ''",
            "SELECT * FROM pg_listening_channels()",
            "SELECT objid FROM pg_locks WHERE locktype = 'advisory'",
            "SELECT relname FROM pg_class WHERE relpersistence = 't'",
        )
    ]
    assert len(others) == 5
    return [*settings.fetchall(), *(row for rows in others for row in rows)]


def use(stores: Stores) -> None:
    """Make the tables and call the methods of both stores, often enough for a driver to prepare their statements."""
    schedules, queue = stores.schedules, stores.queue
    assert schedules is not None
    assert queue is not None
    for store in (schedules, queue):
        store.create_tables()
        store.check_tables()
        assert all(finding.ok for finding in store.diagnose())
        wakeup = store.open_wakeup()
        assert wakeup is None or isinstance(wakeup, HostWakeup), "a pooler cannot notify"
        if wakeup is not None:
            wakeup.close()
    schedules.add("s", "t", HOURLY, LONG_AGO, LONG_AGO, {"a": -1})
    for number in range(8):
        (claim,) = schedules.acquire(1, 10)
        schedules.advance(claim, claim.row.next_time + 3600, claim.row.next_time + 3600, soon())
        queue.submit([NewTask(f"task{number}", "t", DATA)])
        (task,) = queue.acquire(1, 10)
        assert task.row.data == DATA
        queue.retire(task, "finished", None, 300, soon())
    assert queue.submit([NewTask("task1", "t"), NewTask("new", "t")]) == ["task1"]
    with pytest.raises(AlreadyExistsError):
        schedules.add("s", "t", HOURLY, LONG_AGO, LONG_AGO, {})
    schedules.close()
    queue.close()


@pytest.mark.parametrize("type_", STORES)
@pytest.mark.parametrize("setting", ["auto", "transaction"])
@pytest.mark.parametrize("pooler", ["transaction"], indirect=True)
def test_the_sessions_of_other_clients_stay_as_they_are(
    type_: str, setting: str, pooler: PgBouncer, database: str
) -> None:
    """The pooler has one session, so psched uses the other client's."""
    with pooler.connect(database) as neighbour:
        before = session_of(neighbour)
        use(opened(type_, pooler.url(database), setting))
        assert session_of(neighbour) == before


@pytest.fixture
def behind(pooler: PgBouncer, database: str) -> Iterator[Database]:
    """The database, as psched reaches it through the pooler."""
    with contextlib.closing(open_database(pooler.url(database), {})) as behind:
        yield behind


def current_settings(connection: sa.Connection) -> dict[str, str]:
    return {name: connection.exec_driver_sql(f"SHOW {name}").scalar_one() for name in SETTINGS}


@pytest.mark.parametrize("pooler", ["transaction"], indirect=True)
def test_each_transaction_has_psched_s_settings_whatever_the_session_has(
    pooler: PgBouncer, database: str, behind: Database
) -> None:
    with pooler.connect(database) as neighbour:
        neighbour.execute("SET default_transaction_isolation = 'serializable'; SET statement_timeout = '1min'")
    assert behind.run(lambda connection, _: current_settings(connection)) == SETTINGS

    def in_a_transaction(connection: sa.Connection, _: bool) -> dict[str, str]:
        with behind.transaction(connection):
            return current_settings(connection)

    assert behind.run(in_a_transaction) == SETTINGS
    with pooler.connect(database) as neighbour:
        assert neighbour.execute("SHOW statement_timeout").fetchall() == [("1min",)]


@pytest.mark.parametrize("pooler", ["transaction"], indirect=True)
def test_a_statement_that_fails_leaves_no_transaction_open(behind: Database) -> None:
    def fail(connection: sa.Connection, _: bool) -> None:
        for _ in range(2):
            with pytest.raises(sa.exc.DataError):
                connection.execute(sa.text("SELECT 1 / :zero"), {"zero": 0})
        with pytest.raises(sa.exc.DataError), behind.transaction(connection):
            connection.execute(sa.text("SELECT 1 / :zero"), {"zero": 0})
        assert connection.exec_driver_sql("SELECT 1").scalar() == 1

    behind.run(fail)
    query = (
        "SELECT count(*) FROM pg_stat_activity WHERE state LIKE 'idle in transaction%' AND datname = current_database()"
    )
    assert behind.scalar(sa.text(query)) == 0


@pytest.mark.parametrize("pooler", ["transaction"], indirect=True)
@pytest.mark.parametrize("number", [-(2**31), -(2**63), -1, 0, 2**63 - 1])
def test_every_number_arrives(behind: Database, number: int) -> None:
    kind = sa.Integer() if abs(number) <= 2**31 else sa.BigInteger()
    assert behind.scalar(sa.select(sa.literal(number, kind))) == number


@pytest.mark.parametrize("pooler", ["transaction"], indirect=True)
def test_a_login_that_the_pooler_refuses_is_no_lost_connection(pooler: PgBouncer, database: str) -> None:
    queue = opened("rdb", pooler.url(database).replace(PASSWORD, "wrong")).queue
    assert queue is not None
    with contextlib.closing(queue), pytest.raises(sa.exc.OperationalError) as caught:
        queue.now()
    assert queue.is_refused(caught.value)
    assert not queue.is_unavailable(caught.value)


@pytest.mark.parametrize("type_", STORES)
@pytest.mark.parametrize("pooler", ["statement"], indirect=True)
def test_a_pooler_without_transactions_is_refused_with_the_remedy(type_: str, pooler: PgBouncer, database: str) -> None:
    stores = opened(type_, pooler.url(database))
    assert stores.schedules is not None
    for call in (stores.schedules.create_tables, stores.schedules.check_tables, stores.schedules.now):
        with pytest.raises(ConfigError, match="set its pool_mode = transaction"):
            call()


def test_a_driver_that_cannot_use_a_pooler_is_refused_with_the_remedy() -> None:
    """The connection is a stand-in for one of psycopg 2."""
    rows = SimpleNamespace(execute=print, fetchone=lambda: (2,))
    closed: list[bool] = []
    connection = SimpleNamespace(
        info=SimpleNamespace(backend_pid=1),
        cursor=lambda: contextlib.nullcontext(rows),
        close=lambda: closed.append(True),
    )
    dialect = open_database("postgresql://h/d", {}).dialect
    other = type(dialect)(dialect.url.set(drivername="postgresql+psycopg2"), None, dialect.timeouts)
    with pytest.raises(PoolerError, match=r"write postgresql:// instead of postgresql\+psycopg2://"):
        other.prepare(connection)
    assert closed


@pytest.mark.parametrize("pooler", ["transaction"], indirect=True)
def test_a_pooler_that_has_come_since_ends_listening(
    postgresql: Server, pooler: PgBouncer, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = opened("rdb", postgresql.url(database)).queue
    assert queue is not None
    with contextlib.closing(queue):
        queue.create_tables()
        wakeup = queue.open_wakeup()
        assert wakeup is not None
        connect = psycopg.connect
        monkeypatch.setattr(psycopg, "connect", lambda *_, **options: connect(*_, **{**options, "port": pooler.port}))
        with pytest.raises(PoolerError, match="find new rows only by polling"):
            wakeup.listen(1)
        assert queue.open_wakeup() is None


@pytest.mark.parametrize("type_", STORES)
@pytest.mark.parametrize("pooler", ["session"], indirect=True)
def test_sessions_of_ones_own_are_used_when_the_configuration_says_so(
    type_: str, pooler: PgBouncer, database: str
) -> None:
    pooler.stop()
    pooler.sessions = 4
    pooler.start()
    stores = opened(type_, pooler.url(database), "session")
    assert stores.queue is not None
    stores.queue.create_tables()
    stores.queue.check_tables()
    assert stores.queue.acquire(1, 10) == []
    assert ("pooler", True) in [(finding.subject, finding.ok) for finding in stores.queue.diagnose()]
    assert (stores.queue.open_wakeup() is None) == (type_ == "rdb_compat")
    stores.queue.close()
    with pooler.connect(database) as neighbour:
        ((setting,),) = neighbour.execute("SHOW enable_seqscan").fetchall()
    assert setting == "on", "PgBouncer resets a session before it gives it to another client"


@pytest.mark.parametrize("type_", STORES)
@pytest.mark.parametrize("pooler", ["transaction", "statement"], indirect=True)
def test_doctor_finds_out_that_sessions_are_shared_all_the_same(type_: str, pooler: PgBouncer, database: str) -> None:
    queue = opened(type_, pooler.url(database), "session").queue
    assert queue is not None
    with contextlib.closing(queue):
        finding = next(finding for finding in queue.diagnose() if finding.subject == "pooler")
    assert not finding.ok
    assert "pool_mode = session" in finding.text


@pytest.mark.parametrize("setting", ["auto", "transaction"])
@pytest.mark.parametrize("pooler", ["transaction"], indirect=True)
def test_doctor_says_whether_a_pooler_is_there(
    postgresql: Server, pooler: PgBouncer, database: str, setting: str
) -> None:
    told = {}
    for server in (pooler, postgresql):
        queue = opened("rdb", server.url(database), setting).queue
        assert queue is not None
        with contextlib.closing(queue):
            findings = [finding for finding in queue.diagnose() if finding.subject == "pooler"]
        told[server] = findings[0].text if findings else None
    assert "nothing in its sessions" in str(told[pooler])
    assert told[postgresql] == (
        None if setting == "auto" else "there is no pooler; remove `pooler:`, so that new rows wake workers"
    )


@pytest.fixture
def multiplexer(mariadb: Server) -> Iterator[MultiplexedMariaDB]:
    """A pooler before MariaDB, with one session for all clients of a database."""
    with MultiplexedMariaDB(mariadb, sessions=1) as multiplexer:
        yield multiplexer


def mysql_session_of(neighbour: pymysql.Connection) -> list[tuple[Any, ...]]:
    """Return the variables of a client's session, without those that change with what the session has done."""
    with neighbour.cursor() as cursor:
        cursor.execute("SHOW SESSION VARIABLES")
        variables = [
            row for row in cursor.fetchall() if row[0] not in ("timestamp", "last_gtid", "rand_seed1", "rand_seed2")
        ]
        cursor.execute("SELECT IS_USED_LOCK('queue'), @@in_transaction, CONNECTION_ID() = @@pseudo_thread_id")
        return [*variables, *cursor.fetchall()]


CHANGING = ("timestamp", "last_gtid", "rand_seed1", "rand_seed2")
UNLOCKED = {"disable_resource_limit": True, "use_connection_pooling": True}


@pytest.mark.parametrize("type_", STORES)
def test_the_sessions_of_other_clients_of_mariadb_stay_as_they_are(type_: str, multiplexer: MultiplexedMariaDB) -> None:
    name = multiplexer.create_database()
    with multiplexer.connect(name) as neighbour:
        before = mysql_session_of(neighbour)
        use(opened(type_, multiplexer.url(name), "transaction", **UNLOCKED))
        assert mysql_session_of(neighbour) == before
    multiplexer.drop_database(name)


def test_doctor_names_what_a_server_behind_a_pooler_should_have_set(mariadb: Server) -> None:
    name = mariadb.create_database()
    queue = opened("rdb", mariadb.url(name), "transaction").queue
    assert queue is not None
    with contextlib.closing(queue):
        told = next(finding for finding in queue.diagnose() if finding.subject == "pooler")
    assert told.warning
    assert told.text.endswith(
        "; set on the server: transaction_isolation = READ-COMMITTED (fewer deadlocks), innodb_lock_wait_timeout = 4"
    )
    mariadb.drop_database(name)


def test_the_lock_that_perfectqueue_shares_is_refused_behind_a_pooler_of_transactions() -> None:
    with pytest.raises(ConfigError, match="PerfectQueue's workers share a table lock, which a pooled session"):
        opened("rdb_compat", "mysql://u:p@h/d", "transaction")
    for is_fine in ({"pooler": "auto"}, {"pooler": "transaction", **UNLOCKED}):
        opened("rdb_compat", "mysql://u:p@h/d", **is_fine)
