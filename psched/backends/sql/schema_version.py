"""A hash of the schema of a store's tables, so that a version of psched never works on tables of another version.

`psched init` records the hash in the table `psched_meta` before it makes the tables. There are no upgrades between
schemas: tables with another hash are refused, and must be recreated.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterator, Sequence

from sqlalchemy import (
    CheckConstraint,
    Column,
    Connection,
    DefaultClause,
    Index,
    MetaData,
    Table,
    delete,
    insert,
    select,
)

from psched.backends.sql.database import Database
from psched.backends.sql.dialect import ExactText
from psched.backends.sql.schema import Schema


def meta_table(metadata: MetaData) -> Table:
    """Return the table of schema hashes, one per store; `table_name` is the name of the store's first table."""
    return Table(
        "psched_meta",
        metadata,
        Column("table_name", ExactText(64), primary_key=True),
        Column("schema_hash", ExactText(64), nullable=False),
        mysql_engine="InnoDB",
        mysql_charset="utf8mb4",
    )


def schema_hash(tables: Sequence[Table]) -> str:
    """Return 16 hexadecimal digits of the SHA-256 of `schema_text`."""
    return hashlib.sha256(schema_text(tables).encode()).hexdigest()[:16]


def schema_text(tables: Sequence[Table]) -> str:
    """Return the schema as lines of names, types and conditions: the same on every Python, SQLAlchemy and database."""
    return "\n".join(line for table in tables for line in _lines(table))


def _lines(table: Table) -> Iterator[str]:
    yield f"table {table.name}"
    for column in table.columns:
        yield _column_line(column)
    checks = (constraint for constraint in table.constraints if isinstance(constraint, CheckConstraint))
    yield from sorted(f"check {check.name}: {check.sqltext}" for check in checks)
    yield from sorted(_index_line(index) for index in table.indexes)


def _column_line(column: Column[object]) -> str:
    length = getattr(column.type, "length", None)
    words = ["column", column.name, type(column.type).__name__ + ("" if length is None else f"({length})")]
    words += ["NULL" if column.nullable else "NOT NULL"]
    words += ["PRIMARY KEY"] if column.primary_key else []
    words += [f"DEFAULT {column.server_default.arg}"] if isinstance(column.server_default, DefaultClause) else []
    words += [f"COMPUTED {column.computed.sqltext}"] if column.computed is not None else []
    return " ".join(words)


def _index_line(index: Index) -> str:
    conditions = {str(options["where"]) for options in index.dialect_options.values() if "where" in options}
    where = "".join(f" WHERE {condition}" for condition in sorted(conditions - {"None"}))
    return f"index {index.name} {'UNIQUE ' if index.unique else ''}({', '.join(index.columns.keys())}){where}"


class HashedSchema(Schema):
    """The tables of one store, whose schema hash is recorded in `meta` under the name of the first of them."""

    def __init__(self, database: Database, meta: Table, *tables: Table, common: Sequence[Table] = ()) -> None:
        """`tables`: the table of the rows, then the store's other tables; `common`: tables that all stores share."""
        super().__init__(database, tables[0], "key", "psched's rdb store")
        self._meta = meta
        self._common = tuple(common)
        self._tables = tables
        self._current = schema_hash((*tables, *common))
        self._recorded = select(meta.c.schema_hash).where(meta.c.table_name == self._table.name)

    def _create(self, connection: Connection) -> str | None:
        present = any(self._columns(connection, table) is not None for table in self._tables)
        problem = self._other_version(connection) if present else self._problem_of_meta(connection)
        if problem is not None:
            return problem
        self._create_table(connection, self._meta)
        if self._stored(connection) != self._current:
            self._record(connection)
        for table in (*self._common, *self._tables):
            self._create_table(connection, table)
        return super()._create(connection)

    def _record(self, connection: Connection) -> None:
        """Record the hash before any table exists, so that tables without this hash are of another version."""
        with self._database.transaction(connection):
            connection.execute(delete(self._meta).where(self._meta.c.table_name == self._table.name))
            connection.execute(insert(self._meta), {"table_name": self._table.name, "schema_hash": self._current})

    def _problem(self, connection: Connection) -> str | None:
        if self._columns(connection, self._table) is None:
            return self._is_missing(self._table)
        return self._other_version(connection) or self._foreign(connection) or self._incomplete(connection)

    def _incomplete(self, connection: Connection) -> str | None:
        for table in (*self._common, *self._tables):
            if self._columns(connection, table) is None:
                return self._is_missing(table)
        return None

    def _missing_indexes(self, connection: Connection) -> list[Index]:
        return [index for table in self._tables for index in self._missing_of(connection, table)]

    def _other_version(self, connection: Connection) -> str | None:
        """Return an error and its remedy if another version of psched made the tables, else None."""
        problem = self._problem_of_meta(connection)
        if problem is not None:
            return problem
        recorded = self._stored(connection)
        if recorded == self._current:
            return None
        if recorded is None:
            foreign = None if self._columns(connection, self._table) is None else self._foreign(connection)
            return foreign or self._recreate(self._tables, "no schema is recorded for them")
        return self._recreate(self._tables, f"their schema is {recorded}")

    def _problem_of_meta(self, connection: Connection) -> str | None:
        """Return an error if another version of psched made `psched_meta`, else None."""
        columns = self._columns(connection, self._meta)
        if columns is None or set(self._meta.columns.keys()) <= set(columns):
            return None
        return self._recreate((self._meta, *self._tables), f"{self._meta.name} has other columns")

    def _recreate(self, tables: Collection[Table], found: str) -> str:
        *first, last = (table.name for table in tables)
        return (
            f"the tables {', '.join(first)} and {last} were made by another version of psched ({found}; this version "
            f"needs {self._current}), and are not changed. Recreate them: stop all workers, drop these tables, whose "
            "rows are lost, and run: psched init (a queue's: psched queue init)"
        )

    def _stored(self, connection: Connection) -> str | None:
        if self._columns(connection, self._meta) is None:
            return None
        recorded: str | None = connection.execute(self._recorded).scalar()
        return recorded
