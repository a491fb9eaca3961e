"""Losing the answer to the last thing that a call sends, what it did being done. In the test process."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import redis
import sqlalchemy as sa

from tests.stores.traffic import after_each


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


def writes_of(call: Callable[[], object]) -> int:
    """Return how many things a call sends that write."""
    count = 0

    def see(statement: str) -> None:
        nonlocal count
        count += is_writing(statement)

    with after_each(see):
        call()
    return count


def _lost(database: str) -> Exception:
    if database == "redis":
        return redis.ConnectionError("the answer is lost")
    return sa.exc.OperationalError("", None, Exception("the answer is lost"), connection_invalidated=True)
