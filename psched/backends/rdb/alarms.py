"""The alarms of schedules in `rdb`: which occurrences are overdue, found by an index. Used in children and clients."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import BigInteger, Select, Table, Update, bindparam, func, or_, select, update

from psched.alarm import Overdue
from psched.backends.rdb.tables import milliseconds
from psched.backends.sql.fields import Fields
from psched.dialects.base import now_ms
from psched.dialects.database import Database
from psched.dialects.once import once


class RdbAlarms:
    """`Alarms` on a table of schedules."""

    def __init__(self, database: Database, table: Table) -> None:
        self._database = database
        self._write_statements(table)

    @once
    def _write_statements(self, table: Table) -> None:
        c = table.c
        is_late = c.alert_at <= now_ms()
        occurrence = func.coalesce(c.regular_time, c.next_time)
        is_untold = or_(c.alerted.is_(None), c.alerted != occurrence)
        is_free = or_(c.ringing_until.is_(None), c.ringing_until <= now_ms())
        this = (c.key == bindparam("of_key"), occurrence == bindparam("of_time"))
        told = (c.key, c.type, occurrence.label("next_time"), c.delay_ms, c.status, c.attempts, c.node, c.last_error)
        found = (
            select(*told, now_ms().label("now")).where(is_late).order_by(c.alert_at, c.key).limit(bindparam("limit"))
        )
        self._overdue = found
        self._untold = found.where(is_untold, is_free)
        until = now_ms() + bindparam("span", type_=BigInteger)
        self._claim = update(table).where(*this, is_late, is_untold, is_free).values(ringing_until=until)
        self._told = update(table).where(*this).values(alerted=occurrence, ringing_until=None)

    def overdue(self, limit: int) -> list[Overdue]:
        """Return up to `limit` occurrences that are overdue, those longest overdue first."""
        return self._read(self._overdue, limit)

    def untold(self, limit: int) -> list[Overdue]:
        """Return up to `limit` overdue occurrences that nobody has told of, and nobody is telling of."""
        return self._read(self._untold, limit)

    def claim(self, overdue: Overdue, seconds: float) -> bool:
        """Take it upon oneself to tell of an occurrence; a claim without an answer runs out."""
        return self._write(self._claim, overdue, span=round(seconds * 1000))

    def told(self, overdue: Overdue) -> None:
        """Enter that somebody was told of the occurrence."""
        self._write(self._told, overdue)

    def _read(self, statement: Select[Any], limit: int) -> list[Overdue]:
        rows = self._database.run(
            lambda connection, _: connection.execute(statement, {"limit": limit}).mappings().all()
        )
        return [read_overdue(row) for row in rows]

    def _write(self, statement: Update, overdue: Overdue, **values: int) -> bool:
        which = {"of_key": overdue.key, "of_time": milliseconds(overdue.scheduled_time)}
        return self._database.run(
            lambda connection, _: connection.execute(statement, {**which, **values}).rowcount == 1
        )


def read_overdue(row: Mapping[Any, Any]) -> Overdue:
    """Return what a schedule's row, read at its `now`, says of its occurrence."""
    fields = Fields(row)
    time = fields.seconds("next_time", 1000)
    return Overdue(
        key=fields.text("key"),
        type=fields.text("type"),
        scheduled_time=int(time),
        seconds=fields.seconds("now", 1000) - time - fields.seconds("delay_ms", 1000),
        status=fields.text("status"),
        attempts=fields.number("attempts"),
        node=fields.optional_text("node"),
        last_error=fields.optional_text("last_error"),
    )
