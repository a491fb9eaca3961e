"""Writing new tasks into the queue, in a transaction of our own or of the caller's. Used in children and clients."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import BigInteger, Column, ColumnElement, Connection, Table, bindparam, func, literal_column

from psched.backends.rdb.leases import new_number
from psched.backends.rdb.nonces import Nonces
from psched.backends.rdb.tables import band_of
from psched.dialects.base import Dialect
from psched.dialects.database import Database
from psched.dialects.insertion import Insertion
from psched.dialects.once import once
from psched.model import NewTask
from psched.payload import pack

_TOLD = ("key", "type", "data", "size", "user_name", "max_running", "priority", "band", "max_attempts")


class Submission:
    """Inserts that leave existing keys alone, and tell which these were."""

    def __init__(self, database: Database, table: Table, max_data_size: int) -> None:
        self._database = database
        self._max_data_size = max_data_size
        self._write_statements(type(database.dialect), table)

    @once
    def _write_statements(self, dialect: type[Dialect], table: Table) -> None:
        told = [table.c[name] for name in _TOLD]
        self._insertion = Insertion(dialect, table, [*told, Column("start", BigInteger)], _values)
        self._nonces = Nonces(table)

    def submit(self, tasks: Sequence[NewTask], connection: Any) -> list[str]:
        """Write `tasks` and return the keys that existed; see `TaskStore.submit`."""
        nonce = new_number()
        rows = [columns(task, self._max_data_size) for task in tasks]
        if connection is not None:
            return self._write(self._database.of_caller(connection), rows, nonce)

        if len(rows) == 1:
            return self._nonces.insert_one(self._database, self._insertion, rows[0], {"nonce": nonce})

        def work(own: Connection, uncertain: bool) -> list[str]:
            with self._database.transaction(own):
                return self._write(own, rows, nonce)

        return self._database.run(work)

    def _write(self, connection: Connection, rows: list[dict[str, Any]], nonce: int) -> list[str]:
        if self._insertion.execute(self._database.dialect, connection, rows, {"nonce": nonce}) == len(rows):
            return []
        return self._nonces.others(connection, [row["key"] for row in rows], nonce)


def columns(task: NewTask, max_data_size: int) -> dict[str, Any]:
    """Return what is told of a new task; what is not stands for itself. Raises ValueError."""
    data = task.data if isinstance(task.data, dict) else dict(task.data)
    text, size = pack(data, task.compression is not None, max_data_size)
    row: dict[str, Any] = {"key": task.key, "type": task.type, "data": text, "size": size}
    if task.run_at is not None:
        row["start"] = round(task.run_at * 1000)
    if task.user is not None or task.priority != 0:
        row |= {"priority": task.priority, "band": band_of(task.user, task.priority)}
    if task.user is not None:
        row["user_name"] = task.user
    if task.max_running is not None:
        row["max_running"] = task.max_running
    if task.max_attempts is not None:
        row["max_attempts"] = task.max_attempts
    return row


def _values(told: Mapping[str, ColumnElement[Any]], now: ColumnElement[int]) -> dict[str, ColumnElement[Any]]:
    """Return the columns of a new row."""
    start = func.coalesce(told["start"], now)
    absent = {"user_name": "''", "priority": "0", "band": "0"}
    kept = {name: told[name] for name in _TOLD if name not in absent}
    filled = {name: func.coalesce(told[name], literal_column(value)) for name, value in absent.items()}
    times = {"run_at": start, "due": start, "fence": now, "created": now, "updated": now}
    return {**kept, **filled, **times, "nonce": bindparam("nonce", type_=BigInteger)}
