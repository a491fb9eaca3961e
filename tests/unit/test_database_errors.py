"""Database errors are recognised by their codes, as drivers raise them: which are transient, and in which way."""

from __future__ import annotations

import sqlite3
from typing import Any

import psycopg
import pymysql
import pytest
from sqlalchemy.exc import DBAPIError

from psched.backends import database_problem
from psched.backends.common.retries import Retries, RetryReason
from psched.backends.sql import open_database
from psched.backends.sql.database import Database
from psched.clock import Clock
from psched.error_messages import one_line

CONFLICT, LOST = RetryReason.CONFLICT, RetryReason.LOST

MYSQL = open_database("mysql://u:p@h/d", {})
POSTGRESQL = open_database("postgresql://u:p@h/d", {})
SQLITE = open_database("sqlite://", {})


def wrapped(error: Exception, base: type[Exception]) -> DBAPIError:
    """Return the error as SQLAlchemy raises it."""
    made: Any = DBAPIError.instance("SELECT 1", None, error, base)
    assert isinstance(made, DBAPIError)
    return made


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (pymysql.err.OperationalError(1213, "deadlock"), CONFLICT),
        (pymysql.err.OperationalError(1205, "lock wait timeout"), CONFLICT),
        (pymysql.err.OperationalError(1969, "max_statement_time"), CONFLICT),
        (pymysql.err.OperationalError(3101, "rolled back by group replication"), CONFLICT),
        (pymysql.err.OperationalError(2013, "lost connection"), LOST),
        (pymysql.err.OperationalError(2006, "gone away"), LOST),
        (pymysql.err.OperationalError(2003, "cannot connect"), LOST),
        (pymysql.err.OperationalError(1040, "too many connections"), LOST),
        (pymysql.err.OperationalError(1290, "read-only"), LOST),
        (pymysql.err.OperationalError(1114, "the table is full"), LOST),
        (pymysql.err.OperationalError(1047, "not in the cluster"), LOST),
        (pymysql.err.OperationalError(2026, "TLS/SSL error"), LOST),  # mysqlclient's
        (pymysql.err.OperationalError(2012, "Error in server handshake"), LOST),  # mysqlclient's
        (pymysql.err.OperationalError("packet sequence"), LOST),
        (pymysql.err.InterfaceError(0, ""), LOST),
        (pymysql.err.OperationalError(1045, "access denied"), None),
        (pymysql.err.ProgrammingError(1146, "no such table"), None),
        (pymysql.err.IntegrityError(1062, "duplicate"), None),
        (pymysql.err.DataError(1406, "too long"), None),
    ],
)
def test_errors_of_mysql_are_distinguished(error: Exception, reason: RetryReason | None) -> None:
    assert MYSQL.retry_reason(wrapped(error, pymysql.err.Error)) is reason


@pytest.mark.parametrize(
    ("state", "reason"),
    [
        ("40001", CONFLICT),
        ("40P01", CONFLICT),
        ("55P03", CONFLICT),
        ("57014", CONFLICT),
        ("08006", LOST),
        ("25006", LOST),
        ("53300", LOST),
        ("57P01", LOST),
        ("57P03", LOST),
        ("25P03", LOST),
        ("26000", LOST),
        ("42P05", LOST),
        ("23505", None),
        ("42P01", None),
        ("22001", None),
        ("28P01", None),
    ],
)
def test_errors_of_postgresql_are_distinguished(state: str, reason: RetryReason | None) -> None:
    assert POSTGRESQL.retry_reason(wrapped(psycopg.errors.lookup(state)("said so"), psycopg.Error)) is reason


@pytest.mark.parametrize(
    ("database", "error", "refused"),
    [
        (POSTGRESQL, psycopg.errors.InvalidPassword("said so"), True),
        (POSTGRESQL, psycopg.errors.InvalidAuthorizationSpecification("said so"), True),
        (POSTGRESQL, psycopg.errors.InsufficientPrivilege("said so"), True),
        (POSTGRESQL, psycopg.OperationalError('FATAL:  password authentication failed for user "psched"'), True),
        (POSTGRESQL, psycopg.OperationalError('FATAL:  Peer authentication failed for user "psched"'), True),
        (POSTGRESQL, psycopg.OperationalError('FATAL:  role "psched" does not exist'), True),
        (POSTGRESQL, psycopg.OperationalError('FATAL:  database "psched" does not exist'), False),
        (POSTGRESQL, psycopg.OperationalError("FATAL:  the database system is starting up"), False),
        (POSTGRESQL, psycopg.errors.UndefinedTable("said so"), False),
        (MYSQL, pymysql.err.OperationalError(1045, "Access denied"), True),
        (MYSQL, pymysql.err.OperationalError(4151, "Access denied, this account is locked"), True),
        (MYSQL, pymysql.err.OperationalError(3118, "Account is locked"), True),
        (MYSQL, pymysql.err.OperationalError(1142, "SELECT command denied"), True),
        (MYSQL, pymysql.err.OperationalError(1049, "Unknown database"), False),
        (MYSQL, pymysql.err.OperationalError(2003, "Can't connect"), False),
        (SQLITE, sqlite3.OperationalError("attempt to write a readonly database"), False),
    ],
)
def test_a_server_that_refuses_the_user_is_reported_from_one_that_is_away(
    database: Any, error: Exception, refused: bool
) -> None:
    assert database.is_refused(error) is refused


def test_an_error_of_the_connection_itself_has_no_state_and_is_a_loss() -> None:
    assert POSTGRESQL.retry_reason(wrapped(psycopg.OperationalError("connection refused"), psycopg.Error)) is LOST
    assert POSTGRESQL.retry_reason(wrapped(psycopg.ProgrammingError("no results"), psycopg.Error)) is None


def test_a_server_that_knows_no_such_password_is_not_waited_for() -> None:
    refused = 'connection failed: FATAL:  password authentication failed for user "psched"'
    starting = "connection failed: FATAL:  the database system is starting up"
    assert POSTGRESQL.retry_reason(wrapped(psycopg.OperationalError(refused), psycopg.Error)) is None
    assert POSTGRESQL.retry_reason(wrapped(psycopg.OperationalError(starting), psycopg.Error)) is LOST


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        (sqlite3.SQLITE_BUSY, CONFLICT),
        (sqlite3.SQLITE_BUSY_SNAPSHOT, CONFLICT),
        (sqlite3.SQLITE_LOCKED, CONFLICT),
        (sqlite3.SQLITE_FULL, LOST),
        (sqlite3.SQLITE_IOERR_WRITE, LOST),
        (sqlite3.SQLITE_CONSTRAINT_PRIMARYKEY, None),
        (sqlite3.SQLITE_CORRUPT, None),
    ],
)
def test_errors_of_sqlite_are_distinguished(code: int, reason: RetryReason | None) -> None:
    error = sqlite3.OperationalError("said so")
    error.sqlite_errorcode = code
    assert SQLITE.retry_reason(wrapped(error, sqlite3.Error)) is reason


@pytest.mark.parametrize(
    ("database", "error", "base"),
    [
        (MYSQL, pymysql.err.IntegrityError(1062, "duplicate"), pymysql.err.Error),
        (POSTGRESQL, psycopg.errors.UniqueViolation("duplicate"), psycopg.Error),
    ],
)
def test_only_a_duplicate_key_is_a_duplicate_key(database: Database, error: Exception, base: type[Exception]) -> None:
    assert database.dialect.is_duplicate_key(wrapped(error, base))
    assert not database.dialect.is_missing_table(wrapped(error, base))


@pytest.mark.parametrize(
    ("database", "error", "base"),
    [
        (MYSQL, pymysql.err.IntegrityError(1048, "NULL"), pymysql.err.Error),
        (POSTGRESQL, psycopg.errors.NotNullViolation("NULL"), psycopg.Error),
    ],
)
def test_no_other_constraint_is_one(database: Database, error: Exception, base: type[Exception]) -> None:
    assert not database.dialect.is_duplicate_key(wrapped(error, base))


def test_an_error_that_is_not_the_databases_is_no_fault() -> None:
    assert SQLITE.retry_reason(ValueError("mine")) is None


class Ticking:
    """A clock that the test sets."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def pauses(reason: RetryReason | None, until: float | None, clock: Ticking) -> list[float]:
    """Return the pauses between attempts that fail immediately. The clock advances by each pause."""
    made: list[float] = []
    typed: Clock = clock
    retries = Retries(typed(), until, typed)
    while (pause := retries.pause(reason)) is not None and len(made) < 1000:
        made.append(pause)
        clock.now += pause
    return made


def test_a_lost_connection_is_tried_once_more_at_once() -> None:
    assert pauses(LOST, None, Ticking()) == [0]


def test_under_a_lease_a_lost_connection_is_tried_until_its_deadline() -> None:
    clock = Ticking()
    made = pauses(LOST, 130, clock)
    assert made[0] == 0
    assert 125 < clock.now < 130
    assert max(made) <= 0.5
    assert len(made) > 60


def test_a_deadline_that_is_over_still_allows_one_fresh_connection() -> None:
    assert pauses(LOST, 50, Ticking()) == [0]


def test_conflicts_are_tried_again_with_a_bound() -> None:
    clock = Ticking()
    assert 5 <= len(pauses(CONFLICT, None, clock)) <= Retries.CONFLICTS
    assert clock.now <= 100 + Retries.SPAN


def test_what_does_not_pass_is_not_tried_again() -> None:
    assert pauses(None, 1000, Ticking()) == []


def test_no_server_is_suspected_when_a_sqlite_file_cannot_be_written() -> None:
    error = sqlite3.OperationalError("database or disk is full")
    assert database_problem("sqlite:////p.db", error, is_away=True) == (
        "the database sqlite:////p.db is not available: database or disk is full "
        "(is its disk full, or does another program lock the file? For details run `psched doctor`)"
    )


def test_doctor_does_not_advise_doctor() -> None:
    message = database_problem("mysql://h/d", pymysql.OperationalError(2003, "Can't connect"), True, in_doctor=True)
    assert message.endswith("(is the server running, and is `url:` right?)")


@pytest.mark.parametrize(
    "text",
    ['FATAL:  database "d" does not exist', "Unknown database 'd'", "DB index is out of range"],
)
def test_a_database_that_does_not_exist_is_reported_with_the_remedy(text: str) -> None:
    message = database_problem("x://h/d", RuntimeError(text), is_away=False)
    assert message.endswith(f"{one_line(RuntimeError(text))}; create this database, or correct `url:`")


@pytest.mark.parametrize("text", ["unable to open database file", "attempt to write a readonly database"])
def test_a_sqlite_file_without_access_is_reported_with_the_remedy(text: str) -> None:
    message = database_problem("sqlite:////p.db", sqlite3.OperationalError(text), is_away=False)
    assert message == (
        f"the database sqlite:////p.db refused the request: {text}; let this user write the file and its folder"
    )
