"""Writing new schedules, and their definitions into the ledger. Used in children and clients."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from sqlalchemy import BigInteger, Column, ColumnElement, Connection, Table, bindparam, func, literal_column, select

from psched.backends.common.rows import alert_at, milliseconds, policy_columns, rule_columns
from psched.backends.rdb.leases import new_number
from psched.backends.rdb.ledger import LedgerWriter
from psched.backends.rdb.schema import band_of
from psched.backends.sql.base import Dialect, larger_of
from psched.backends.sql.bulk_statement import BulkInsert
from psched.backends.sql.database import Database
from psched.backends.sql.once import cached_on_class
from psched.model import NewTask, Policy, ScheduleRow
from psched.payload import pack
from psched.store.ledger import ADD

_ALL = Policy()

_SCHEDULE_COLUMNS = (
    *("key", "data", "size", "type", "cron", "timezone", "delay_ms", "next_time", "due"),
    *("catch_up", "max_lateness_ms", "alert_after_ms", "max_attempts", "alert_at"),
)


class ScheduleInserts:
    """Inserts that leave existing keys alone, and tell which these were."""

    def __init__(
        self, database: Database, table: Table, records: LedgerWriter, holder: str, max_data_size: int
    ) -> None:
        self._max_data_size = max_data_size
        self._database = database
        self._records = records
        self._holder = holder
        self._in_one = database.dialect.nested_writes
        self._write_statements(type(database.dialect), table, records)

    @cached_on_class
    def _write_statements(self, dialect: type[Dialect], table: Table, records: LedgerWriter) -> None:
        told = [table.c[name] for name in _SCHEDULE_COLUMNS]
        values = partial(_schedule_values, records.last_version)
        self._insertion = BulkInsert(dialect, table, told, values, records.adding if dialect.nested_writes else None)
        self._nonces = InsertNonces(table)

    def add(self, schedules: Sequence[ScheduleRow]) -> list[str]:
        """Write new schedules and return the keys that existed; see `ScheduleStore.add_many`."""
        nonce = new_number()
        told = [schedule_columns(row, self._max_data_size) for row in schedules]
        keys = [row.key for row in schedules]
        values = {"nonce": nonce, **(self._records.of_addition(self._holder) if self._in_one else {})}

        if self._in_one and len(keys) == 1:
            return self._nonces.insert_one(self._database, self._insertion, told[0], values)

        def work(connection: Connection, uncertain: bool) -> list[str]:
            if uncertain:
                present = self._nonces.others(connection, keys, nonce)
                if len(present) < len(keys):  # an attempt whose answer was lost has done it
                    return present
            with self._database.transaction(connection):
                if self._insertion.execute(self._database.dialect, connection, told, values) == len(keys):
                    present = []
                else:
                    present = self._nonces.others(connection, keys, nonce)
                if len(present) < len(keys) and not self._in_one:
                    self._enter(connection, keys, nonce)
            return present

        return self._database.run(work)

    def _enter(self, connection: Connection, keys: list[str], nonce: int) -> None:
        """Enter the definitions of those that were written under `nonce`."""
        if len(keys) == 1:
            self._records.change(connection, keys[0], ADD, self._holder, None)
        else:
            self._records.additions(connection, keys, nonce, self._holder)


def schedule_columns(row: ScheduleRow, max_data_size: int) -> dict[str, Any]:
    """Return what is told of a new schedule; what is not stands for itself."""
    text, size = pack(row.data, max_size=max_data_size)
    told = {
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
        told |= {name: value for name, value in terms.items() if value is not None}
    return told


def _schedule_values(
    last_version: Callable[[ColumnElement[Any]], ColumnElement[int]],
    told: Mapping[str, ColumnElement[Any]],
    now: ColumnElement[int],
) -> dict[str, ColumnElement[Any]]:
    """Return the columns of a new row: its version and its fence are later than any that its key has had."""
    first = larger_of(now, last_version(told["key"]) + 1)
    times = {"fence": first, "version": first, "created": now, "updated": now}
    catch_up = func.coalesce(told["catch_up"], literal_column("'all'"))
    return {**told, **times, "catch_up": catch_up, "nonce": bindparam("nonce", type_=BigInteger)}


_PAGE = 500
"""Rows looked at by one statement."""


class InsertNonces:
    """Looks at the numbers in the rows of one table."""

    def __init__(self, table: Table) -> None:
        c = table.c
        self._look = select(c.key, c.nonce).where(c.key.in_(bindparam("keys", expanding=True)))

    def others(self, connection: Connection, keys: list[str], nonce: int) -> list[str]:
        """Return those of `keys` that are not written under `nonce`, now or by an attempt whose answer was lost."""
        ours: set[str] = set()
        for start in range(0, len(keys), _PAGE):
            found = connection.execute(self._look, {"keys": keys[start : start + _PAGE]})
            ours.update(key for key, number in found if number == nonce)
        return [key for key in keys if key not in ours]

    def insert_one(
        self, database: Database, insertion: BulkInsert, row: Mapping[str, Any], values: Mapping[str, Any]
    ) -> list[str]:
        """Insert a row by one statement; returns its key if that is not written under the `nonce` in `values`."""
        dialect = database.dialect
        if database.run_direct(lambda direct, _: insertion.execute(dialect, direct, [row], values)) == 1:
            return []
        return database.run(lambda connection, _: self.others(connection, [row["key"]], values["nonce"]))


_TASK_COLUMNS = ("key", "type", "data", "size", "user_name", "max_running", "priority", "band", "max_attempts")


class TaskInserts:
    """Inserts that leave existing keys alone, and tell which these were."""

    def __init__(self, database: Database, table: Table, max_data_size: int) -> None:
        self._database = database
        self._max_data_size = max_data_size
        self._write_statements(type(database.dialect), table)

    @cached_on_class
    def _write_statements(self, dialect: type[Dialect], table: Table) -> None:
        told = [table.c[name] for name in _TASK_COLUMNS]
        self._insertion = BulkInsert(dialect, table, [*told, Column("start", BigInteger)], _task_values)
        self._nonces = InsertNonces(table)

    def submit(self, tasks: Sequence[NewTask], connection: Any) -> list[str]:
        """Write `tasks` and return the keys that existed; see `TaskStore.submit`."""
        nonce = new_number()
        rows = [task_columns(task, self._max_data_size) for task in tasks]
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


def task_columns(task: NewTask, max_data_size: int) -> dict[str, Any]:
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


def _task_values(told: Mapping[str, ColumnElement[Any]], now: ColumnElement[int]) -> dict[str, ColumnElement[Any]]:
    """Return the columns of a new row."""
    start = func.coalesce(told["start"], now)
    absent = {"user_name": "''", "priority": "0", "band": "0"}
    kept = {name: told[name] for name in _TASK_COLUMNS if name not in absent}
    filled = {name: func.coalesce(told[name], literal_column(value)) for name, value in absent.items()}
    times = {"run_at": start, "due": start, "fence": now, "created": now, "updated": now}
    return {**kept, **filled, **times, "nonce": bindparam("nonce", type_=BigInteger)}
