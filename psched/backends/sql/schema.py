"""Creating, checking and diagnosing one table."""

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
"""Several hosts may run `psched init` at once: the second one finds a part done, at each step."""


class Schema:
    """One table with its indexes; `maker` names in messages what makes such tables."""

    def __init__(self, database: Database, table: Table, key: str, maker: str) -> None:
        """`key`: the column of the keys."""
        self._database = database
        self._table = table
        self._key = key
        self._maker = maker

    def create(self) -> None:
        """Create what is missing. Raises ConfigError when the table is of another version of psched, or not ours."""
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
            return self._database.dialect.missing_file(error) or self._is_missing(self._table)

    def diagnose(self) -> Iterator[Finding]:
        """Yield what `psched doctor` shows."""
        if self._database.dialect.pooler is not None:
            yield self._pooler_finding()
        problem = self.problem()
        yield Finding("table", problem is None, f"{self._table.name} is there" if problem is None else problem)
        if problem is None:
            yield from self._database.run(lambda connection, _: list(self._findings(connection)))

    def _pooler_finding(self) -> Finding:
        """Return whether the configured `pooler` keeps what is said of it."""
        if self._database.shares_sessions():
            wish = "set the pooler to sessions (PgBouncer: pool_mode = session), or connect to the database directly"
            return Finding("pooler", False, f"two connections are given one session of the database; {wish}")
        return Finding("pooler", True, "each connection has a session of its own")

    def _create(self, connection: Connection) -> str | None:
        unfit = self._database.dialect.unfit(connection)
        if unfit is not None:
            return unfit
        self._create_table(connection, self._table)
        problem = self._foreign(connection)
        if problem is None:
            with self._database.transaction(connection):  # nobody drops one of them meanwhile
                missing = self._missing_indexes(connection)
            for index in missing:
                connection.execute(CreateIndex(index))
        return problem

    def _create_table(self, connection: Connection, table: Table) -> None:
        if not inspect(connection).has_table(table.name):
            connection.execute(CreateTable(table))

    def _is_overtaken(self, error: DBAPIError) -> bool:
        dialect = self._database.dialect
        return dialect.is_already_there(error) or dialect.is_duplicate_key(error)

    def _problem(self, connection: Connection) -> str | None:
        unfit = self._database.dialect.unfit(connection)
        if unfit is not None:
            return unfit
        return self._foreign(connection)

    def _is_missing(self, table: Table) -> str:
        return f"the table {table.name} does not exist; create it with: psched init (a queue's: psched queue init)"

    def _columns(self, connection: Connection, table: Table) -> Collection[str] | None:
        """Return the names of a table's columns; None when there is no such table.

        They come with an answer of no rows. SQLAlchemy reads the catalogue, by what takes a worker 4 MB to compile.
        """
        try:
            return connection.execute(select(literal_column("*")).select_from(table).where(false())).keys()
        except DBAPIError as error:
            if not self._database.dialect.is_missing_table(error):
                raise
            return None

    def _foreign(self, connection: Connection) -> str | None:
        """Say that there is no table of this name, or which columns it lacks, so that it is not psched's."""
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
        """Write no row: who may not write is told all the same."""
        key = self._table.c[self._key]
        try:
            connection.execute(update(self._table).where(false()).values({key: key}))
        except DBAPIError as error:
            if error.connection_invalidated or self._database.fault(error) is Fault.CONFLICT:
                raise
            return unwritable(self._table.name, error.orig)
        return Finding("writing", True, f"{self._table.name} can be written")


NAMED = 10
"""How many keys of rows that can never run `psched doctor` names."""


def unusable(keys: Sequence[object]) -> Finding:
    """Return what `psched doctor` shows of rows that will never be due; of more than `NAMED` it says that there are."""
    if not keys:
        return Finding("rows", True, "all can be due")
    named = ", ".join(repr(key) for key in keys[:NAMED]) + (" and more" if len(keys) > NAMED else "")
    return Finding(
        "rows", False, f"never due, as their due times or priorities were written past psched: {named}; delete them"
    )
