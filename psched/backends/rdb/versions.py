"""The version of a table's layout, so that older code refuses what it does not know. Used in clients and children."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from sqlalchemy import Connection, Executable, Index, Table, delete, insert, select

from psched.backends.sql.columns import add_missing_columns
from psched.backends.sql.layout import Layout
from psched.dialects.database import Database


class VersionedLayout(Layout):
    """A table whose layout version is kept in another one, `versions`, and what tables belong to it."""

    def __init__(
        self,
        database: Database,
        versions: Table,
        table: Table,
        *others: Table,
        upgrading: Sequence[Executable] = (),
        outdated: Sequence[Index] = (),
    ) -> None:
        """The table's `info` has its `layout`, the version of `others` too.

        When an older table has got its new columns `upgrading` is executed, and its `outdated` indexes are dropped;
        perhaps again. What it lacks then is made.
        """
        super().__init__(database, table, "key", "psched's rdb store")
        self._versions = versions
        self._others = others
        self._current: int = table.info["layout"]
        self._version = select(versions.c.layout).where(versions.c.table_name == table.name)
        self._upgrading = upgrading
        self._outdated = outdated

    def _create(self, connection: Connection) -> str | None:
        for table in (self._versions, *self._others):
            self._create_table(connection, table)
        problem = self._newer(connection)
        version = self._stored(connection)
        if problem is None and version is not None and version < self._current:
            self._upgrade(connection)
        problem = problem or super()._create(connection)
        if problem is None and version != self._current:
            self._remember(connection)
        return problem

    def _upgrade(self, connection: Connection) -> None:
        add_missing_columns(connection, self._table)
        for statement in self._upgrading:
            connection.execute(statement)
        for index in self._outdated:
            self._database.dialect.drop_index(connection, index)

    def _remember(self, connection: Connection) -> None:
        with self._database.transaction(connection):
            connection.execute(delete(self._versions).where(self._versions.c.table_name == self._table.name))
            connection.execute(insert(self._versions), {"table_name": self._table.name, "layout": self._current})

    def _problem(self, connection: Connection) -> str | None:
        version = self._stored(connection)
        problem = None if version is None else self._older(connection) or self._newer(connection)
        return problem or super()._problem(connection) or self._older(connection) or self._incomplete(connection)

    def _incomplete(self, connection: Connection) -> str | None:
        for table in self._others:
            if self._columns(connection, table) is None:
                return self._is_missing(table)
        return None

    def _missing_indexes(self, connection: Connection) -> list[Index]:
        return list(self._missing_of_all(connection))

    def _missing_of_all(self, connection: Connection) -> Iterator[Index]:
        for table in (self._table, *self._others):
            yield from self._missing_of(connection, table)

    def _older(self, connection: Connection) -> str | None:
        version = self._stored(connection)
        if version is None or version < self._current:
            return f"the layout of table {self._table.name} is not up to date; upgrade it with: psched init"
        return None

    def _newer(self, connection: Connection) -> str | None:
        version = self._stored(connection)
        if version is None or version <= self._current:
            return None
        return (
            f"the table {self._table.name} was made by a newer psched (layout {version}, this one knows "
            f"{self._current}); upgrade psched on this host"
        )

    def _stored(self, connection: Connection) -> int | None:
        if self._columns(connection, self._versions) is None:
            return None
        version: int | None = connection.execute(self._version).scalar()
        return version
