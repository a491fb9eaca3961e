"""Schedules in `rdb`: created by `add`, finished by `advance`. Used in children and clients."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, cast

from sqlalchemy import Connection, MetaData, RowMapping, Update, bindparam, delete, insert, select, update
from sqlalchemy.exc import DBAPIError

from psched.backends.rdb.leases import Leases, new_number
from psched.backends.rdb.store import RdbLeaseStore
from psched.backends.rdb.tables import RUNNING, WAITING, schedules_table
from psched.backends.rdb.waiting import OneOrder
from psched.backends.sql.fields import Fields
from psched.backends.sql.pages import Pages
from psched.dialects.base import now_ms
from psched.dialects.database import Database
from psched.errors import AlreadyExistsError, IdempotentNotFoundError
from psched.model import Claim, Rule, ScheduleRow
from psched.payload import encode, type_from_key
from psched.store import Also


class RdbScheduleStore(RdbLeaseStore):
    """`ScheduleStore` on a table of our own."""

    def __init__(self, database: Database, table: str, holder: str) -> None:
        """Connects to nothing yet. Raises ConfigError for a name that cannot be a table's."""
        self._table = schedules_table(MetaData(), table)
        leases = Leases(database, self._table, holder)
        super().__init__(database, leases, OneOrder(database, self._table), read_schedule, self._table)
        self._pages = Pages(database, self._table, self._table.c.due, self._table.c.key)
        self._write_statements()

    def add(
        self, key: str, type: str, rule: Rule, next_time: int, next_run_time: float, data: Mapping[str, Any]
    ) -> None:
        """Create a schedule. Raises AlreadyExistsError."""
        nonce = new_number()
        values = {
            "key": key,
            "type": type,
            "data": encode(dict(data)),
            **_rule_columns(rule),
            "next_time": milliseconds(next_time),
            "due": milliseconds(next_run_time),
            "nonce": nonce,
        }

        def work(connection: Connection, uncertain: bool) -> bool:
            try:
                connection.execute(self._insert, values)
            except DBAPIError as error:
                if not self._database.dialect.is_duplicate_key(error):
                    raise
                present = connection.execute(self._nonce, {"lease_key": key}).scalar()
                return uncertain and present == nonce
            return True

        if not self._database.run(work):
            raise AlreadyExistsError(f"a schedule has the key {key!r} already")

    def get(self, key: str) -> ScheduleRow | None:
        """Return the schedule, or None."""
        row = self._database.run(
            lambda connection, _: connection.execute(self._read, {"lease_key": key}).mappings().first()
        )
        return None if row is None else read_schedule(row)

    def list(self) -> Iterator[ScheduleRow]:
        """Return every schedule, ordered by due time and key, read a page at a time."""
        return map(read_schedule, self._pages)

    def modify(self, seen: ScheduleRow, wanted: ScheduleRow) -> bool:
        """Write what differs between `seen` and `wanted`; False when the row is not as it was seen."""
        changes = _changes(seen, wanted)
        if not changes:
            return True
        statement = self._unchanged(seen).values(**changes, updated=now_ms())

        def work(connection: Connection, uncertain: bool) -> bool:
            if connection.execute(statement).rowcount == 1:
                return True
            row = connection.execute(self._read, {"lease_key": seen.key}).mappings().first() if uncertain else None
            return row is not None and all(row[name] == value for name, value in changes.items())

        return self._database.run(work)

    def delete(self, key: str) -> None:
        """Delete the schedule, leased or not. Raises IdempotentNotFoundError."""

        def work(connection: Connection, uncertain: bool) -> bool:
            return connection.execute(self._delete, {"lease_key": key}).rowcount == 1 or uncertain

        if not self._database.run(work):
            raise IdempotentNotFoundError(f"no schedule has the key {key!r}")

    def advance(
        self, claim: Claim, next_time: int, next_run_time: float, until: float, also: Also | None = None
    ) -> Rule | None:
        """Finish the claimed occurrence; return the stored rule instead when it is not the claim's any more."""
        rule = cast("ScheduleRow", claim.row).rule
        values = {
            **{f"seen_{name}": value for name, value in _rule_columns(rule).items()},
            "then": milliseconds(next_time),
            "then_due": milliseconds(next_run_time),
        }
        stored = self._leases.settle(claim.lease, self._advance, values, until, also)
        return None if stored is None else read_schedule(stored).rule

    def _unchanged(self, seen: ScheduleRow) -> Update:
        """Return an UPDATE of the row as it was seen. While it runs, its lease is renewed all the time: no matter."""
        c = self._table.c
        same = [c[name] == value for name, value in _rule_columns(seen.rule).items()]
        if seen.status != RUNNING:
            same.append(c.due == milliseconds(seen.next_run_time))
        return update(self._table).where(
            c.key == seen.key, c.status == seen.status, c.next_time == milliseconds(seen.next_time), *same
        )

    def _write_statements(self) -> None:
        c = self._table.c
        this = c.key == bindparam("lease_key")
        self._insert = insert(self._table).values(fence=now_ms(), created=now_ms(), updated=now_ms())
        self._nonce = select(c.nonce).where(this)
        self._read = self._leases.statements.read
        self._delete = delete(self._table).where(this)
        self._advance = self._leases.statements.settling(
            *(c[name] == bindparam(f"seen_{name}") for name in ("cron", "timezone", "delay_ms")),
            next_time=bindparam("then"),
            due=bindparam("then_due"),
            attempts=0,
            crashes=0,
            last_error=None,
        )


def milliseconds(seconds: float) -> int:
    """Return unix seconds as the table keeps them. Raises ValueError for what is no time of this calendar."""
    if not abs(seconds) < 253_402_300_800:
        raise ValueError(f"{seconds!r} is no time that can be stored: the last year is 9999")
    return round(seconds * 1000)


def read_schedule(row: RowMapping) -> ScheduleRow:
    """Return a stored schedule; what cannot be used of it is its `problem`."""
    fields = Fields(row)
    key = fields.text("key")
    status = fields.text("status")
    attempts = fields.number("attempts")
    return ScheduleRow(
        key=key,
        type=fields.text("type") or type_from_key(key),
        data=fields.json("data"),
        status=status,
        attempts=attempts,
        last_error=fields.optional_text("last_error"),
        node=fields.optional_text("node"),
        rule=Rule(fields.text("cron"), fields.text("timezone"), fields.seconds("delay_ms", 1000)),
        next_time=int(fields.seconds("next_time", 1000)),
        next_run_time=fields.seconds("due", 1000),
        settled=status == WAITING and attempts == 0,
        problem=fields.problem,
    )


def _rule_columns(rule: Rule) -> dict[str, Any]:
    return {"cron": rule.cron, "timezone": rule.timezone, "delay_ms": milliseconds(rule.delay)}


def _changes(seen: ScheduleRow, wanted: ScheduleRow) -> dict[str, Any]:
    """Return the columns to be written, by name."""
    changes: dict[str, Any] = {}
    if wanted.type != seen.type:
        changes["type"] = wanted.type
    if wanted.data != seen.data:
        changes["data"] = encode(wanted.data)
    if wanted.rule != seen.rule:
        changes |= _rule_columns(wanted.rule)
    if wanted.next_time != seen.next_time:
        changes["next_time"] = milliseconds(wanted.next_time)
    if wanted.next_run_time != seen.next_run_time:
        changes["due"] = milliseconds(wanted.next_run_time)
    return changes
