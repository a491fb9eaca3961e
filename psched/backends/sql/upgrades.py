"""The steps by which `psched init` upgrades the tables of earlier layouts, and their SQL for each kind of database.

A step adds columns that programs of the previous layout can ignore: a new column allows NULL or has a constant default.
A step may also have statements. They must be safe to repeat. New tables and indexes need no step, because `psched init`
creates missing tables and indexes after the steps. Except on SQLite, such an upgrade does not block workers.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy.schema import CreateColumn, CreateIndex

COMMON = "common"
"""The `kind` of a column in a table that all stores share."""


@dataclass(frozen=True)
class NewColumn:
    """A column that a step adds. `make` returns the column, which never changes after the layout is released.

    `kind`: the kind of store: `schedules`, `queue`, `ledger` or `COMMON`. The kind `ledger` is the ledger of
    `rdb_compat`. `table`: the suffix of the table's name, such as `_ledger`. The name before it is the name of the
    store's first table. The suffix is empty for this first table. For a common table, `table` is the whole name.
    """

    kind: str
    table: str
    make: Callable[[], sa.Column[Any]]


@dataclass(frozen=True)
class NewStatement:
    """SQL of a step. `{table}` stands for the store's first table. Executing the SQL again has no effect."""

    kind: str
    database: str
    """The `name` of the dialect."""
    sql: str


@dataclass(frozen=True)
class SqlUpgradeStep:
    """Upgrades tables from the previous layout to `layout`. `released`: the schema hashes of the previous layout."""

    layout: int
    released: Collection[str]
    columns: Collection[NewColumn] = ()
    statements: Collection[NewStatement] = field(default=())


STEPS: list[SqlUpgradeStep] = []
"""One step for each layout after the first, in order."""


class UpgradeStatement(NamedTuple):
    """One statement that `psched init` executes on existing tables. `table`: the table that it changes."""

    table: str
    sql: str
    is_index: bool = False
    """Whether the statement builds or drops an index. Building may take long. On SQLite, workers wait for it."""


def released_hashes(layout: int) -> Collection[str]:
    return next((step.released for step in STEPS if step.layout == layout + 1), ())


def changes(
    since: int, kind: str, first: str, columns: Mapping[str, Collection[str]], database: str, dialect: sa.Dialect
) -> Iterator[UpgradeStatement]:
    """Yield the changes that the tables of a store still need. `since`: the layout of the tables.

    `first`: the name of the store's first table. `columns`: the columns of each existing table. `database`: the name of
    the dialect.
    """
    for step in STEPS:
        for new in step.columns:
            name = new.table if new.kind == COMMON else f"{first}{new.table}"
            column = new.make()
            if new.kind in (kind, COMMON) and name in columns and column.name not in columns[name]:
                yield UpgradeStatement(name, add_column(name, column, dialect))
        for statement in step.statements:
            if step.layout > since and statement.kind == kind and statement.database == database:
                yield UpgradeStatement(first, statement.sql.format(table=dialect.identifier_preparer.quote(first)))


def columns_to_come(table: str) -> Collection[str]:
    """Return the columns that the steps add to a common table."""
    return {new.make().name for step in STEPS for new in step.columns if (new.kind, new.table) == (COMMON, table)}


def add_column(table: str, column: sa.Column[Any], dialect: sa.Dialect) -> str:
    """Return the statement that adds a column. No database copies the table for this statement."""
    quoted = dialect.identifier_preparer.quote(table)
    sa.Table(table, sa.MetaData(), column)
    made = _compiled(CreateColumn(column), dialect)
    if dialect.name == "postgresql":
        return f"ALTER TABLE {quoted} ADD COLUMN IF NOT EXISTS {made}"
    return f"ALTER TABLE {quoted} ADD COLUMN {made}{_INSTANT * (dialect.name in _MYSQL)}"


def add_index(index: sa.Index, dialect: sa.Dialect) -> str:
    """Return the statement that builds an index while workers go on. On SQLite the workers wait for the statement."""
    made = _compiled(CreateIndex(index), dialect)
    if dialect.name == "postgresql":
        return made.replace("INDEX ", "INDEX CONCURRENTLY ", 1)
    return made + _INPLACE * (dialect.name in _MYSQL)


def offline(sql: str) -> str:
    """Return the statement `sql` without the clauses that forbid the server to copy or lock the table."""
    return sql.removesuffix(_INSTANT).removesuffix(_INPLACE)


def drop_index(name: str, dialect: sa.Dialect) -> str:
    """Return PostgreSQL's statement that drops an index without blocking workers."""
    return f"DROP INDEX CONCURRENTLY IF EXISTS {dialect.identifier_preparer.quote(name)}"


def _compiled(element: sa.sql.elements.CompilerElement, dialect: sa.Dialect) -> str:
    return " ".join(str(element.compile(dialect=dialect)).split())


_MYSQL = ("mysql", "mariadb")
_INSTANT = ", ALGORITHM=INSTANT"
_INPLACE = " ALGORITHM=INPLACE LOCK=NONE"
"""Clauses that make the server refuse the statement if it would have to copy or lock the table."""
