"""Creating, checking and diagnosing the tables of `rdb`. Used in clients, and by children when they start."""

from __future__ import annotations

from collections.abc import Iterator

from sqlalchemy import Connection, Index, Table, delete, insert, inspect, select
from sqlalchemy.exc import DBAPIError
from sqlalchemy.schema import CreateIndex, CreateTable

from psched.backends.rdb.tables import LAYOUT
from psched.dialects.database import Database
from psched.errors import ConfigError
from psched.store import Finding

_TRIES = 5
"""Several hosts may run `psched init` at once; whoever comes second finds part of it done."""


class Layout:
    """One table with its indexes, and the version of its layout in `versions`."""

    def __init__(self, database: Database, table: Table, versions: Table) -> None:
        self._database = database
        self._table = table
        self._versions = versions
        self._version = select(versions.c.layout).where(versions.c.table_name == table.name)

    def create(self) -> None:
        """Create what is missing, upgrade what is older. Raises ConfigError when the table is newer, or not ours."""
        self._database.dialect.create_database()
        with self._database.patient() as database:
            for left in reversed(range(_TRIES)):
                try:
                    problem = database.run(lambda connection, _: self._create(connection))
                    break
                except DBAPIError as error:
                    if left == 0 or not self._is_overtaken(error):
                        raise
        if problem is not None:
            raise ConfigError(problem)

    def check(self) -> None:
        """Raise ConfigError naming the remedy when the table cannot be used as it is."""
        problem = self.problem()
        if problem is not None:
            raise ConfigError(problem)

    def problem(self) -> str | None:
        """Say why the table cannot be used, and the remedy; None when it can."""
        try:
            return self._database.run(lambda connection, _: self._problem(connection))
        except DBAPIError as error:
            if not self._database.dialect.is_missing_table(error):
                raise
            return self._is_missing()

    def diagnose(self) -> Iterator[Finding]:
        """Yield what `psched doctor` shows."""
        problem = self.problem()
        yield Finding("table", problem is None, f"{self._table.name} is there" if problem is None else problem)
        if problem is None:
            yield from self._database.run(lambda connection, _: list(self._findings(connection)))

    def _create(self, connection: Connection) -> str | None:
        unfit = self._database.dialect.unfit(connection)
        if unfit is not None:
            return unfit
        for table in (self._versions, self._table):
            if not inspect(connection).has_table(table.name):
                connection.execute(CreateTable(table))
        problem = self._foreign(connection) or self._newer(connection)
        if problem is not None:
            return problem
        for index in self._missing_indexes(connection):
            connection.execute(CreateIndex(index))
        self._remember_version(connection)
        return None

    def _remember_version(self, connection: Connection) -> None:
        if connection.execute(self._version).scalar() == LAYOUT:
            return
        with self._database.transaction(connection):
            connection.execute(delete(self._versions).where(self._versions.c.table_name == self._table.name))
            connection.execute(insert(self._versions), {"table_name": self._table.name, "layout": LAYOUT})

    def _is_overtaken(self, error: DBAPIError) -> bool:
        dialect = self._database.dialect
        return dialect.is_already_there(error) or dialect.is_duplicate_key(error)

    def _problem(self, connection: Connection) -> str | None:
        unfit = self._database.dialect.unfit(connection)
        if unfit is not None:
            return unfit
        if not inspect(connection).has_table(self._table.name):
            return self._is_missing()
        return self._foreign(connection) or self._older(connection) or self._newer(connection)

    def _is_missing(self) -> str:
        return f"the table {self._table.name} does not exist; create it with: psched init"

    def _foreign(self, connection: Connection) -> str | None:
        """Say which columns a table of this name lacks, so that it cannot be ours."""
        present = {column["name"] for column in inspect(connection).get_columns(self._table.name)}
        missing = [column.name for column in self._table.columns if column.name not in present]
        if not missing:
            return None
        return (
            f"the table {self._table.name} is not one of psched's rdb store: it has no column {', '.join(missing)}; "
            "configure another table, or the type that made it"
        )

    def _older(self, connection: Connection) -> str | None:
        version = self._stored_version(connection)
        if version is None or version < LAYOUT:
            return f"the layout of table {self._table.name} is not up to date; upgrade it with: psched init"
        return None

    def _newer(self, connection: Connection) -> str | None:
        version = self._stored_version(connection)
        if version is None or version <= LAYOUT:
            return None
        return (
            f"the table {self._table.name} was made by a newer psched (layout {version}, this one knows {LAYOUT}); "
            "upgrade psched on this host"
        )

    def _stored_version(self, connection: Connection) -> int | None:
        if not inspect(connection).has_table(self._versions.name):
            return None
        version: int | None = connection.execute(self._version).scalar()
        return version

    def _missing_indexes(self, connection: Connection) -> list[Index]:
        present = {index["name"] for index in inspect(connection).get_indexes(self._table.name)}
        return sorted((index for index in self._table.indexes if index.name not in present), key=lambda i: str(i.name))

    def _findings(self, connection: Connection) -> Iterator[Finding]:
        dialect = self._database.dialect
        yield Finding("server", True, dialect.version(connection))
        missing = [str(index.name) for index in self._missing_indexes(connection)]
        yield Finding(
            "indexes", not missing, f"missing: {', '.join(missing)}; psched init makes them" if missing else "all there"
        )
        problem = dialect.key_problem(connection, self._table.name, "key")
        yield Finding("keys", problem is None, "compare byte by byte" if problem is None else problem)
