"""Database errors in one call: a write's answer is lost after the commit, or the write meets a conflict."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pymysql
import pytest
import redis
import sqlalchemy as sa

from tests.stores.sent_statements import after_each, before_each


def is_writing(statement: str) -> bool:
    """Return whether this statement commits: a Redis script, a COMMIT, or a single statement in autocommit."""
    return statement.startswith(("EVAL", "COMMIT", "ROLLBACK", "UPDATE", "WITH", "DELETE", "INSERT", "BEGIN NOT"))


@contextlib.contextmanager
def answer_lost(database: str, number: int, meanwhile: Callable[[], object] = lambda: None) -> Iterator[None]:
    """Lose the answer to the `number`th write. `meanwhile`: called before the write is sent again."""
    assert number, "nothing is written"
    left = number

    def lose(statement: str) -> None:
        nonlocal left
        if left and is_writing(statement):
            left -= 1
            if not left:
                meanwhile()
                raise _lost(database)

    with after_each(lose):
        yield
    assert not left, "nothing was lost"


@contextlib.contextmanager
def sent_again(database: str, number: int, place: int, meanwhile: Callable[[], object]) -> Iterator[list[str]]:
    """Lose an answer like `answer_lost`, and call `meanwhile` before the `place`th statement of the next attempt.

    Yields a list, which then contains this statement; it stays empty if the attempt sends fewer statements.
    """
    sent: list[str] = []
    found: list[str] = []
    lost = False

    def lose() -> None:
        nonlocal lost
        lost = True

    def see(statement: str) -> None:
        if lost and not found and not statement.startswith(("PRAGMA", "SET", "SCRIPT", "SELECT 1")):
            sent.append(statement)
            if len(sent) == place:
                found.append(statement)
                meanwhile()

    with answer_lost(database, number, lose), before_each(see):
        yield found


def writes_of(call: Callable[[], object]) -> int:
    """Return the number of writes that a call sends."""
    count = 0

    def see(statement: str) -> None:
        nonlocal count
        count += is_writing(statement)

    with after_each(see):
        call()
    return count


@contextlib.contextmanager
def conflict_before_delete(
    database: str, store: Any, patch: pytest.MonkeyPatch, meanwhile: Callable[[], object]
) -> Iterator[None]:
    """Let the first DELETE on a SQL database fail by a conflict. `meanwhile`: called before the next attempt."""
    conflicts = [_conflict(database)]
    waited: list[float] = []

    def meet(statement: str) -> None:
        if conflicts and statement.startswith(("DELETE", "BEGIN NOT")):
            raise conflicts.pop()

    def wait(seconds: float) -> None:
        waited.append(seconds)
        meanwhile()

    patch.setattr(store._database, "_sleep", wait)
    with before_each(meet):
        yield
    assert len(waited) == 1


def refuse_second_part(patch: pytest.MonkeyPatch, store: Any, method: str) -> None:
    """Let Redis refuse the second part of a write of `store` that has several parts. `method`: writes one part."""
    write, parts = getattr(store, method), []

    def refusing(words: object) -> list[str]:
        parts.append(words)
        if len(parts) == 2:
            raise redis.ResponseError("the server does not want to")
        return write(words)  # type: ignore[no-any-return]

    patch.setattr(store, method, refusing)


def _conflict(database: str) -> Exception:
    busy = sqlite3.OperationalError("database is locked")
    busy.sqlite_errorcode = sqlite3.SQLITE_BUSY
    deadlock = pymysql.err.OperationalError(1213, "deadlock")
    errors = {"sqlite": busy, "mysql": deadlock, "postgresql": psycopg.errors.DeadlockDetected("deadlock")}
    return sa.exc.OperationalError("", None, errors[database])


def _lost(database: str) -> Exception:
    if database == "redis":
        return redis.ConnectionError("the answer is lost")
    return sa.exc.OperationalError("", None, Exception("the answer is lost"), connection_invalidated=True)
