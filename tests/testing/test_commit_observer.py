"""The observer sees each commit, right before and right after it, by sqlite3, psycopg, PyMySQL or mysqlclient."""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import sqlite3
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pymysql
import pytest
import sqlalchemy as sa
from sqlalchemy.orm import Session

from faultlab.servers import Server
from psched.testing.commit_observer import observe, writes

_HEAD = ["before", "after"]
_FORK = multiprocessing.get_context("fork")


def seen(work: Callable[[], object], folder: Path, unloaded: str | None = None) -> list[tuple[str, str]]:
    """Return the commits that are seen during `work`, in a forked process, because observing cannot be stopped.

    `unloaded`: a library that the process has not imported before.
    """
    file = folder / "seen.json"

    def run() -> None:
        commits: list[tuple[str, str]] = []
        for name in [name for name in sys.modules if unloaded and name.partition(".")[0] == unloaded]:
            del sys.modules[name]
        observe(lambda phase, statement: commits.append((phase, statement)))
        work()
        file.write_text(json.dumps(commits))

    process = _FORK.Process(target=run)  # type: ignore[attr-defined]
    process.start()
    process.join()
    assert process.exitcode == 0
    return [(phase, statement) for phase, statement in json.loads(file.read_text())]


def twice(*statements: str) -> list[tuple[str, str]]:
    return [(phase, statement) for statement in statements for phase in _HEAD]


_INSERT = "INSERT INTO t VALUES (1)"


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = str(tmp_path / "t.db")
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE t (n INTEGER)")
    return path


class Rows(sqlite3.Cursor):
    """A cursor class of the application, like Django's."""


class Database(sqlite3.Connection):
    """A connection class of the application."""


def test_sqlite_with_transactions(file: str, tmp_path: Path) -> None:
    def work() -> None:
        with closing(sqlite3.connect(file)) as connection:
            connection.execute(_INSERT)
            connection.rollback()
            connection.commit()  # nothing
            connection.execute(_INSERT)
            connection.commit()
            with connection:
                connection.executemany("INSERT INTO t VALUES (?)", [(1,), (2,)])
            with pytest.raises(sqlite3.OperationalError), connection:
                connection.execute("INSERT INTO nothing VALUES (1)")
            connection.execute("SELECT * FROM t").fetchall()
            connection.cursor(Rows).execute(_INSERT)
            connection.commit()
        with closing(sqlite3.connect(file, factory=Database)) as connection:
            assert isinstance(connection, Database)
            connection.execute(_INSERT)
            connection.commit()

    assert seen(work, tmp_path) == twice("COMMIT", "COMMIT", "COMMIT", "COMMIT")


def test_sqlite_in_autocommit_mode(file: str, tmp_path: Path) -> None:
    def work() -> None:
        with closing(sqlite3.connect(file, isolation_level=None)) as connection:
            connection.execute(_INSERT)
            connection.execute("SELECT * FROM t").fetchall()
            connection.execute("BEGIN IMMEDIATE")
            connection.execute(_INSERT)
            connection.cursor(Rows).execute(_INSERT)
            connection.execute("COMMIT")
            connection.execute("BEGIN")
            connection.execute(_INSERT)
            connection.execute("ROLLBACK")
            connection.execute("BEGIN")
            connection.rollback()
            connection.executescript("DELETE FROM t; DELETE FROM t")

    assert seen(work, tmp_path) == twice(_INSERT, "COMMIT", "a script")


def test_sqlalchemy_on_sqlite(file: str, tmp_path: Path) -> None:
    def work() -> None:
        engine = sa.create_engine(f"sqlite:///{file}")
        with Session(engine) as session:
            session.execute(sa.text(_INSERT))
            session.commit()
        with engine.begin() as connection:
            connection.execute(sa.text(_INSERT))
        with engine.connect() as connection:
            connection.execute(sa.text(_INSERT))  # and rolled back
        engine.dispose()

    assert seen(work, tmp_path) == twice("COMMIT", "COMMIT")


def test_psycopg(postgresql: Server, tmp_path: Path) -> None:
    with postgresql.database() as url:
        conninfo = url.replace("postgresql+psycopg:", "postgresql:")

        def work() -> None:
            with psycopg.connect(conninfo) as connection:
                connection.execute("CREATE TABLE t (n INTEGER)")
                connection.commit()
                connection.commit()  # nothing
                with connection.transaction(), connection.transaction(), connection.cursor() as cursor:
                    cursor.execute(_INSERT)
                connection.execute(_INSERT)
                connection.rollback()
            with psycopg.connect(conninfo, autocommit=True) as connection:
                connection.execute("SELECT 1")
                connection.execute(psycopg.sql.SQL(_INSERT))
                with connection.transaction():
                    connection.execute(_INSERT)
                connection.execute("BEGIN")
                connection.execute(_INSERT)
                connection.execute("COMMIT")

        async def in_a_loop() -> None:
            async with await psycopg.AsyncConnection.connect(conninfo) as connection:
                await connection.execute(_INSERT)
                await connection.commit()
                async with connection.transaction():
                    await connection.execute(_INSERT)

        assert seen(work, tmp_path) == twice("COMMIT", "COMMIT", _INSERT, "COMMIT", "COMMIT")
        assert seen(lambda: asyncio.run(in_a_loop()), tmp_path) == twice("COMMIT", "COMMIT")


@pytest.mark.parametrize("driver", ["pymysql", "MySQLdb"])
def test_mysql(mariadb: Server, tmp_path: Path, driver: str) -> None:
    module: Any = pymysql if driver == "pymysql" else pytest.importorskip("MySQLdb")
    with mariadb.database() as text:
        url = sa.make_url(text)
        where: dict[str, Any] = {
            "host": url.host,
            "port": url.port,
            "user": url.username,
            "password": url.password or "",
        }

        def work() -> None:
            connection = module.connect(**where, database=url.database)
            cursor = connection.cursor()
            cursor.execute("CREATE TABLE t (n INTEGER) ENGINE=InnoDB")
            cursor.execute(_INSERT)
            connection.commit()
            cursor.execute(_INSERT)
            connection.rollback()
            connection.autocommit(True)
            cursor.execute("SELECT 1")
            cursor.execute(_INSERT)
            cursor.execute("BEGIN")
            cursor.execute(_INSERT)
            cursor.execute("COMMIT")
            cursor.execute("BEGIN")
            connection.rollback()
            cursor.execute(_INSERT)
            connection.close()

        assert seen(work, tmp_path) == twice("COMMIT", _INSERT, "COMMIT", _INSERT)


def test_a_driver_that_the_handler_imports_is_observed(mariadb: Server, tmp_path: Path) -> None:
    with mariadb.database() as text:
        url = sa.make_url(text)

        def work() -> None:
            engine = sa.create_engine(url.set(drivername="mysql+pymysql"))
            with engine.begin() as connection:
                connection.execute(sa.text("CREATE TABLE t (n INTEGER)"))
                connection.execute(sa.text(_INSERT))
            engine.dispose()

        assert seen(work, tmp_path, unloaded="pymysql") == twice("COMMIT")


@pytest.mark.parametrize(
    ("statement", "expected"),
    [
        ("INSERT INTO t VALUES (1)", True),
        ("  -- a comment\n (/* another */ update t SET n = 1)", True),
        ("WITH x AS (SELECT 1) INSERT INTO t SELECT * FROM x", True),
        (b"delete from t", True),
        ("(SELECT 1) UNION (SELECT 2)", False),
        ("ROLLBACK TO SAVEPOINT x", False),
        ("", False),
    ],
)
def test_statements_that_write(statement: object, expected: bool) -> None:
    assert writes(statement) is expected


def test_django(file: str, tmp_path: Path) -> None:
    conf = pytest.importorskip("django.conf")

    def work() -> None:
        databases = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": file}}
        conf.settings.configure(DATABASES=databases)
        import django  # noqa: PLC0415 – in the forked process only

        django.setup()
        from django.db import connection, transaction  # noqa: PLC0415 – as above

        with transaction.atomic(), connection.cursor() as cursor:
            cursor.execute(_INSERT)
            with transaction.atomic():
                cursor.execute(_INSERT)
        with connection.cursor() as cursor:
            cursor.execute(_INSERT)
            cursor.execute("SELECT * FROM t")
        connection.close()

    assert seen(work, tmp_path) == twice("COMMIT", _INSERT)
