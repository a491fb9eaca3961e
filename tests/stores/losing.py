"""Losing the answer to the last thing that a call sends, what it did being done; a conflict. In the test process."""

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

from tests.stores.traffic import after_each, before_each


def is_writing(statement: str) -> bool:
    """Tell whether this ends what a call does: a script, a commit, or a statement that is one by itself."""
    return statement.startswith(("EVAL", "COMMIT", "ROLLBACK", "UPDATE", "WITH", "DELETE", "INSERT", "BEGIN NOT"))


@contextlib.contextmanager
def answer_lost(database: str, number: int, meanwhile: Callable[[], object] = lambda: None) -> Iterator[None]:
    """Let the answer be lost to the `number`th thing that writes. It is sent again after `meanwhile`."""
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
    """Let the answer be lost as `answer_lost` does, and do `meanwhile` before the `place`th thing that is sent again.

    Yields a list that has that thing then; it stays empty when fewer are sent.
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
    """Return how many things a call sends that write."""
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
    """Let the first DELETE that is sent to a SQL database meet a conflict, and do `meanwhile` before the next try."""
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
    """Let Redis refuse the second part of what a call of `store` writes in parts, each by `method`."""
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
