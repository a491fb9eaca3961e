"""INSERTs of schedules (with their definitions in the ledger) and of queue tasks; existing keys are left alone.

Each call writes a number of its own, the nonce, into its rows, to recognise them after a lost answer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from sqlalchemy import BigInteger, Column, ColumnElement, Connection, Table, bindparam, func, literal_column, select

from psched.backends.common.rows import BATCH, POLICY_COLUMNS, alert_at, milliseconds, policy_columns, rule_columns
from psched.backends.rdb.lease_store import new_number
from psched.backends.rdb.schema import band_of
from psched.backends.sql.database import Database
from psched.backends.sql.dialect import Dialect, larger_of
from psched.backends.sql.ledger import LedgerWriter
from psched.backends.sql.statement import BulkInsert, cached_on_class
from psched.model import NewTask, Policy, ScheduleRow
from psched.payload import pack
from psched.store.ledger import ADD

_ALL = Policy()

_SCHEDULE_COLUMNS = (
    *("key", "data", "size", "type", "cron", "timezone", "delay_ms", "next_time", "due"),
    *POLICY_COLUMNS,
    "alert_at",
)


class ScheduleInserts:
    def __init__(
        self, database: Database, table: Table, records: LedgerWriter, holder: str, max_data_size: int
    ) -> None:
        self._max_data_size = max_data_size
        self._database = database
        self._records = records
        self._holder = holder
        self._one_statement = database.dialect.nested_writes  # inserts the rows and their ledger entries
        self._write_statements(type(database.dialect), table, records)

    @cached_on_class
    def _write_statements(self, dialect: type[Dialect], table: Table, records: LedgerWriter) -> None:
        columns = [table.c[name] for name in _SCHEDULE_COLUMNS]
        values = partial(_schedule_values, records.last_version)
        further = records.insert_and_record if dialect.nested_writes else None
        self._insert = BulkInsert(dialect, table, columns, values, further)
        self._nonces = InsertNonces(table)

    def add(self, schedules: Sequence[ScheduleRow]) -> list[str]:
        """Write new schedules and return the keys that existed; see `ScheduleStore.add_many`."""
        nonce = new_number()
        rows = [schedule_columns(row, self._max_data_size) for row in schedules]
        keys = [row.key for row in schedules]
        values = {"nonce": nonce, **(self._records.parameters_of_add(self._holder) if self._one_statement else {})}

        if self._one_statement and len(keys) == 1:
            return self._nonces.insert_one(self._database, self._insert, rows[0], values)

        def work(connection: Connection, uncertain: bool) -> list[str]:
            if uncertain:
                present = self._nonces.others(connection, keys, nonce)
                if len(present) < len(keys):  # an attempt without an answer has inserted them
                    return present
            with self._database.transaction(connection):
                if self._insert.execute(connection, rows, values) == len(keys):
                    present = []
                else:
                    present = self._nonces.others(connection, keys, nonce)
                if len(present) < len(keys) and not self._one_statement:
                    self._record(connection, keys, nonce)
            return present

        return self._database.run(work)

    def _record(self, connection: Connection, keys: list[str], nonce: int) -> None:
        """Insert the definitions of the rows written under `nonce` into the ledger."""
        if len(keys) == 1:
            self._records.insert_change(connection, keys[0], ADD, self._holder, None)
        else:
            self._records.insert_added(connection, keys, nonce, self._holder)


def schedule_columns(row: ScheduleRow, max_data_size: int) -> dict[str, Any]:
    """Return the columns of a new schedule that are not default values. Raises ValueError."""
    text, size = pack(row.data, max_size=max_data_size)
    columns = {
        "key": row.key,
        "data": text,
        "size": size,
        "type": row.type,
        **rule_columns(row.rule),
        "next_time": milliseconds(row.next_time),
        "due": milliseconds(row.next_run_time),
    }
    if row.policy != _ALL:
        terms = {**policy_columns(row.policy), "alert_at": alert_at(row)}
        columns |= {name: value for name, value in terms.items() if value is not None}
    return columns


def _schedule_values(
    last_version: Callable[[ColumnElement[Any]], ColumnElement[int]],
    given: Mapping[str, ColumnElement[Any]],
    now: ColumnElement[int],
) -> dict[str, ColumnElement[Any]]:
    """Return the columns of a new row, its version and fence larger than those of an earlier row with this key."""
    first = larger_of(now, last_version(given["key"]) + 1)
    times = {"fence": first, "version": first, "created": now, "updated": now}
    catch_up = func.coalesce(given["catch_up"], literal_column("'all'"))
    return {**given, **times, "catch_up": catch_up, "nonce": bindparam("nonce", type_=BigInteger)}


class InsertNonces:
    def __init__(self, table: Table) -> None:
        c = table.c
        self._nonces_of = select(c.key, c.nonce).where(c.key.in_(bindparam("keys", expanding=True)))

    def others(self, connection: Connection, keys: list[str], nonce: int) -> list[str]:
        """Return those of `keys` whose rows do not have this `nonce`."""
        ours: set[str] = set()
        for start in range(0, len(keys), BATCH):
            found = connection.execute(self._nonces_of, {"keys": keys[start : start + BATCH]})
            ours.update(key for key, number in found if number == nonce)
        return [key for key in keys if key not in ours]

    def insert_one(
        self, database: Database, insert: BulkInsert, row: Mapping[str, Any], values: Mapping[str, Any]
    ) -> list[str]:
        """Insert a row by one statement. Returns its key if another row with this key exists."""
        if database.run(lambda connection, _: insert.execute(connection, [row], values)) == 1:
            return []
        return database.run(lambda connection, _: self.others(connection, [row["key"]], values["nonce"]))


_TASK_COLUMNS = ("key", "type", "data", "size", "user_name", "max_running", "priority", "band", "max_attempts")


class TaskInserts:
    def __init__(self, database: Database, table: Table, max_data_size: int) -> None:
        self._database = database
        self._max_data_size = max_data_size
        self._write_statements(type(database.dialect), table)

    @cached_on_class
    def _write_statements(self, dialect: type[Dialect], table: Table) -> None:
        columns = [table.c[name] for name in _TASK_COLUMNS]
        self._insert = BulkInsert(dialect, table, [*columns, Column("start", BigInteger)], _task_values)
        self._nonces = InsertNonces(table)

    def submit(self, tasks: Sequence[NewTask], connection: Any) -> list[str]:
        """Write `tasks` and return the keys that existed; see `TaskStore.submit`."""
        nonce = new_number()
        rows = [task_columns(task, self._max_data_size) for task in tasks]
        if connection is not None:
            return self._write(self._database.of_caller(connection), rows, nonce)

        if len(rows) == 1:
            return self._nonces.insert_one(self._database, self._insert, rows[0], {"nonce": nonce})

        def work(own: Connection, uncertain: bool) -> list[str]:
            with self._database.transaction(own):
                return self._write(own, rows, nonce)

        return self._database.run(work)

    def _write(self, connection: Connection, rows: list[dict[str, Any]], nonce: int) -> list[str]:
        if self._insert.execute(connection, rows, {"nonce": nonce}) == len(rows):
            return []
        return self._nonces.others(connection, [row["key"] for row in rows], nonce)


def task_columns(task: NewTask, max_data_size: int) -> dict[str, Any]:
    """Return the columns of a new task that are not default values. Raises ValueError."""
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


def _task_values(given: Mapping[str, ColumnElement[Any]], now: ColumnElement[int]) -> dict[str, ColumnElement[Any]]:
    """Return the columns of a new row."""
    start = func.coalesce(given["start"], now)
    defaults = {"user_name": "''", "priority": "0", "band": "0"}
    kept = {name: given[name] for name in _TASK_COLUMNS if name not in defaults}
    filled = {name: func.coalesce(given[name], literal_column(value)) for name, value in defaults.items()}
    times = {"run_at": start, "due": start, "fence": now, "created": now, "updated": now}
    return {**kept, **filled, **times, "nonce": bindparam("nonce", type_=BigInteger)}
