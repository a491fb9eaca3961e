"""The steps by which `psched init` upgrades the tables of earlier layouts, and their SQL for each kind of database.

A step adds columns that programs of the layout before need not know: each may be NULL or has a constant default. What
else a step may need are statements that can be repeated. Tables and indexes are no part of a step: after the steps
`psched init` makes those of its own layout that are missing, without blocking workers.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy.schema import CreateColumn, CreateIndex

COMMON = "common"
"""As the kind of a column: of a table that all stores share."""


@dataclass(frozen=True)
class NewColumn:
    """A column that a step adds. `make` returns it anew, and never changes once the layout is released.

    `kind`: the kind of store, `schedules`, `queue` or `ledger` (that of `rdb_compat`), or `COMMON`. `table`: what
    follows the name of the store's first table in the name of this one (`_ledger`; of that table itself: nothing), or
    the whole name of a common table.
    """

    kind: str
    table: str
    make: Callable[[], sa.Column[Any]]


@dataclass(frozen=True)
class NewStatement:
    """SQL of a step, with `{table}` for the store's first table. It has no effect when it is executed again."""

    kind: str
    database: str
    """The `name` of the dialect."""
    sql: str


@dataclass(frozen=True)
class SqlUpgradeStep:
    """Makes tables of `layout` from those of the layout before. `released`: the schema hashes of the layout before."""

    layout: int
    released: Collection[str]
    columns: Collection[NewColumn] = ()
    statements: Collection[NewStatement] = field(default=())


STEPS: list[SqlUpgradeStep] = []
"""One for each layout after the first, in their order."""


class UpgradeStatement(NamedTuple):
    """One statement that `psched init` executes on tables that exist. `table`: the one that it changes."""

    table: str
    sql: str
    is_index: bool = False
    """Whether it builds an index: that may take long, and nothing waits for it."""


def released_hashes(layout: int) -> Collection[str]:
    """Return the schema hashes of a released layout before the present one."""
    return next((step.released for step in STEPS if step.layout == layout + 1), ())


def changes(
    since: int, kind: str, first: str, columns: Mapping[str, Collection[str]], database: str, dialect: sa.Dialect
) -> Iterator[UpgradeStatement]:
    """Yield the changes that the steps still have to make to the tables of a store, whose layout is `since`.

    `first`: the name of the store's first table; `columns`: those of each table that exists; `database`: the kind.
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
    """Return the columns of a common table that it lacks before the steps."""
    return {new.make().name for step in STEPS for new in step.columns if (new.kind, new.table) == (COMMON, table)}


def add_column(table: str, column: sa.Column[Any], dialect: sa.Dialect) -> str:
    """Return the statement that adds a column, which no database copies the table for."""
    quoted = dialect.identifier_preparer.quote(table)
    sa.Table(table, sa.MetaData(), column)
    made = _compiled(CreateColumn(column), dialect)
    if dialect.name == "postgresql":
        return f"ALTER TABLE {quoted} ADD COLUMN IF NOT EXISTS {made}"
    return f"ALTER TABLE {quoted} ADD COLUMN {made}{_INSTANT * (dialect.name in _MYSQL)}"


def add_index(index: sa.Index, dialect: sa.Dialect) -> str:
    """Return the statement that builds an index while workers go on; on SQLite they wait for it."""
    made = _compiled(CreateIndex(index), dialect)
    if dialect.name == "postgresql":
        return made.replace("INDEX ", "INDEX CONCURRENTLY ", 1)
    return made + _INPLACE * (dialect.name in _MYSQL)


def offline(sql: str) -> str:
    """Return the statement that does the same while nobody else uses the table."""
    return sql.removesuffix(_INSTANT).removesuffix(_INPLACE)


def drop_index(name: str, dialect: sa.Dialect) -> str:
    """Return the statement that drops an index of PostgreSQL without blocking workers."""
    return f"DROP INDEX CONCURRENTLY IF EXISTS {dialect.identifier_preparer.quote(name)}"


def _compiled(element: sa.sql.elements.CompilerElement, dialect: sa.Dialect) -> str:
    return " ".join(str(element.compile(dialect=dialect)).split())


_MYSQL = ("mysql", "mariadb")
_INSTANT = ", ALGORITHM=INSTANT"
_INPLACE = " ALGORITHM=INPLACE LOCK=NONE"
"""Clauses without which the server may copy the table, or lock it, instead of refusing."""
