"""The table `psched_actions`: the actions of visitors of the web pages."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from functools import cache

import sqlalchemy as sa

from psched.backends.sql.database import Database
from psched.backends.sql.dialect import MYSQL_OPTIONS, ExactText, LongText, now_ms, with_index_hint
from psched.store.visitor_actions import VisitorAction


@cache
def actions_table() -> sa.Table:
    """Return the table of visitors' actions. All stores of a database share it.

    `number`: the number of the call. If the answer to a call is lost, the call finds its row by this number. `at`: unix
    milliseconds.
    """
    return sa.Table(
        "psched_actions",
        sa.MetaData(),
        sa.Column("number", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("table_name", ExactText(64), nullable=False),
        sa.Column("at", sa.BigInteger, nullable=False),
        sa.Column("user_name", ExactText(255), nullable=False),
        sa.Column("action", ExactText(32), nullable=False),
        sa.Column("key", ExactText(255), nullable=False),
        sa.Column("detail", LongText),
        sa.Index("psched_actions_at", "table_name", "at"),
        sa.Index("psched_actions_key", "table_name", "key", "at"),
        **MYSQL_OPTIONS,
    )


class RdbVisitorActions:
    """Implements `VisitorActions` for one table of schedules or tasks."""

    def __init__(self, database: Database, table: str) -> None:
        self._database = database
        self._table = table

    def record(self, user: str, action: str, key: str, detail: str | None, retention: float) -> None:
        actions = actions_table()
        number = secrets.randbits(62)
        row = {"number": number, "table_name": self._table, "at": now_ms(), "user_name": user}
        row |= {"action": action, "key": key, "detail": detail}
        old = (actions.c.table_name == self._table, actions.c.at < now_ms() - round(retention * 1000))

        def work(connection: sa.Connection, _: bool) -> None:
            self._database.dialect.insert_one(connection, actions, row)
            connection.execute(sa.delete(actions).where(*old))

        self._database.run(work)

    def last(self, limit: int, key: str | None = None) -> Sequence[VisitorAction]:
        table = actions_table()
        c = table.c
        actions = sa.select(c.at, c.user_name, c.action, c.key, c.detail).where(c.table_name == self._table)
        if key is not None:
            of_key = c.key == key
            if self._database.dialect.order_chooses_index:  # with `of_key` the order would be that of the times alone
                of_key, actions = c.key.between(key, key), actions.order_by(c.key.desc())
            actions = with_index_hint(actions.where(of_key), table, "key")
        found = self._database.rows(actions.order_by(c.at.desc()).limit(limit))
        return [
            VisitorAction(row["at"] / 1000, row["user_name"], row["action"], row["key"], row["detail"]) for row in found
        ]
