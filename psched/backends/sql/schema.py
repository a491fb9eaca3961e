"""Creates, checks and diagnoses the tables of a store, whose schema hash is recorded in a table of its own."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cache

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError
from sqlalchemy.schema import CreateIndex, CreateTable

from psched.backends.common.retries import RetryReason
from psched.backends.common.table_checks import unwritable
from psched.backends.sql.compiled_statements import cached
from psched.backends.sql.database import Database
from psched.backends.sql.dialect import MYSQL_OPTIONS, ExactText
from psched.errors import ConfigError
from psched.store import Finding

_TRIES = 20
"""Attempts of `psched init`: several hosts may run it at once, and each step may find that another host has done it."""


class Schema:
    """The table of the rows, whose columns are checked, and further tables; all with their indexes."""

    _is_shared = True
    """Whether other programs make such tables, too: with a collation of their own, which is no failure then."""

    def __init__(self, database: Database, table: sa.Table, key: str, maker: str, *others: sa.Table) -> None:
        """`key`: the column of the keys. `maker`: the program that makes such tables, for messages."""
        self._database = database
        self._table = table
        self._tables = (table, *others)
        self._indexed: Sequence[sa.Table] = self._tables
        self._key = key
        self._maker = maker

    def create(self) -> None:
        """Create missing tables and indexes. Raises ConfigError when another program or version made the table."""
        dialect = self._database.dialect
        dialect.create_database()
        with self._database.patient() as database:
            for left in reversed(range(_TRIES)):
                try:
                    problem = database.run(
                        lambda connection, _: dialect.too_old(connection) or self._create(connection)
                    )
                    break
                except DBAPIError as error:
                    problem = dialect.unusable_file(error)
                    if problem is not None:
                        break
                    if left == 0 or not dialect.is_already_there(error):
                        raise
        if problem is not None:
            raise ConfigError(problem)

    def check(self) -> None:
        """Raise ConfigError naming the remedy when the table cannot be used as it is."""
        problem = self.problem()
        if problem is not None:
            raise ConfigError(problem)

    def problem(self) -> str | None:
        """Return the error of a table that cannot be used, with the remedy, or None."""
        dialect = self._database.dialect
        try:
            return self._database.run(lambda connection, _: dialect.too_old(connection) or self._problem(connection))
        except DBAPIError as error:
            problem = dialect.unusable_file(error)
            if problem is None and not dialect.is_missing_table(error):
                raise
            return problem or self._is_missing(self._table)

    def diagnose(self, writing: bool) -> Iterator[Finding]:
        database = self._database
        pooler = database.dialect.pooler_finding(database.dedicated)
        if pooler is not None:
            yield pooler
        problem = self.problem()
        yield Finding("table", problem is None, f"{self._table.name} is there" if problem is None else problem)
        if problem is None:
            yield from database.run(lambda connection, _: list(self._findings(connection, writing)))

    def _create(self, connection: sa.Connection) -> str | None:
        self._create_table(connection, self._table)
        problem = self._column_problem(self._columns(connection, self._table))
        if problem is None:
            with self._database.transaction(connection):  # so that no other session drops one of them meanwhile
                missing = self._missing_indexes(connection)
            for index in missing:
                connection.execute(CreateIndex(index))
        return problem

    def _create_table(self, connection: sa.Connection, table: sa.Table) -> None:
        if not sa.inspect(connection).has_table(table.name):
            connection.execute(CreateTable(table))

    def _problem(self, connection: sa.Connection) -> str | None:
        return self._column_problem(self._columns(connection, self._table))

    def _is_missing(self, table: sa.Table) -> str:
        return f"the table {table.name} does not exist; create it with: psched init (a queue's: psched queue init)"

    def _columns(self, connection: sa.Connection, table: sa.Table) -> Collection[str] | None:
        """Return the names of a table's columns; None when there is no such table.

        An empty answer has them, too. SQLAlchemy would read the catalogue, by statements that take 4 MB of memory.
        """
        try:
            return connection.execute(sa.select(sa.literal_column("*")).select_from(table).where(sa.false())).keys()
        except DBAPIError as error:
            if not self._database.dialect.is_missing_table(error):
                raise
            return None

    def _column_problem(self, present: Collection[str] | None) -> str | None:
        """Return the error of a table that is missing, or lacks columns of psched's, or None.

        `present`: the columns that it has, as `_columns` returns them.
        """
        if present is None:
            return self._is_missing(self._table)
        missing = [column.name for column in self._table.columns if column.name not in present]
        return self._lacking(missing, present) if missing else None

    def _lacking(self, missing: Sequence[str], present: Collection[str]) -> str:
        """Return the error of a table that lacks columns, with the remedy. `present`: the columns that it has."""
        return (
            f"the table {self._table.name} is none that {self._maker} makes: it has no column {', '.join(missing)}; "
            "configure another table, or the type that made it"
        )

    def _missing_indexes(self, connection: sa.Connection) -> list[sa.Index]:
        missing: list[sa.Index] = []
        found = sa.inspect(connection).get_multi_indexes(filter_names=[table.name for table in self._indexed])
        of_tables = {name: indexes for (_, name), indexes in found.items()}
        for table in self._indexed:
            present = [tuple(index["column_names"]) for index in of_tables.get(table.name, ())]
            indexes = [index for index in table.indexes if tuple(index.columns.keys()) not in present]
            missing += sorted(indexes, key=lambda index: str(index.name))
        return missing

    def _findings(self, connection: sa.Connection, writing: bool) -> Iterator[Finding]:
        dialect = self._database.dialect
        yield Finding("server", True, dialect.version(connection))
        encryption = dialect.encryption(connection)
        if encryption is not None:
            yield encryption
        if writing:
            yield self._writing(connection)
        missing = [str(index.name) for index in self._missing_indexes(connection)]
        if missing:
            remedy = "run psched init (a queue's: psched queue init)"
            yield Finding("indexes", False, f"missing index {', '.join(missing)}", remedy=remedy)
        else:
            yield Finding("indexes", True, "all there")
        problem = dialect.key_problem(connection, self._table.name, self._key)
        if problem is None:
            yield Finding("keys", True, "compare byte by byte")
        else:
            yield Finding("keys", self._is_shared, problem, warning=self._is_shared)

    def _writing(self, connection: sa.Connection) -> Finding:
        """Test writing by an UPDATE of no row."""
        key = self._table.c[self._key]
        try:
            connection.execute(sa.update(self._table).where(sa.false()).values({key: key}))
        except DBAPIError as error:
            if error.connection_invalidated or self._database.retry_reason(error) is RetryReason.CONFLICT:
                raise
            return unwritable(self._table.name, error.orig)
        return Finding("writing", True, f"{self._table.name} can be written")


NAMED = 10
"""The most keys of rows that are never due in one finding of `psched doctor`."""


def unusable(keys: Sequence[object]) -> Finding:
    """Return the finding on rows that are never due: at most `NAMED` of their keys, and whether there are more."""
    if not keys:
        return Finding("rows", True, "all can be due")
    named = ", ".join(repr(key) for key in keys[:NAMED]) + (" and more" if len(keys) > NAMED else "")
    message = f"never due, as their due times or priorities were written past psched: {named}"
    return Finding("rows", False, message, remedy="delete them")


@cache
def _meta_table() -> sa.Table:
    """Return the table of schema hashes, one per store; `table_name` is the name of the store's first table."""
    return sa.Table(
        "psched_meta",
        sa.MetaData(),
        sa.Column("table_name", ExactText(64), primary_key=True),
        sa.Column("schema_hash", ExactText(64), nullable=False),
        **MYSQL_OPTIONS,
    )


def schema_hash(tables: Sequence[sa.Table]) -> str:
    """Return 16 hexadecimal digits for the schema of `tables`: the same on every Python, SQLAlchemy and database."""
    text = "\n".join(line for table in tables for line in _lines(table))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _lines(table: sa.Table) -> Iterator[str]:
    yield f"table {table.name}"
    for column in table.columns:
        yield _column_line(column)
    checks = (constraint for constraint in table.constraints if isinstance(constraint, sa.CheckConstraint))
    yield from sorted(f"check {check.name}: {check.sqltext}" for check in checks)
    yield from sorted(_index_line(index) for index in table.indexes)


def _column_line(column: sa.Column[object]) -> str:
    length = getattr(column.type, "length", None)
    words = ["column", column.name, type(column.type).__name__ + ("" if length is None else f"({length})")]
    words += ["NULL" if column.nullable else "NOT NULL"]
    words += ["PRIMARY KEY"] if column.primary_key else []
    words += [f"DEFAULT {column.server_default.arg}"] if isinstance(column.server_default, sa.DefaultClause) else []
    words += [f"COMPUTED {column.computed.sqltext}"] if column.computed is not None else []
    return " ".join(words)


def _index_line(index: sa.Index) -> str:
    conditions = {str(options["where"]) for options in index.dialect_options.values() if "where" in options}
    where = "".join(f" WHERE {condition}" for condition in sorted(conditions - {"None"}))
    return f"index {index.name} {'UNIQUE ' if index.unique else ''}({', '.join(index.columns.keys())}){where}"


class HashedSchema(Schema):
    """The tables of one store, whose schema hash is recorded in `psched_meta` under the name of the first of them."""

    _is_shared = False

    def __init__(self, database: Database, *tables: sa.Table, common: Sequence[sa.Table] = ()) -> None:
        """`tables`: the table of the rows, then the store's other tables; `common`: tables that all stores share."""
        super().__init__(database, tables[0], "key", "psched's rdb store", *tables[1:])
        self._meta = meta = _meta_table()
        self._common = tuple(common)
        self._indexed = (*self._tables, *self._common)
        self._current = cached(schema_hash, (*tables, *common))
        self._recorded = sa.select(meta.c.schema_hash).where(meta.c.table_name == self._table.name)

    def _create(self, connection: sa.Connection) -> str | None:
        problem = self._version_problem(connection, self._columns_of_each(connection))
        if problem is not None:
            return problem
        self._create_table(connection, self._meta)
        self._record_hash(connection)
        for table in (*self._common, *self._tables):
            self._create_table(connection, table)
        return super()._create(connection)

    def _record_hash(self, connection: sa.Connection) -> None:
        """Record the hash before any table exists, so that tables without this hash are of another version."""
        c, name = self._meta.c, self._table.name
        with self._database.transaction(connection):
            connection.execute(sa.delete(self._meta).where(c.table_name == name, c.schema_hash != self._current))
            self._database.dialect.insert_one(
                connection, self._meta, {"table_name": name, "schema_hash": self._current}
            )

    def _problem(self, connection: sa.Connection) -> str | None:
        columns = self._columns_of_each(connection)
        absent = [table for table in (*self._tables, *self._common) if columns[table] is None]
        problem = None
        if self._table not in absent:
            problem = self._version_problem(connection, columns) or self._column_problem(columns[self._table])
        return problem or (self._is_missing(absent[0]) if absent else None)

    def _columns_of_each(self, connection: sa.Connection) -> Mapping[sa.Table, Collection[str] | None]:
        """Return the columns of each table, None for a missing one.

        Reads the table of hashes last: another process that makes the tables at this moment makes it first.
        """
        tables = (*self._tables, *self._common, self._meta)
        return {table: self._columns(connection, table) for table in tables}

    def _version_problem(
        self, connection: sa.Connection, columns: Mapping[sa.Table, Collection[str] | None]
    ) -> str | None:
        """Return an error and its remedy if another version of psched made one of the tables, else None.

        `columns`: those of each table. Reads the hash after them: another process that makes the tables at this moment
        records the hash first.
        """
        present = [table for table in self._tables if columns[table] is not None]
        shared = {table: columns[table] for table in (self._meta, *self._common)}
        other = [
            table for table, names in shared.items() if names is not None and not set(table.c.keys()) <= set(names)
        ]
        if other:
            names = ", ".join(table.name for table in other)
            return self._recreate((*other, *self._tables), f"other columns in {names}")
        recorded = None if columns[self._meta] is None else connection.execute(self._recorded).scalar()
        if recorded == self._current or not present:
            return None
        if recorded is not None:
            return self._recreate(self._tables, f"their schema is {recorded}")
        foreign = self._column_problem(columns[self._table]) if self._table in present else None
        return foreign or self._recreate(self._tables, "no schema is recorded for them")

    def _recreate(self, tables: Collection[sa.Table], found: str) -> str:
        *first, last = (table.name for table in tables)
        return (
            f"the tables {', '.join(first)} and {last} were made by another version of psched ({found}; this version "
            f"needs {self._current}), and are not changed. Recreate them: stop all workers, drop these tables, whose "
            "rows are lost, and run: psched init (a queue's: psched queue init)"
        )
