"""Writing the ledger: what is entered with a settled occurrence, and with a change of a definition. Any process.

Each row is made from the schedule's own row by INSERT … SELECT, in the transaction that writes that row.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from sqlalchemy import (
    ColumnElement,
    Connection,
    FromClause,
    Insert,
    Table,
    Update,
    bindparam,
    case,
    column,
    func,
    insert,
    select,
)

from psched.backends.rdb.schedule_rows import entry_columns, optional_milliseconds
from psched.backends.rdb.tables import milliseconds
from psched.dialects.base import Dialect, larger_of, now_ms, now_once
from psched.dialects.given import Compiled, Told
from psched.dialects.insertion import as_parameter, rows_in
from psched.dialects.pairs import Pair
from psched.ledger import ADD, DELETE, Entry
from psched.model import Lease, ScheduleRow

_PAGE = 2000
"""Definitions entered by one statement."""

_OF_SCHEDULE = ("key", "fence", "node", "version")
_OF_ENTRY = (
    *(
        "scheduled_time",
        "outcome",
        "detail",
        "last_time",
        "occurrences",
        "extra",
        "previous",
        "attempts",
        "trouble",
        "error",
    ),
)
_GIVEN = (*_OF_ENTRY, "reckoning", "started")
_OF_DEFINITION = (
    *("key", "version", "type", "cron", "timezone", "delay_ms"),
    *("catch_up", "max_lateness_ms", "alert_after_ms", "max_attempts", "paused_from", "paused_until"),
)
_OF_TIMES = ("next_time", "due", "regular_time", "regular_due")

_NOW = now_ms()
"""The clock of a statement on one row; those on many take `now_once`."""


class Settling(NamedTuple):
    """What settles an occurrence and enters that, and its further parameters."""

    statement: Compiled | Pair
    values: dict[str, Any]


class Records:
    """The statements that enter rows, built once per table (`dialects.once.shared`)."""

    def __init__(self, dialect: type[Dialect], schedules: Table, ledger: Table, changes: Table, reckoning: str) -> None:
        """`reckoning`: the cron dialect and the version of the tz database, as this process computes times."""
        self._nested = dialect.nested_writes
        self._schedules = schedules
        self._ledger = ledger
        self._changes = changes
        self._reckoning = reckoning
        self._this = schedules.c.key == bindparam("lease_key")
        self._entry = self._entering(schedules, self._this)
        self._passed = self._entering(schedules, self._this, age=1)
        given = self._given = {
            name: bindparam(f"change_{name}", type_=changes.c[name].type)
            for name in ("action", "node", "pending", "reckoning", "number")
        }
        self._change = self._changing(schedules.c.version, given, self._this)
        new = rows_in("new_rows", [column("new_key", schedules.c.key.type)])
        ours = (schedules.c.key == new.c.new_key, schedules.c.nonce == bindparam("nonce", type_=schedules.c.nonce.type))
        self._additions = self._changing(schedules.c.version, given, *ours)
        # No smaller than a fence that the row has had, so that the next row of its key begins with a larger one.
        last = larger_of(schedules.c.version, schedules.c.fence)
        self._removal = self._changing(last + 1, given, self._this)
        c = ledger.c
        self._of_lease = select(c.key).where(
            c.key == bindparam("of_key"),
            c.scheduled_time == bindparam("of_time"),
            c.fence == bindparam("of_fence"),
        )
        self._settling: dict[Update, Compiled | Pair] = {}
        c = changes.c
        this_version = c.key == bindparam("of_key"), c.version == bindparam("of_version")
        self._made_by = select(c.number).where(*this_version)

    def settling(self, settle: Update, row: ScheduleRow, entry: Entry) -> Settling:
        """Return what settles an occurrence by `settle` and enters it."""
        return Settling(self.settling_by(settle), self._parameters(row, entry))

    def settling_by(self, settle: Update) -> Compiled | Pair:
        """Return what settles an occurrence by `settle`; made once."""
        if settle not in self._settling:
            self._settling[settle] = Compiled(self._in_one(settle)) if self._nested else Pair(settle, self._entry)
        return self._settling[settle]

    def has(self, connection: Connection, row: ScheduleRow, lease: Lease) -> bool:
        """Tell whether there is an entry of the occurrence in `row` that was settled under the fence of `lease`."""
        time = milliseconds(row.next_time)
        values = {"of_key": row.key, "of_time": time, "of_fence": lease.fence}
        return connection.execute(self._of_lease, values).first() is not None

    def entering_given(self, given: Told) -> Insert:
        """Return what enters all that has just been settled of the given keys; given is what `values` returns."""
        values = {name: given[name] for name in _GIVEN}
        return self._entry_of(self._schedules, values, self._schedules.c.key == given["key"], clock=now_once())

    def passing(self, connection: Connection, row: ScheduleRow, entry: Entry) -> None:
        """Enter what became of the occurrence in `row`, passed over by a change that has just been written."""
        connection.execute(self._passed, {"lease_key": row.key, **self._parameters(row, entry)})

    def last_version(self, key: ColumnElement[Any]) -> ColumnElement[int]:
        """Return the last version on record of a schedule with that key, 0 when there is none."""
        c = self._changes.c
        return func.coalesce(select(func.max(c.version)).where(c.key == key).scalar_subquery(), 0)

    def change(
        self,
        connection: Connection,
        key: str,
        action: str,
        node: str,
        pending: int | None,
        number: int | None = None,
    ) -> None:
        """Enter the definition that now stands in the schedule's row; `pending`: what was next before, milliseconds."""
        self._enter_change(connection, self._change, key, action, node, pending, number)

    def is_made_by(self, connection: Connection, key: str, version: int, number: int) -> bool:
        """Tell whether the call with that number has made this version of the schedule's definition."""
        made = connection.execute(self._made_by, {"of_key": key, "of_version": version}).scalar()
        return bool(made == number)

    def additions(self, connection: Connection, keys: Sequence[str], nonce: int, node: str) -> None:
        """Enter the definitions of the schedules with these keys that were just added under `nonce`."""
        for start in range(0, len(keys), _PAGE):
            rows = as_parameter([{"key": key} for key in keys[start : start + _PAGE]], ["key"])
            connection.execute(self._additions, {"new_rows": rows, "nonce": nonce, **self.of_addition(node)})

    def adding(self, new: Insert) -> Insert:
        """Return the one statement that adds schedules and enters their definitions; its row count is the same."""
        added = new.returning(*(self._schedules.c[name] for name in (*_OF_DEFINITION, *_OF_TIMES))).cte("added")
        return self._changing(added.c.version, self._given, source=added)

    def of_addition(self, node: str) -> dict[str, Any]:
        """Return the parameters that `adding` takes besides those of the schedules."""
        return self._parameters_of_change(ADD, node, None)

    def removal(self, connection: Connection, key: str, node: str, pending: int) -> None:
        """Enter that the schedule, whose row is still there, is deleted."""
        self._enter_change(connection, self._removal, key, DELETE, node, pending)

    def _in_one(self, settle: Update) -> Insert:
        """Return the one statement that executes `settle` and enters what it settled; its row count is the same."""
        settled = settle.returning(*(self._schedules.c[name] for name in _OF_SCHEDULE)).cte("settled")
        return self._entering(settled).execution_options(preserve_rowcount=True)

    def values(self, row: ScheduleRow, entry: Entry) -> dict[str, Any]:
        """Return what is known of an entry before it is made, by its columns."""
        return {
            **entry_columns(row, entry),
            "scheduled_time": milliseconds(row.next_time),
            "started": optional_milliseconds(entry.started),
            "reckoning": self._reckoning,
        }

    def _parameters(self, row: ScheduleRow, entry: Entry) -> dict[str, Any]:
        return {f"entry_{name}": value for name, value in self.values(row, entry).items()}

    def _enter_change(
        self,
        connection: Connection,
        statement: Insert,
        key: str,
        action: str,
        node: str,
        pending: int | None,
        number: int | None = None,
    ) -> None:
        given = self._parameters_of_change(action, node, pending, number)
        connection.execute(statement, {"lease_key": key, **given})

    def _parameters_of_change(
        self, action: str, node: str, pending: int | None, number: int | None = None
    ) -> dict[str, Any]:
        change = {"action": action, "node": node, "pending": pending, "reckoning": self._reckoning, "number": number}
        return {f"change_{name}": value for name, value in change.items()}

    def _entering(self, source: FromClause, *conditions: ColumnElement[bool], age: int = 0) -> Insert:
        """Return the INSERT of an entry under the version that the schedule's row had `age` changes ago."""
        types = self._ledger.c
        values = {name: bindparam(f"entry_{name}", type_=types[name].type) for name in _GIVEN}
        return self._entry_of(source, values, *conditions, age=age)

    def _entry_of(
        self,
        source: FromClause,
        values: Mapping[str, ColumnElement[Any]],
        *conditions: ColumnElement[bool],
        age: int = 0,
        clock: ColumnElement[int] = _NOW,
    ) -> Insert:
        began = values["started"]  # known up to a round trip, which a run may be shorter than
        started = case((began > clock, clock), else_=began)
        *names, version = (source.c[name] for name in _OF_SCHEDULE)
        known = [value for name, value in values.items() if name != "started"]
        chosen = select(*names, version - age if age else version, *known, started, clock).where(*conditions)
        return insert(self._ledger).from_select([*_OF_SCHEDULE, *values, "ended"], chosen)

    def _changing(
        self,
        version: ColumnElement[int],
        given: Mapping[str, Any],
        *conditions: ColumnElement[bool],
        source: FromClause | None = None,
    ) -> Insert:
        row = self._schedules.c if source is None else source.c
        taken = {name: row[name] for name in _OF_DEFINITION} | {
            "version": version,
            "first_time": func.coalesce(row.regular_time, row.next_time),
            "due": func.coalesce(row.regular_due, row.due),
        }
        chosen = select(*taken.values(), *given.values(), now_ms()).where(*conditions)
        return insert(self._changes).from_select([*taken, *given, "changed"], chosen)
