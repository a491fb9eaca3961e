"""Statements executed by the driver's cursor behave like those that SQLAlchemy executes, and connections are kept."""

from __future__ import annotations

import gc
import os
import sqlite3
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pytest
import sqlalchemy as sa

from psched.backends.sql import open_database
from psched.backends.sql.compiled_statements import PooledConnection, Statement, execute_text
from psched.backends.sql.database import Database
from psched.config import coerce
from psched.queue.queue import open_queue
from tests.stores.bench import eventually

INSERT = "INSERT INTO secrets VALUES (?)"


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    with closing(open_database(f"sqlite:///{tmp_path / 'test.db'}", {}, connections=2)) as database:
        database.dialect.create_database()
        database.run(lambda connection, _: connection.exec_driver_sql("CREATE TABLE secrets (word TEXT PRIMARY KEY)"))
        yield database


def insert(word: str) -> Any:
    def work(connection: sa.Connection, _: bool) -> int:
        count: int = execute_text(connection, INSERT, (word,)).rowcount
        return count

    return work


def test_a_statement_is_committed_and_its_rows_are_counted(database: Database) -> None:
    assert database.run(insert("a")) == 1
    assert database.run(lambda connection, _: connection.exec_driver_sql("SELECT count(*) FROM secrets").scalar()) == 1


@pytest.mark.parametrize("count", [1, 2, 3, 5])
def test_a_statement_on_keys_is_done_for_each_of_them_once(database: Database, count: int) -> None:
    words = [f"word {number}" for number in range(count)]
    for word in [*words, "another"]:
        database.run(insert(word))
    secrets = sa.table("secrets", sa.column("word", sa.String))
    marking = sa.update(secrets).where(secrets.c.word.in_(sa.bindparam("keys", expanding=True)))
    mark = Statement(marking.values(word=secrets.c.word + sa.bindparam("mark")))
    assert database.run(lambda connection, _: mark.execute_on(connection, words, {"mark": "!"})) == count
    found = database.run(lambda connection, _: connection.execute(sa.select(secrets.c.word)).scalars().all())
    assert sorted(found) == ["another", *(f"{word}!" for word in words)]


def test_a_statement_of_sqlalchemys_is_done_in_the_same_transaction(database: Database) -> None:
    count = sa.text("SELECT count(*) FROM secrets")

    def work(connection: sa.Connection, uncertain: bool) -> list[int]:
        execute_text(connection, "BEGIN")
        insert("a")(connection, uncertain)
        counted = [connection.execute(count).scalar_one()]
        execute_text(connection, "ROLLBACK")
        return [*counted, connection.execute(count).scalar_one()]

    assert database.run(work) == [1, 0]
    assert database.run(insert("a")) == 1, "the connection is the pool's again"


def test_an_error_is_sqlalchemys_and_shows_no_parameter(database: Database) -> None:
    database.run(insert("password"))
    with pytest.raises(sa.exc.IntegrityError) as caught:
        database.run(insert("password"))
    assert database.dialect.is_duplicate_key(caught.value)
    assert INSERT in str(caught.value)
    assert "password" not in str(caught.value)


BY_SQLALCHEMY_TOO = pytest.mark.parametrize("execute", [execute_text, sa.Connection.exec_driver_sql])
"""Parameters: the two functions that execute a text."""


@BY_SQLALCHEMY_TOO
def test_all_connections_that_died_together_are_one_loss(database: Database, execute: Any) -> None:
    def work(connection: sa.Connection, uncertain: bool) -> int:
        count: int = execute(connection, INSERT, ("a",)).rowcount
        return count

    with open_connections(database, 2) as connections:
        for connection in connections:
            connection.close()
    assert len(database._pool._idle) == 2
    assert database.run(work) == 1


@contextmanager
def open_connections(database: Database, count: int) -> Iterator[list[Any]]:
    """Yield `count` connections of the driver from the pool, and return them to the pool afterwards."""
    taken = [database._pool.take() for _ in range(count)]
    yield [each.connection.dbapi_connection for each in taken]
    for each in taken:
        database._pool.release(each)


def test_who_listens_to_sqlalchemy_hears_of_each_statement(database: Database) -> None:
    heard: list[str] = []

    def note(connection: Any, cursor: Any, statement: str, *_: Any) -> None:
        heard.append(statement)

    sa.event.listen(sa.Engine, "before_cursor_execute", note)
    try:
        database.run(insert("a"))
    finally:
        sa.event.remove(sa.Engine, "before_cursor_execute", note)
    assert heard == [INSERT]


@BY_SQLALCHEMY_TOO
def test_an_error_met_while_rows_are_fetched_is_as_sqlalchemy_raises_it(database: Database, execute: Any) -> None:
    numbers = "WITH RECURSIVE n(x) AS (VALUES (1) UNION ALL SELECT x + 1 FROM n WHERE x < 3)"
    overflows = f"{numbers} SELECT CASE WHEN x < 3 THEN x ELSE abs(-9223372036854775808) END FROM n"
    with pytest.raises(sa.exc.OperationalError, match="integer overflow"):
        database.run(lambda connection, _: execute(connection, overflows, ()).fetchall())


@pytest.fixture
def alone() -> Iterator[Database]:
    """A database in memory, which has a single connection."""
    with closing(open_database("sqlite:///:memory:?read_timeout=60", {})) as database:
        database.run(lambda connection, _: connection.exec_driver_sql("CREATE TABLE secrets (word TEXT PRIMARY KEY)"))
        yield database


def count(connection: sa.Connection, uncertain: bool) -> int:
    return int(connection.exec_driver_sql("SELECT count(*) FROM secrets").scalar_one())


class ObservedPlaces(SimpleQueue[None]):
    """The free places of a pool, at first none. `is_waited_for`: whether a thread waits for one."""

    is_waited_for = False

    def get(self, block: bool = True, timeout: float | None = None) -> None:
        self.is_waited_for = self.empty()
        super().get(block, timeout)


def test_an_idle_connection_serves_statements_of_both_kinds(alone: Database) -> None:
    assert alone.run(insert("a")) == 1
    assert alone.run(count) == 1
    assert alone.run(insert("b")) == 1
    assert alone.run(count) == 2


def test_a_thread_that_waits_for_the_pool_gets_the_connection_when_its_work_is_done(alone: Database) -> None:
    found: list[int] = []
    waiter = threading.Thread(target=lambda: found.append(alone.run(count)))

    places = ObservedPlaces()

    def work(connection: sa.Connection, uncertain: bool) -> int:
        alone._pool._free = places
        waiter.start()
        eventually(lambda: places.is_waited_for)
        return int(insert("a")(connection, uncertain))

    assert alone.run(work) == 1
    waiter.join(20)
    assert found == [1]


def test_a_thread_that_finds_all_connections_busy_is_refused_after_the_read_timeout() -> None:
    with closing(open_database("sqlite:///:memory:?read_timeout=0.1", {})) as alone:
        connection = alone._pool.take()
        with pytest.raises(sa.exc.TimeoutError, match=r"no connection became free within 0\.1 s"):
            alone.run(count)
        alone._pool.release(connection)
        assert alone.run(lambda connection, _: connection.exec_driver_sql("SELECT 1").scalar()) == 1


def test_a_connection_that_cannot_be_opened_leaves_its_place_free(tmp_path: Path) -> None:
    with closing(open_database(f"sqlite:///{tmp_path / 'missing.db'}", {})) as database:
        for _ in range(10):
            with pytest.raises(sa.exc.OperationalError, match="does not exist"):
                database.run(count)


def test_a_connection_that_work_has_lost_without_an_error_of_its_own_is_not_kept(database: Database) -> None:
    def work(connection: sa.Connection, _: bool) -> int:
        connection.invalidate()
        return 1

    assert database.run(work) == 1
    assert not database._pool._idle
    assert database.run(insert("a")) == 1


def test_a_connection_whose_work_was_interrupted_is_not_kept(database: Database) -> None:
    """The driver may not have read the whole answer, and the next statement would read the rest of it."""

    def interrupted(connection: sa.Connection, _: bool) -> int:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        database.run(interrupted)
    assert not database._pool._idle
    assert database.run(insert("a")) == 1


def test_no_more_connections_stay_idle_than_configured(database: Database) -> None:
    with open_connections(database, 3) as connections:
        pass
    assert len(database._pool._idle) == 2
    with pytest.raises(sqlite3.ProgrammingError, match="closed database"):
        connections[-1].execute("SELECT 1")


@BY_SQLALCHEMY_TOO
def test_a_database_that_was_closed_amid_a_statement_closes_its_connection_then(
    database: Database, execute: Any
) -> None:
    def work(connection: sa.Connection, uncertain: bool) -> Any:
        database.close()
        execute(connection, INSERT, ("a",))
        return connection.connection.dbapi_connection

    with pytest.raises(sqlite3.ProgrammingError, match="closed database"):
        database.run(work).execute("SELECT 1")
    assert not database._pool._idle


class Interrupted(deque[PooledConnection]):
    """The pool's container of idle connections. It calls `meanwhile` right before a connection is added."""

    def __init__(self, meanwhile: Callable[[], object]) -> None:
        self._meanwhile = meanwhile

    def append(self, connection: PooledConnection) -> None:
        self._meanwhile()
        super().append(connection)


def test_a_connection_that_is_released_while_the_database_is_closed_is_closed_too(database: Database) -> None:
    connection = database._pool.take()
    driver: Any = connection.connection.dbapi_connection
    database._pool._idle = Interrupted(database.close)
    database._pool.release(connection)
    with pytest.raises(sqlite3.ProgrammingError, match="closed database"):
        driver.execute("SELECT 1")


def test_a_thread_that_begins_to_wait_while_a_connection_is_released_gets_it(alone: Database) -> None:
    found: list[PooledConnection] = []
    waiter = threading.Thread(target=lambda: found.append(alone._pool.take()))

    places = ObservedPlaces()

    def wait_for_the_pool() -> None:
        alone._pool._free = places
        waiter.start()
        eventually(lambda: places.is_waited_for)

    connection = alone._pool.take()
    alone._pool._idle = Interrupted(wait_for_the_pool)
    alone._pool.release(connection)
    waiter.join(20)
    assert found == [connection]


def test_a_fork_makes_a_new_engine_for_connections_only(database: Database) -> None:
    """Otherwise a process that has opened and closed a thousand databases would make as many engines in each fork."""
    assert not has_new_engine_after_fork(database), "connections to SQLite are closed before"
    taken = database._pool.take()
    assert has_new_engine_after_fork(database)
    database._pool.release(taken)
    database.close()
    assert not has_new_engine_after_fork(database)
    database.dedicated().close()
    assert has_new_engine_after_fork(database)


def has_new_engine_after_fork(database: Database) -> bool:
    engine = database._engine
    child = os.fork()
    if child == 0:
        os._exit(database._engine is not engine)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 1


def test_a_statement_compiled_for_a_database_does_not_keep_it(tmp_path: Path) -> None:
    database = open_database(f"sqlite:///{tmp_path / 'test.db'}", {})
    compiled = sa.select(1).compile(dialect=database.compiler)
    found = weakref.ref(database)
    database.close()
    del database
    gc.collect()
    assert found() is None, compiled


@contextmanager
def recorded_connections(opened: list[object]) -> Iterator[None]:
    """Add each connection that is opened in the block to `opened`."""

    def record(connection: object, _: object) -> None:
        opened.append(connection)

    sa.event.listen(sa.Engine, "connect", record)
    try:
        yield
    finally:
        sa.event.remove(sa.Engine, "connect", record)


def test_threads_that_submit_at_the_same_time_keep_their_connections(tmp_path: Path) -> None:
    config = coerce({"type": "rdb", "url": f"sqlite:///{tmp_path / 'test.db'}", "queue": {}})
    assert config.queue is not None
    opened: list[object] = []
    together = threading.Barrier(4)
    with open_queue(config.queue, "client") as queue:
        queue.store.create_tables()

        def submit(thread: int) -> None:
            for number in range(10):
                together.wait()
                queue.submit(f"task-{thread}-{number}", "report")

        threads = [threading.Thread(target=submit, args=(number,)) for number in range(4)]
        with recorded_connections(opened):
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
    assert len(opened) <= 4
