"""Writing new schedules, and their definitions into the ledger. Used in children and clients."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from sqlalchemy import BigInteger, ColumnElement, Connection, Table, bindparam, func, literal_column

from psched.backends.rdb.leases import new_number
from psched.backends.rdb.nonces import Nonces
from psched.backends.rdb.records import Records
from psched.backends.rdb.schedule_rows import alert_at, policy_columns, rule_columns
from psched.backends.rdb.tables import milliseconds
from psched.dialects.base import Dialect, larger_of
from psched.dialects.database import Database
from psched.dialects.insertion import Insertion
from psched.dialects.once import once
from psched.ledger import ADD
from psched.model import Policy, ScheduleRow
from psched.payload import pack

_ALL = Policy()

_TOLD = (
    *("key", "data", "size", "type", "cron", "timezone", "delay_ms", "next_time", "due"),
    *("catch_up", "max_lateness_ms", "alert_after_ms", "max_attempts", "alert_at"),
)


class Addition:
    """Inserts that leave existing keys alone, and tell which these were."""

    def __init__(self, database: Database, table: Table, records: Records, holder: str, max_data_size: int) -> None:
        self._max_data_size = max_data_size
        self._database = database
        self._records = records
        self._holder = holder
        self._in_one = database.dialect.nested_writes
        self._write_statements(type(database.dialect), table, records)

    @once
    def _write_statements(self, dialect: type[Dialect], table: Table, records: Records) -> None:
        told = [table.c[name] for name in _TOLD]
        values = partial(_values, records.last_version)
        self._insertion = Insertion(dialect, table, told, values, records.adding if dialect.nested_writes else None)
        self._nonces = Nonces(table)

    def add(self, schedules: Sequence[ScheduleRow]) -> list[str]:
        """Write new schedules and return the keys that existed; see `ScheduleStore.add_many`."""
        nonce = new_number()
        told = [columns(row, self._max_data_size) for row in schedules]
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


def columns(row: ScheduleRow, max_data_size: int) -> dict[str, Any]:
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


def _values(
    last_version: Callable[[ColumnElement[Any]], ColumnElement[int]],
    told: Mapping[str, ColumnElement[Any]],
    now: ColumnElement[int],
) -> dict[str, ColumnElement[Any]]:
    """Return the columns of a new row: its version and its fence are later than any that its key has had."""
    first = larger_of(now, last_version(told["key"]) + 1)
    times = {"fence": first, "version": first, "created": now, "updated": now}
    catch_up = func.coalesce(told["catch_up"], literal_column("'all'"))
    return {**told, **times, "catch_up": catch_up, "nonce": bindparam("nonce", type_=BigInteger)}
