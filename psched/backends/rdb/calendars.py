"""Calendars in `rdb`: a table beside the table of schedules."""

from __future__ import annotations

import sqlalchemy as sa

from psched.backends.sql.compiled_statements import cached_on_class
from psched.backends.sql.database import Database
from psched.backends.sql.dialect import now_ms
from psched.store.calendars import StoredCalendar


class RdbCalendars:
    def __init__(self, database: Database, table: sa.Table) -> None:
        self._database = database
        self._table = table
        self._write_statements(table)

    @cached_on_class
    def _write_statements(self, table: sa.Table) -> None:
        c = table.c
        self._all = sa.select(*c).order_by(c.name)
        self._one = sa.select(*c).where(c.name == sa.bindparam("of_name"))
        unchanged = sa.update(table).where(c.name == sa.bindparam("of_name"), c.version == sa.bindparam("seen"))
        self._update = unchanged.values(version=c.version + 1, content=sa.bindparam("new_content"), changed=now_ms())

    def all(self) -> list[StoredCalendar]:
        return [_read_calendar(row) for row in self._database.rows(self._all, {})]

    def get(self, name: str) -> StoredCalendar | None:
        rows = self._database.rows(self._one, {"of_name": name})
        return _read_calendar(rows[0]) if rows else None

    def write(self, name: str, seen: int, content: str | None) -> bool:
        def work(connection: sa.Connection, uncertain: bool) -> bool:
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


def _read_calendar(row: object) -> StoredCalendar:
    name, version, content, changed = row["name"], row["version"], row["content"], row["changed"]  # type: ignore[index]
    return StoredCalendar(name, version, content, changed / 1000)
