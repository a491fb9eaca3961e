"""Creates, checks and diagnoses the table of a store."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from sqlalchemy import Connection, Index, Table, false, inspect, literal_column, select, update
from sqlalchemy.exc import DBAPIError
from sqlalchemy.schema import CreateIndex, CreateTable

from psched.backends.common.errors import Fault
from psched.backends.common.tables import unwritable
from psched.backends.sql.database import Database
from psched.errors import ConfigError
from psched.store import Finding

_TRIES = 20
"""Attempts of `psched init`: several hosts may run it at once, and each step may find that another host took it."""


class Schema:
    """One table with its indexes."""

    def __init__(self, database: Database, table: Table, key: str, maker: str) -> None:
        """`key`: the column of the keys. `maker`: the program that makes such tables, for messages."""
        self._database = database
        self._table = table
        self._key = key
        self._maker = maker

    def create(self) -> None:
        """Create missing tables and indexes. Raises ConfigError when another program or version made the table."""
        dialect = self._database.dialect
        dialect.create_database()
        with self._database.patient() as database:
            for left in reversed(range(_TRIES)):
                try:
                    problem = database.run(lambda connection, _: dialect.unfit(connection) or self._create(connection))
                    break
                except DBAPIError as error:
                    if left == 0 or not (dialect.is_already_there(error) or dialect.is_duplicate_key(error)):
                        raise
        if problem is not None:
            raise ConfigError(problem)

    def check(self) -> None:
        """Raise ConfigError naming the remedy when the table cannot be used as it is."""
        problem = self.problem()
        if problem is not None:
            raise ConfigError(problem)

    def problem(self) -> str | None:
        """Return why the table cannot be used, with the remedy; None when it can."""
        dialect = self._database.dialect
        try:
            return self._database.run(lambda connection, _: dialect.unfit(connection) or self._problem(connection))
        except DBAPIError as error:
            if not dialect.is_missing_table(error):
                raise
            return dialect.missing_file(error) or self._is_missing(self._table)

    def diagnose(self) -> Iterator[Finding]:
        """Yield the findings for `psched doctor`."""
        if self._database.dialect.pooler is not None:
            if self._database.shares_sessions():
                wish = (
                    "set the pooler to sessions (PgBouncer: pool_mode = session), or connect to the database directly"
                )
                yield Finding("pooler", False, f"two connections are given one session of the database; {wish}")
            else:
                yield Finding("pooler", True, "each connection has a session of its own")
        problem = self.problem()
        yield Finding("table", problem is None, f"{self._table.name} is there" if problem is None else problem)
        if problem is None:
            yield from self._database.run(lambda connection, _: list(self._findings(connection)))

    def _create(self, connection: Connection) -> str | None:
        self._create_table(connection, self._table)
        problem = self._foreign(connection)
        if problem is None:
            with self._database.transaction(connection):  # so that no other session drops one of them meanwhile
                missing = self._missing_indexes(connection)
            for index in missing:
                connection.execute(CreateIndex(index))
        return problem

    def _create_table(self, connection: Connection, table: Table) -> None:
        if not inspect(connection).has_table(table.name):
            connection.execute(CreateTable(table))

    def _problem(self, connection: Connection) -> str | None:
        return self._foreign(connection)

    def _is_missing(self, table: Table) -> str:
        return f"the table {table.name} does not exist; create it with: psched init (a queue's: psched queue init)"

    def _columns(self, connection: Connection, table: Table) -> Collection[str] | None:
        """Return the names of a table's columns; None when there is no such table.

        They come with an answer of no rows. SQLAlchemy would read the catalogue, by statements that take a worker 4 MB.
        """
        try:
            return connection.execute(select(literal_column("*")).select_from(table).where(false())).keys()
        except DBAPIError as error:
            if not self._database.dialect.is_missing_table(error):
                raise
            return None

    def _foreign(self, connection: Connection) -> str | None:
        """Return that the table is missing, or which columns it lacks, so that it is not psched's; None otherwise."""
        present = self._columns(connection, self._table)
        if present is None:
            return self._is_missing(self._table)
        missing = [column.name for column in self._table.columns if column.name not in present]
        if not missing:
            return None
        return (
            f"the table {self._table.name} is none that {self._maker} makes: it has no column {', '.join(missing)}; "
            "configure another table, or the type that made it"
        )

    def _missing_indexes(self, connection: Connection) -> list[Index]:
        return self._missing_of(connection, self._table)

    def _missing_of(self, connection: Connection, table: Table) -> list[Index]:
        present = [tuple(index["column_names"]) for index in inspect(connection).get_indexes(table.name)]
        missing = [index for index in table.indexes if tuple(index.columns.keys()) not in present]
        return sorted(missing, key=lambda index: str(index.name))

    def _findings(self, connection: Connection) -> Iterator[Finding]:
        dialect = self._database.dialect
        yield Finding("server", True, dialect.version(connection))
        yield self._writing(connection)
        missing = [str(index.name) for index in self._missing_indexes(connection)]
        yield Finding(
            "indexes", not missing, f"missing index {', '.join(missing)}: run psched init" if missing else "all there"
        )
        problem = dialect.key_problem(connection, self._table.name, self._key)
        yield Finding("keys", problem is None, "compare byte by byte" if problem is None else problem)

    def _writing(self, connection: Connection) -> Finding:
        """Return whether our user may write, by an UPDATE of no row."""
        key = self._table.c[self._key]
        try:
            connection.execute(update(self._table).where(false()).values({key: key}))
        except DBAPIError as error:
            if error.connection_invalidated or self._database.fault(error) is Fault.CONFLICT:
                raise
            return unwritable(self._table.name, error.orig)
        return Finding("writing", True, f"{self._table.name} can be written")


NAMED = 10
"""How many keys of rows that are never due `psched doctor` names."""


def unusable(keys: Sequence[object]) -> Finding:
    """Return the finding on rows that are never due: at most `NAMED` of their keys, and whether there are more."""
    if not keys:
        return Finding("rows", True, "all can be due")
    named = ", ".join(repr(key) for key in keys[:NAMED]) + (" and more" if len(keys) > NAMED else "")
    return Finding(
        "rows", False, f"never due, as their due times or priorities were written past psched: {named}; delete them"
    )
