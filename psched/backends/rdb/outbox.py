"""The table of the outbox. Each table of schedules or tasks has its own."""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import BigInteger, BindParameter, Column, Connection, MetaData, Table, bindparam, delete, insert, select

from psched.backends.common.rows import milliseconds, read_event_facts
from psched.backends.common.table_name_check import checked_name
from psched.backends.sql.compiled_statements import cached_on_class
from psched.backends.sql.database import Database
from psched.backends.sql.dialect import MYSQL_OPTIONS, LongText, met_by_few, now_ms
from psched.store.outbox import PendingEvent


def outbox_table(metadata: MetaData, rows: str) -> Table:
    """Return the outbox of a table. `at`: unix milliseconds. `number`: a random number. `facts`: JSON in ASCII."""
    return Table(
        f"{checked_name(rows)}_outbox",
        metadata,
        Column("at", BigInteger, primary_key=True, autoincrement=False),
        Column("number", BigInteger, primary_key=True, autoincrement=False),
        Column("facts", LongText, nullable=False),
        **MYSQL_OPTIONS,
    )


class RdbOutbox:
    def __init__(self, database: Database, table: Table) -> None:
        self._database = database
        self._write_statements(table)

    @cached_on_class
    def _write_statements(self, table: Table) -> None:
        c = table.c
        self._insert = insert(table).values(at=now_ms())
        self._page = select(*c).order_by(c.at, c.number).limit(bindparam("limit"))
        since, until = bindparam("since", type_=BigInteger), bindparam("until", type_=BigInteger)
        numbers: BindParameter[int] = bindparam("numbers", expanding=True)
        # otherwise SQLite might search for the numbers at every time in the table
        within = met_by_few(c.at >= since), met_by_few(c.at <= until)
        self._remove = delete(table).where(*within, c.number.in_(numbers))
        old = c.at < now_ms() - bindparam("age", type_=BigInteger)
        self._old = select(*c).where(old).order_by(c.at, c.number).limit(bindparam("limit"))

    def insert(self, connection: Connection, events: Sequence[Mapping[str, object]]) -> None:
        rows = [{"number": secrets.randbits(62), "facts": json.dumps(facts)} for facts in events]
        connection.execute(self._insert, rows)

    def put(self, facts: Mapping[str, object]) -> None:
        self._database.run(lambda connection, _: self.insert(connection, [facts]))

    def page(self, limit: int) -> list[PendingEvent]:
        return list(map(_pending, self._database.rows(self._page, {"limit": limit})))

    def remove(self, events: Sequence[PendingEvent]) -> None:
        if not events:
            return
        places = [tuple(map(int, event.place.split("-"))) for event in events]
        times = [at for at, _ in places]
        values = {"since": min(times), "until": max(times), "numbers": [number for _, number in places]}
        self._database.change(self._remove, values)

    def trim(self, age: float, limit: int) -> int:
        old = list(map(_pending, self._database.rows(self._old, {"age": milliseconds(age), "limit": limit})))
        self.remove(old)
        return len(old)


def _pending(row: Mapping[Any, Any]) -> PendingEvent:
    return PendingEvent(f"{row['at']}-{row['number']}", row["at"] / 1000, read_event_facts(row["facts"]))
