"""Writing new tasks into the queue, in a transaction of our own or of the caller's. Used in children and clients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import BigInteger, Connection, Table, bindparam, func, select

from psched.backends.rdb.leases import new_number
from psched.backends.rdb.tables import band_of
from psched.dialects.base import now_ms
from psched.dialects.database import Database
from psched.model import NewTask
from psched.payload import compress_to_text, encode

_PAGE = 500
"""Rows looked at by one statement."""


class Submission:
    """Inserts that leave existing keys alone, and tell which these were."""

    def __init__(self, database: Database, table: Table) -> None:
        c = table.c
        start = func.coalesce(bindparam("start", type_=BigInteger), now_ms())
        self._database = database
        self._insert = database.dialect.insert_new(table).values(
            run_at=start, due=start, fence=now_ms(), created=now_ms(), updated=now_ms()
        )
        self._ours = self._insert.returning(c.key, c.nonce)
        self._look = select(c.key, c.nonce).where(c.key.in_(bindparam("keys", expanding=True)))

    def submit(self, tasks: Sequence[NewTask], connection: Any) -> list[str]:
        """Write `tasks` and return the keys that existed; see `TaskStore.submit`."""
        nonce = new_number()
        rows = [{**columns(task), "nonce": nonce} for task in tasks]
        if connection is not None:
            return self._write(self._database.of_caller(connection), rows, nonce)

        def work(own: Connection, uncertain: bool) -> list[str]:
            if len(rows) == 1:
                return self._write(own, rows, nonce)
            with self._database.transaction(own):
                return self._write(own, rows, nonce)

        return self._database.run(work)

    def _write(self, connection: Connection, rows: list[dict[str, Any]], nonce: int) -> list[str]:
        if connection.dialect.insert_returning and connection.dialect.use_insertmanyvalues:
            found = connection.execute(self._ours, rows).all()
            ours = {key for key, number in found if number == nonce}
            doubtful = [row["key"] for row in rows if row["key"] not in ours]
        else:
            connection.execute(self._insert, rows)
            doubtful = [row["key"] for row in rows]
        return self._not_ours(connection, doubtful, nonce)

    def _not_ours(self, connection: Connection, keys: list[str], nonce: int) -> list[str]:
        """Return those of `keys` that are not written by us, now or by an attempt whose answer was lost."""
        ours: set[str] = set()
        for start in range(0, len(keys), _PAGE):
            found = connection.execute(self._look, {"keys": keys[start : start + _PAGE]})
            ours.update(key for key, number in found if number == nonce)
        return [key for key in keys if key not in ours]


def columns(task: NewTask) -> dict[str, Any]:
    """Return what a row of the table holds of a new task."""
    text = encode(dict(task.data))
    return {
        "key": task.key,
        "type": task.type,
        "data": text if task.compression is None else compress_to_text(text),
        "start": None if task.run_at is None else round(task.run_at * 1000),
        "user_name": "" if task.user is None else task.user,
        "max_running": task.max_running,
        "priority": task.priority,
        "band": band_of(task.user, task.priority),
        "max_attempts": task.max_attempts,
    }
