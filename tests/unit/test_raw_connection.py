"""Statements that are sent past SQLAlchemy's Connection behave as those that are not."""

from __future__ import annotations

import sqlite3
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from psched.backends.sql import open_database
from psched.backends.sql.connection import RawConnection, as_sqlalchemy
from psched.backends.sql.database import Database
from psched.backends.sql.statement import Executing, KeyedStatement
from tests.stores.bench import eventually

INSERT = "INSERT INTO secrets VALUES (?)"


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    with closing(open_database(f"sqlite:///{tmp_path / 'test.db'}", {}, connections=2)) as database:
        database.dialect.create_database()
        database.run(lambda connection, _: connection.exec_driver_sql("CREATE TABLE secrets (word TEXT PRIMARY KEY)"))
        yield database


def insert(word: str) -> Any:
    def work(connection: Executing, _: bool) -> int:
        count: int = connection.exec_driver_sql(INSERT, (word,)).rowcount
        return count

    return work


def test_a_statement_is_committed_and_its_rows_are_counted(database: Database) -> None:
    assert database.run_direct(insert("a")) == 1
    assert database.run(lambda connection, _: connection.exec_driver_sql("SELECT count(*) FROM secrets").scalar()) == 1


@pytest.mark.parametrize("count", [1, 2, 3, 5])
def test_a_statement_on_keys_is_done_for_each_of_them_once(database: Database, count: int) -> None:
    words = [f"word {number}" for number in range(count)]
    for word in [*words, "another"]:
        database.run_direct(insert(word))
    secrets = sa.table("secrets", sa.column("word", sa.String))
    marking = sa.update(secrets).where(secrets.c.word.in_(sa.bindparam("keys", expanding=True)))
    mark = KeyedStatement(marking.values(word=secrets.c.word + sa.bindparam("mark")))
    assert database.run_direct(lambda connection, _: mark.execute(connection, words, {"mark": "!"})) == count
    found = database.run(lambda connection, _: connection.execute(sa.select(secrets.c.word)).scalars().all())
    assert sorted(found) == ["another", *(f"{word}!" for word in words)]


def test_a_statement_of_sqlalchemys_is_done_in_the_same_transaction(database: Database) -> None:
    count = sa.text("SELECT count(*) FROM secrets")

    def work(connection: Executing, uncertain: bool) -> list[int]:
        connection.exec_driver_sql("BEGIN")
        insert("a")(connection, uncertain)
        counted = [as_sqlalchemy(connection).execute(count).scalar_one()]
        connection.exec_driver_sql("ROLLBACK")
        return [*counted, as_sqlalchemy(connection).execute(count).scalar_one()]

    assert database.run_direct(work) == [1, 0]
    assert database.run_direct(insert("a")) == 1, "the connection is the pool's again"


def test_an_error_is_sqlalchemys_and_shows_no_parameter(database: Database) -> None:
    database.run_direct(insert("password"))
    with pytest.raises(sa.exc.IntegrityError) as caught:
        database.run_direct(insert("password"))
    assert database.dialect.is_duplicate_key(caught.value)
    assert INSERT in str(caught.value)
    assert "password" not in str(caught.value)


@pytest.mark.parametrize("whole_from_the_start", [False, True])
def test_all_connections_that_died_together_are_one_loss(database: Database, whole_from_the_start: bool) -> None:
    def work(connection: Executing, uncertain: bool) -> Any:
        return insert("a")(as_sqlalchemy(connection) if whole_from_the_start else connection, uncertain)

    with open_connections(database, 2) as connections:
        for connection in connections:
            connection.close()
    assert database.run_direct(work) == 1


@contextmanager
def open_connections(database: Database, count: int) -> Iterator[list[Any]]:
    """Yield the driver's connections of the pool, which has them again afterwards."""
    taken = [database._engine.raw_connection() for _ in range(count)]
    yield [each.dbapi_connection for each in taken]
    for each in taken:
        each.close()


def test_who_listens_to_sqlalchemy_hears_of_each_statement(database: Database) -> None:
    heard: list[str] = []

    def note(connection: Any, cursor: Any, statement: str, *_: Any) -> None:
        heard.append(statement)

    sa.event.listen(sa.Engine, "before_cursor_execute", note)
    try:
        database.run_direct(insert("a"))
    finally:
        sa.event.remove(sa.Engine, "before_cursor_execute", note)
    assert heard == [INSERT]


def test_an_error_met_while_rows_are_fetched_is_as_sqlalchemy_raises_it(database: Database) -> None:
    numbers = "WITH RECURSIVE n(x) AS (VALUES (1) UNION ALL SELECT x + 1 FROM n WHERE x < 3)"
    overflows = f"{numbers} SELECT CASE WHEN x < 3 THEN x ELSE abs(-9223372036854775808) END FROM n"

    def work(connection: Executing, _: bool) -> Any:
        return connection.exec_driver_sql(overflows).fetchall()

    for run in (database.run, database.run_direct):
        with pytest.raises(sa.exc.OperationalError, match="integer overflow"):
            run(work)


@pytest.fixture
def alone() -> Iterator[Database]:
    """Yield a database in memory, which has a single connection."""
    with closing(open_database("sqlite:///:memory:?read_timeout=60", {})) as database:
        database.run(lambda connection, _: connection.exec_driver_sql("CREATE TABLE secrets (word TEXT PRIMARY KEY)"))
        yield database


def count(connection: sa.Connection, uncertain: bool) -> int:
    return int(connection.exec_driver_sql("SELECT count(*) FROM secrets").scalar_one())


def test_what_is_kept_between_single_statements_is_at_hand_for_all_else(alone: Database) -> None:
    assert alone.run_direct(insert("a")) == 1
    assert alone.run(count) == 1
    assert alone.run_direct(insert("b")) == 1
    assert alone.run(count) == 2


def test_who_waits_for_the_pool_gets_the_connection_of_a_single_statement(alone: Database) -> None:
    found: list[int] = []
    waiter = threading.Thread(target=lambda: found.append(alone.run(count)))

    def work(connection: Executing, uncertain: bool) -> int:
        waiter.start()
        eventually(lambda: alone._kept._asking)
        return int(insert("a")(connection, uncertain))

    assert alone.run_direct(work) == 1
    waiter.join(20)
    assert found == [1]


def test_kept_connections_that_died_together_are_one_loss(database: Database) -> None:
    for direct in [database._connected() for _ in range(2)]:
        database._kept.keep(direct)
    for direct in database._kept._idle:
        driver: Any = direct._connection.dbapi_connection
        driver.close()
    assert database.run_direct(insert("a")) == 1


def test_a_database_that_was_closed_amid_a_statement_closes_its_connection_then(database: Database) -> None:
    def work(connection: Executing, uncertain: bool) -> Any:
        database.close()
        insert(str(connection.__class__))(connection, uncertain)
        return used(connection)

    def used(connection: Executing) -> Any:
        found: Any = connection
        return (found.connection if isinstance(found, sa.Connection) else found._connection).dbapi_connection

    for run in (database.run, database.run_direct):
        with pytest.raises(sqlite3.ProgrammingError, match="closed database"):
            run(work).execute("SELECT 1")
    assert not database._kept._idle


class Interrupted(deque[RawConnection]):
    """Where connections are put aside; something else happens in the moment before."""

    def __init__(self, meanwhile: Callable[[], object]) -> None:
        self._meanwhile = meanwhile

    def append(self, direct: RawConnection) -> None:
        self._meanwhile()
        super().append(direct)


def test_a_connection_that_is_put_aside_while_the_database_is_closed_is_closed_too(database: Database) -> None:
    direct = database._connected()
    driver: Any = direct._connection.dbapi_connection
    database._kept._idle = Interrupted(database.close)
    database._kept.keep(direct)
    with pytest.raises(sqlite3.ProgrammingError, match="closed database"):
        driver.execute("SELECT 1")


def test_a_connection_that_is_put_aside_while_somebody_begins_to_wait_for_the_pool_is_his(alone: Database) -> None:
    asked, given = threading.Event(), threading.Event()

    def ask() -> None:
        asked.set()
        given.wait(20)

    waiter = threading.Thread(target=alone._kept.asking, args=(ask,))

    def wait_for_the_pool() -> None:
        waiter.start()
        asked.wait(20)

    direct = alone._connected()
    alone._kept._idle = Interrupted(wait_for_the_pool)
    alone._kept.keep(direct)
    assert not alone._kept._idle
    given.set()
    waiter.join()
