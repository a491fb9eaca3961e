"""INSERTs of new schedules and queue tasks; existing keys are left alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from types import MappingProxyType
from typing import Any

from sqlalchemy import BigInteger, Column, ColumnElement, Connection, Table, bindparam, func, literal_column, select

from psched.backends.common.rows import BATCH, POLICY_COLUMNS, all_columns
from psched.backends.rdb.lease_store import new_number
from psched.backends.rdb.schema import band_of
from psched.backends.sql.compiled_statements import BulkInsert, GivenColumns
from psched.backends.sql.database import Database
from psched.backends.sql.dialect import Dialect, larger_of
from psched.backends.sql.ledger import LedgerWriter
from psched.model import NewTask, ScheduleRow
from psched.payload import pack

_SCHEDULE_COLUMNS = (
    *("key", "data", "size", "type", "cron", "timezone", "delay_ms", "next_time", "due"),
    *POLICY_COLUMNS,
    "alert_at",
)

_TASK_COLUMNS = ("key", "type", "data", "size", "user_name", "max_running", "priority", "band", "max_attempts")


class RowInserts:
    """Inserts the new rows of one table.

    Each call writes a number of its own, the nonce, into its rows, to recognise them after a lost answer.
    """

    def __init__(
        self,
        database: Database,
        table: Table,
        insert: BulkInsert,
        values: Mapping[str, Any] = MappingProxyType({}),
        record: Callable[[Connection, Sequence[str], int], None] | None = None,
    ) -> None:
        """`values`: parameters of `insert` besides those of the rows.

        `record` records the rows among these keys that have this nonce, in the transaction that inserts them.
        """
        self._database = database
        self._insert = insert
        self._values = values
        self._record = record
        c = table.c
        self._nonces = select(c.key, c.nonce).where(c.key.in_(bindparam("keys", expanding=True)))

    def insert(self, rows: Sequence[Mapping[str, Any]], caller: Any = None) -> list[str]:
        """Insert `rows` and return the keys that existed. `caller`: the Connection or Session of a transaction."""
        nonce = new_number()
        keys = [row["key"] for row in rows]
        if caller is not None:
            return self._write(self._database.of_caller(caller), rows, keys, nonce)
        is_one_statement = len(rows) == 1 and self._record is None

        def work(connection: Connection, uncertain: bool) -> list[str]:
            if uncertain:
                present = self._others(connection, keys, nonce)
                if len(present) < len(keys):  # an attempt without an answer has inserted them
                    return present
            with nullcontext() if is_one_statement else self._database.transaction(connection):
                return self._write(connection, rows, keys, nonce)

        return self._database.run(work)

    def _write(
        self, connection: Connection, rows: Sequence[Mapping[str, Any]], keys: Sequence[str], nonce: int
    ) -> list[str]:
        inserted = self._insert.execute(connection, rows, {**self._values, "nonce": nonce})
        present = [] if inserted == len(rows) else self._others(connection, keys, nonce)
        if self._record is not None and len(present) < len(rows):
            self._record(connection, keys, nonce)
        return present

    def _others(self, connection: Connection, keys: Sequence[str], nonce: int) -> list[str]:
        """Return those of `keys` whose rows do not have this `nonce`."""
        ours: set[str] = set()
        for start in range(0, len(keys), BATCH):
            found = connection.execute(self._nonces, {"keys": keys[start : start + BATCH]})
            ours.update(key for key, number in found if number == nonce)
        return [key for key in keys if key not in ours]


_NONCE = bindparam("nonce", type_=BigInteger)


def schedule_insert(dialect: type[Dialect], table: Table, records: LedgerWriter) -> BulkInsert:
    """Return the INSERT of schedules; where a statement can write to two tables, also of their definitions."""
    columns = [table.c[name] for name in _SCHEDULE_COLUMNS]
    further = records.insert_and_record if dialect.nested_writes else None
    return BulkInsert(dialect, table, columns, partial(_schedule_values, records), further)


def schedule_columns(row: ScheduleRow, max_data_size: int) -> dict[str, Any]:
    """Return the columns of a new schedule that are not NULL. Raises ValueError."""
    text, size = pack(row.data, max_size=max_data_size)
    columns = {"key": row.key, "data": text, "size": size, **all_columns(row)}
    return {name: columns[name] for name in _SCHEDULE_COLUMNS if columns[name] is not None}


def _schedule_values(records: LedgerWriter, given: GivenColumns, now: ColumnElement[int]) -> GivenColumns:
    """Return the columns of a new row, its version and fence larger than those of an earlier row with this key."""
    first = larger_of(now, records.last_version(given["key"]) + 1)
    return {**given, "fence": first, "version": first, "created": now, "updated": now, "nonce": _NONCE}


def task_insert(dialect: type[Dialect], table: Table) -> BulkInsert:
    columns = [table.c[name] for name in _TASK_COLUMNS]
    return BulkInsert(dialect, table, [*columns, Column("start", BigInteger)], _task_values)


def task_columns(task: NewTask, max_data_size: int) -> dict[str, Any]:
    """Return the columns of a new task, without those that have their default values. Raises ValueError."""
    data = task.data if isinstance(task.data, dict) else dict(task.data)
    text, size = pack(data, task.compression is not None, max_data_size)
    row: dict[str, Any] = {"key": task.key, "type": task.type, "data": text, "size": size}
    if task.run_at is not None:
        row["start"] = round(task.run_at * 1000)
    if task.user is not None or task.priority != 0:
        row |= {"user_name": task.user or "", "priority": task.priority, "band": band_of(task.user, task.priority)}
    optional = {"max_running": task.max_running, "max_attempts": task.max_attempts}
    return row | {name: value for name, value in optional.items() if value is not None}


def _task_values(given: GivenColumns, now: ColumnElement[int]) -> GivenColumns:
    start = func.coalesce(given["start"], now)
    columns = {name: given[name] for name in _TASK_COLUMNS}
    for name, default in (("user_name", "''"), ("priority", "0"), ("band", "0")):
        columns[name] = func.coalesce(given[name], literal_column(default))
    return {**columns, "run_at": start, "due": start, "fence": now, "created": now, "updated": now, "nonce": _NONCE}
