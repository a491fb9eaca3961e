"""Stores named calendars in a table beside the table of schedules."""

from __future__ import annotations

from sqlalchemy import BigInteger, Column, Connection, Integer, MetaData, Table, bindparam, select, update

from psched.backends.common.table_name_check import checked_name
from psched.backends.sql.compiled_statements import cached_on_class
from psched.backends.sql.database import Database
from psched.backends.sql.dialect import MYSQL_OPTIONS, ExactText, LongText, now_ms
from psched.store.calendars import StoredCalendar


def calendars_table(metadata: MetaData, schedules: str) -> Table:
    """Return the table of calendars. `content`: JSON; NULL if deleted. `changed`: unix milliseconds."""
    return Table(
        f"{checked_name(schedules)}_calendars",
        metadata,
        Column("name", ExactText(255), primary_key=True),
        Column("version", Integer, nullable=False),
        Column("content", LongText),
        Column("changed", BigInteger, nullable=False),
        **MYSQL_OPTIONS,
    )


class RdbCalendars:
    """Implements `Calendars`."""

    def __init__(self, database: Database, table: Table) -> None:
        self._database = database
        self._table = table
        self._write_statements(table)

    @cached_on_class
    def _write_statements(self, table: Table) -> None:
        c = table.c
        self._all = select(*c).order_by(c.name)
        self._one = select(*c).where(c.name == bindparam("of_name"))
        unchanged = update(table).where(c.name == bindparam("of_name"), c.version == bindparam("seen"))
        self._update = unchanged.values(version=c.version + 1, content=bindparam("new_content"), changed=now_ms())

    def all(self) -> list[StoredCalendar]:
        return [_read(row) for row in self._database.rows(self._all, {})]

    def get(self, name: str) -> StoredCalendar | None:
        rows = self._database.rows(self._one, {"of_name": name})
        return _read(rows[0]) if rows else None

    def write(self, name: str, seen: int, content: str | None) -> bool:
        def work(connection: Connection, uncertain: bool) -> bool:
            if seen == 0:
                row = {"name": name, "version": 1, "content": content, "changed": now_ms()}
                done = self._database.dialect.insert_one(connection, self._table, row)
            else:
                values = {"of_name": name, "seen": seen, "new_content": content}
                done = connection.execute(self._update, values).rowcount == 1
            return done or uncertain

        done = self._database.run(work)
        found = self.get(name) if done else None  # after a lost answer, the row may come from another writer
        return found is not None and found.version > seen and (found.version > seen + 1 or found.content == content)


def _read(row: object) -> StoredCalendar:
    name, version, content, changed = row["name"], row["version"], row["content"], row["changed"]  # type: ignore[index]
    return StoredCalendar(name, version, content, changed / 1000)
