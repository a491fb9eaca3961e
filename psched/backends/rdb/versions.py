"""The version of a table's layout, so that older code refuses what it does not know. Used in clients and children."""

from __future__ import annotations

from sqlalchemy import Connection, Table, delete, insert, inspect, select

from psched.backends.rdb.tables import LAYOUT
from psched.backends.sql.layout import Layout
from psched.dialects.database import Database


class VersionedLayout(Layout):
    """A table whose layout version is kept in another one, `versions`, and what tables belong to it."""

    def __init__(self, database: Database, versions: Table, table: Table, *others: Table) -> None:
        super().__init__(database, table, "key", "psched's rdb store")
        self._versions = versions
        self._others = others
        self._version = select(versions.c.layout).where(versions.c.table_name == table.name)

    def _create(self, connection: Connection) -> str | None:
        for table in (self._versions, *self._others):
            self._create_table(connection, table)
        problem = self._newer(connection) or super()._create(connection)
        if problem is None and connection.execute(self._version).scalar() != LAYOUT:
            self._remember(connection)
        return problem

    def _remember(self, connection: Connection) -> None:
        with self._database.transaction(connection):
            connection.execute(delete(self._versions).where(self._versions.c.table_name == self._table.name))
            connection.execute(insert(self._versions), {"table_name": self._table.name, "layout": LAYOUT})

    def _problem(self, connection: Connection) -> str | None:
        problem = super()._problem(connection) or self._older(connection) or self._newer(connection)
        return problem or self._incomplete(connection)

    def _incomplete(self, connection: Connection) -> str | None:
        for table in self._others:
            if not inspect(connection).has_table(table.name):
                return (
                    f"the table {table.name} does not exist; create it with: psched init (a queue's: psched queue init)"
                )
        return None

    def _older(self, connection: Connection) -> str | None:
        version = self._stored(connection)
        if version is None or version < LAYOUT:
            return f"the layout of table {self._table.name} is not up to date; upgrade it with: psched init"
        return None

    def _newer(self, connection: Connection) -> str | None:
        version = self._stored(connection)
        if version is None or version <= LAYOUT:
            return None
        return (
            f"the table {self._table.name} was made by a newer psched (layout {version}, this one knows {LAYOUT}); "
            "upgrade psched on this host"
        )

    def _stored(self, connection: Connection) -> int | None:
        if not inspect(connection).has_table(self._versions.name):
            return None
        version: int | None = connection.execute(self._version).scalar()
        return version
