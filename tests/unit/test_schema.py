"""Tables that several processes make at the same time. On SQLite, where an index may vanish right after it was seen."""

from __future__ import annotations

import sqlite3
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, event

from psched.backends import open_stores
from psched.store import StoreSettings


def test_an_index_that_another_drops_while_they_are_counted_has_no_effect(tmp_path: Path) -> None:
    store = open_stores("rdb", StoreSettings(f"sqlite:///{tmp_path}/db", "host/test/1", queue="queue")).queue
    assert store is not None
    store.create_tables()
    dropped = []

    def interfere(connection: Any, cursor: Any, statement: str, *_: Any) -> None:
        if "index_list" in statement and not dropped:
            dropped.append("queue_user_due")
            with closing(sqlite3.connect(tmp_path / "db", timeout=0)) as other, suppress(sqlite3.OperationalError):
                other.execute(f"DROP INDEX {dropped[0]}")

    event.listen(Engine, "after_cursor_execute", interfere)
    try:
        store.create_tables()
    finally:
        event.remove(Engine, "after_cursor_execute", interfere)
        store.close()
    assert dropped


@pytest.mark.parametrize("place", range(5))
def test_tables_that_another_makes_before_any_question_about_them_are_accepted(tmp_path: Path, place: int) -> None:
    """`place`: the number of the first process's query before which the second process makes the tables.

    Queries that the first process sends while it holds the database's write lock do not count, because the second
    process then waits.
    """
    first, second = (
        open_stores("rdb", StoreSettings(f"sqlite:///{tmp_path}/db", f"host/test/{n}", queue="queue")).queue
        for n in (1, 2)
    )
    assert first is not None
    assert second is not None
    questions: list[str] = []

    def interfere(connection: Any, cursor: Any, statement: str, *_: Any) -> None:
        if "SELECT" in statement and "sqlite_master" not in statement and not cursor.connection.in_transaction:
            questions.append(statement)
            if len(questions) == place + 1:
                second.create_tables()

    event.listen(Engine, "before_cursor_execute", interfere)
    try:
        first.create_tables()
    finally:
        event.remove(Engine, "before_cursor_execute", interfere)
        first.close()
        second.close()
    assert len(questions) > place
