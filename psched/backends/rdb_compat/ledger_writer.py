"""Writes the ledger for PerfectSched's table. This table records neither versions nor holders.

A change that Ruby made is recorded when psched next settles or changes the schedule.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

from sqlalchemy import ColumnElement, Connection, RowMapping, Table, bindparam, insert, select

from psched.backends.common.rows import (
    ledger_columns,
    milliseconds,
    optional_milliseconds,
    policy_columns,
    rule_columns,
    storable,
)
from psched.backends.sql.dialect import now_ms
from psched.model import Claim, Policy, ScheduleRow
from psched.store.ledger import ADD, DELETE, MODIFY, UPGRADE, Entry


class CompatLedgerWriter:
    """Inserts ledger entries and definition changes in the transaction that changes the schedules."""

    def __init__(self, ledger: Table, changes: Table, holder: str, reckoning: str) -> None:
        """`reckoning`: the cron dialect and the tz database version with which this process computes times."""
        self._holder = holder
        self._reckoning = reckoning
        self._entry_statement = insert(ledger)
        self._change_statement = insert(changes)
        entry, change = ledger.c, changes.c
        this: ColumnElement[str] = bindparam("of_key")
        self._last_change = select(*change).where(change.key == this).order_by(change.version.desc()).limit(1)
        entries = select(entry.scheduled_time, entry.last_time, entry.fence).where(entry.key == this)
        self._last_entry = entries.order_by(entry.scheduled_time.desc(), entry.fence.desc()).limit(1)

    def insert_added(self, connection: Connection, rows: Sequence[ScheduleRow]) -> None:
        for row in rows:
            self._insert_definition(connection, row, ADD, self._holder)

    def insert_change(self, connection: Connection, seen: ScheduleRow, row: ScheduleRow, action: str) -> None:
        """Insert the change of a schedule from `seen` to `row`.

        Inserts the definition in `seen` first if it is not recorded.
        """
        self._version(connection, seen)
        self._insert_definition(connection, row, action, self._holder, seen.next_time)

    def insert_entry(self, connection: Connection, claim: Claim, entry: Entry) -> None:
        """Insert the entry of the claimed occurrence.

        The fence of the entry is the larger of two numbers: the current time in unix milliseconds, and the fence of the
        previous entry plus one. The end of the lease cannot be the fence, because a later lease may end earlier.
        """
        row = cast("ScheduleRow", claim.row)
        version, now = self._version(connection, row), self._now(connection)
        before = connection.execute(self._last_entry, {"of_key": row.key}).first()
        known = replace(row, attempts=1, previous=None if before is None else int(before[1] or before[0]) // 1000)
        columns = ledger_columns(known, entry, self._reckoning)
        values = {
            **columns,
            "fence": now if before is None else max(now, before[2] + 1),
            "version": version,
            "node": self._holder,
            "started": None if columns["started"] is None else min(columns["started"], now),
            "ended": now,
        }
        connection.execute(self._entry_statement, values)

    def _version(self, connection: Connection, row: ScheduleRow) -> int:
        """Return the version of the definition in `row`. Records the definition first if it is not recorded."""
        last = self._last(connection, row.key)
        if last is None:
            return self._insert_definition(connection, row, UPGRADE)
        if last["action"] == DELETE:
            return self._insert_definition(connection, row, ADD)
        if any(last[name] != value for name, value in rule_columns(row.key, row.rule).items()):
            return self._insert_definition(connection, row, MODIFY, pending=row.next_time)
        return int(last["version"])

    def _insert_definition(
        self,
        connection: Connection,
        row: ScheduleRow,
        action: str,
        node: str | None = None,
        pending: int | None = None,
    ) -> int:
        """Record the definition in `row` and return its version. `pending`: the next occurrence before the change."""
        last, now = self._last(connection, row.key), self._now(connection)
        version = now if last is None else max(now, int(last["version"]) + 1)
        values: Mapping[str, Any] = {
            "key": row.key,
            "version": version,
            "changed": now,
            "action": action,
            "node": node,
            "type": storable(row.type[:255]),  # Ruby may have stored any text here
            **rule_columns(row.key, row.rule),
            **policy_columns(Policy()),
            "pending": optional_milliseconds(pending),
            "first_time": milliseconds(row.next_time),
            "due": milliseconds(row.next_run_time),
            "reckoning": None if action == UPGRADE else self._reckoning,
        }
        connection.execute(self._change_statement, values)
        return version

    def _last(self, connection: Connection, key: str) -> RowMapping | None:
        return connection.execute(self._last_change, {"of_key": key}).mappings().first()

    def _now(self, connection: Connection) -> int:
        now: int = connection.execute(select(now_ms())).scalar_one()
        return now
