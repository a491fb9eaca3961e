"""Observes the SQL statements and Redis commands that stores of this process send."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis
import sqlalchemy as sa

Observer = Callable[[str], None]
"""Called with a statement, or with a command and its first argument. An error that it raises goes to the store."""


@contextlib.contextmanager
def before_each(observe: Observer) -> Iterator[None]:
    """Call `observe` before each statement is sent."""
    with _hooked(observe, after=False):
        yield


@contextlib.contextmanager
def after_each(observe: Observer) -> Iterator[None]:
    """Call `observe` after each statement has been executed, before its answer is read."""
    with _hooked(observe, after=True):
        yield


@contextlib.contextmanager
def _hooked(observe: Observer, after: bool) -> Iterator[None]:
    def on_sql(conn: Any, cursor: Any, statement: str, *_: Any) -> None:
        try:
            observe(statement)
        except BaseException:
            if after and cursor.description:
                cursor.fetchall()  # SQLite executes the whole statement only then
            raise

    execute = redis.Redis.execute_command

    def on_redis(client: Any, *words: Any, **options: Any) -> Any:
        command = " ".join(str(word) for word in words[:2])
        if not after:
            observe(command)
        answer = execute(client, *words, **options)
        if after:
            observe(command)
        return answer

    event = "after_cursor_execute" if after else "before_cursor_execute"
    sa.event.listen(sa.Engine, event, on_sql)
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(redis.Redis, "execute_command", on_redis)
            yield
    finally:
        sa.event.remove(sa.Engine, event, on_sql)
