"""INSERTs of new schedules and tasks. Rows whose keys exist stay unchanged."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from types import MappingProxyType
from typing import Any

from sqlalchemy import BigInteger, Column, ColumnElement, Connection, Table, bindparam, func, literal_column, select

from psched.backends.common.rows import BATCH, OPTION_COLUMNS, POLICY_COLUMNS, all_columns
from psched.backends.rdb.lease_store import new_number
from psched.backends.rdb.schema import band_of
from psched.backends.sql.bulk_statements import BulkInsert, GivenColumns
from psched.backends.sql.compiled_statements import Compilable, Statement, Steps, run_steps
from psched.backends.sql.database import Database
from psched.backends.sql.dialect import Dialect, larger_of
from psched.backends.sql.host_wakeup import notify_host
from psched.backends.sql.ledger_writer import LedgerWriter
from psched.model import NewTask, ScheduleRow
from psched.payload import encode_headers, pack

_SCHEDULE_COLUMNS = (
    *("key", "data", "size", "type", "cron", "timezone", "delay_ms", "next_time", "due"),
    *POLICY_COLUMNS,
    *OPTION_COLUMNS,
    *("runs", "alert_at"),
)

_TASK_COLUMNS = (
    *("key", "type", "data", "size", "user_name", "max_running", "priority", "band", "max_attempts", "headers"),
)

_NONCE = bindparam("nonce", type_=BigInteger)


class RowInserts:
    """Inserts new rows into one table.

    Each call writes its own number, the nonce, into its rows. After a lost answer the call finds its rows by the nonce.
    """

    def __init__(
        self,
        database: Database,
        table: Table,
        insert: BulkInsert,
        values: Mapping[str, Any] = MappingProxyType({}),
        record: Callable[[Connection, Sequence[str], int], None] | None = None,
    ) -> None:
        """`values`: parameters of `insert` that all rows share.

        `record(connection, keys, nonce)`: called within the transaction of the insert, if any row is new. It records
        the rows that have one of `keys` and the nonce.
        """
        self._database = database
        self._insert = insert
        self._values = values
        self._record = record
        self._host_socket = database.dialect.host_socket(table.name)
        c = table.c
        of_keys = c.key.in_(bindparam("keys", expanding=True))
        self._ours = Statement(select(c.key).where(of_keys, c.nonce == _NONCE))

    def insert(self, rows: Sequence[Mapping[str, Any]]) -> list[str]:
        """Insert `rows`. Return the keys that existed before."""
        nonce = new_number()
        keys = [row["key"] for row in rows]
        is_one_statement = len(rows) == 1 and self._record is None

        def work(connection: Connection, uncertain: bool) -> list[str]:
            if uncertain:
                present = run_steps(connection, self._others(connection, keys, nonce))
                if len(present) < len(keys):  # an earlier attempt, whose answer was lost, has inserted rows
                    return present
            with nullcontext() if is_one_statement else self._database.transaction(connection):
                return self.insert_within(connection, rows, nonce)

        present = self._database.run(work)
        self.notify()
        return present

    def insert_within(self, connection: Connection, rows: Sequence[Mapping[str, Any]], nonce: int) -> list[str]:
        """Insert `rows` in the caller's transaction. Return the keys that existed before.

        `nonce`: the number of the call. It is written into the rows. Afterwards the caller calls `notify`.
        """
        keys = [row["key"] for row in rows]
        present = run_steps(connection, self._steps(connection, rows, keys, nonce))
        if self._record is not None and len(present) < len(rows):
            self._record(connection, keys, nonce)
        return present

    def notify(self) -> None:
        """Wake the workers of this host, if the database server cannot notify them."""
        if self._host_socket is not None:
            notify_host(self._host_socket)

    def has_inserted(self, connection: Connection, key: str, nonce: int) -> bool:
        return not run_steps(connection, self._others(connection, [key], nonce))

    def steps(self, connection: Compilable, rows: Sequence[Mapping[str, Any]]) -> Steps[list[str]]:
        """Insert `rows` like `insert`, but in the caller's transaction, and without writing the ledger. See `Steps`."""
        return self._steps(connection, rows, [row["key"] for row in rows], new_number())

    def sql(self, connection: Compilable, row: Mapping[str, Any]) -> tuple[str, Any]:
        """Return one statement that inserts `row`; see `BulkInsert.sql`."""
        return self._insert.sql(connection, row, {**self._values, "nonce": new_number()})

    def _steps(
        self, connection: Compilable, rows: Sequence[Mapping[str, Any]], keys: Sequence[str], nonce: int
    ) -> Steps[list[str]]:
        inserted = yield from self._insert.steps(connection, rows, {**self._values, "nonce": nonce})
        return [] if inserted == len(rows) else (yield from self._others(connection, keys, nonce))

    def _others(self, connection: Compilable, keys: Sequence[str], nonce: int) -> Steps[list[str]]:
        ours: set[str] = set()
        for start in range(0, len(keys), BATCH):
            found = yield self._ours.step_on(connection, keys[start : start + BATCH], {"nonce": nonce})
            ours.update(key for (key,) in found.fetchall())
        return [key for key in keys if key not in ours]


def schedule_insert(dialect: type[Dialect], table: Table, records: LedgerWriter) -> BulkInsert:
    """Return the INSERT of schedules. On PostgreSQL this statement also records the definitions of the schedules."""
    columns = [table.c[name] for name in _SCHEDULE_COLUMNS]
    further = records.insert_and_record if dialect.nested_writes else None
    return BulkInsert(dialect, table, columns, partial(_schedule_values, records), further)


def schedule_columns(row: ScheduleRow, max_data_size: int) -> dict[str, Any]:
    """Return the columns of a new schedule, except those that are NULL. Raises ValueError."""
    text, size = pack(row.data, max_size=max_data_size)
    columns = {"key": row.key, "data": text, "size": size, **all_columns(row)}
    return {name: columns[name] for name in _SCHEDULE_COLUMNS if columns[name] is not None}


def _schedule_values(records: LedgerWriter, given: GivenColumns, now: ColumnElement[int]) -> GivenColumns:
    """Return the columns of a new row. Version and fence are larger than those of an earlier row with this key."""
    first = larger_of(now, records.last_version(given["key"]) + 1)
    return {**given, "fence": first, "version": first, "created": now, "updated": now, "nonce": _NONCE}


def task_insert(dialect: type[Dialect], table: Table) -> BulkInsert:
    columns = [table.c[name] for name in _TASK_COLUMNS]
    return BulkInsert(dialect, table, [*columns, Column("start", BigInteger)], _task_values)


def task_columns(task: NewTask, max_data_size: int) -> dict[str, Any]:
    """Return the columns of a new task, except those with default values. Raises ValueError."""
    data = task.data if isinstance(task.data, dict) else dict(task.data)
    text, size = pack(data, task.compression is not None, max_data_size)
    row: dict[str, Any] = {"key": task.key, "type": task.type, "data": text, "size": size}
    if task.run_at is not None:
        row["start"] = round(task.run_at * 1000)
    if task.user is not None or task.priority != 0:
        row |= {"user_name": task.user or "", "priority": task.priority, "band": band_of(task.user, task.priority)}
    headers = encode_headers(task.headers)
    optional = {"max_running": task.max_running, "max_attempts": task.max_attempts, "headers": headers}
    return row | {name: value for name, value in optional.items() if value is not None}


def _task_values(given: GivenColumns, now: ColumnElement[int]) -> GivenColumns:
    start = func.coalesce(given["start"], now)
    columns = {name: given[name] for name in _TASK_COLUMNS}
    for name, default in (("user_name", "''"), ("priority", "0"), ("band", "0")):
        columns[name] = func.coalesce(given[name], literal_column(default))
    return {**columns, "run_at": start, "due": start, "fence": now, "created": now, "updated": now, "nonce": _NONCE}
