"""Reading a whole table in the order of due times, a page at a time. Used in children and clients."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from sqlalchemy import Column, ColumnElement, Connection, Integer, RowMapping, Select, Table, bindparam, or_, select
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.functions import GenericFunction

from psched.dialects.database import Database
from psched.dialects.once import once

_PAGE = 500
"""Rows read at once."""


class stored_bytes(GenericFunction[int]):  # noqa: N801
    """How many bytes a column of text or bytes has (SQLite: characters, where it is text); 0 for NULL."""

    type = Integer()
    inherit_cache = True


@compiles(stored_bytes)
def _stored_bytes(element: stored_bytes, compiler: SQLCompiler, **options: Any) -> str:
    # octet_length, which SQLite has only since 3.43, does not read a large value on PostgreSQL, as length does of text.
    name = "length" if compiler.dialect.name == "sqlite" else "octet_length"
    return f"coalesce({name}({compiler.process(element.clauses, **options)}), 0)"


class Pages:
    """All rows of a table, ordered by due time and key.

    The places of a page are read from the index alone, then its rows by their keys: asked for whole rows in this
    order, MariaDB would rather sort the table than follow the index.
    """

    def __init__(self, database: Database, table: Table, due: Column[Any], key: Column[Any]) -> None:
        self._database = database
        self._write_statements(table, due, key)

    @once
    def _write_statements(self, table: Table, due: Column[Any], key: Column[Any]) -> None:
        self._key = key.name
        self._first = select(due.label("due"), key.label("key")).order_by(due, key).limit(_PAGE)
        # The range stands by itself, since MariaDB uses an index for it, but not for (due, key) > (…, …).
        after_key = or_(due > bindparam("after_due"), key > bindparam("after_key"))
        self._next = self._first.where(due >= bindparam("after_due"), after_key)
        self._rows = select(*table.c).where(key.in_(bindparam("keys", expanding=True)))

    def __iter__(self) -> Iterator[RowMapping]:
        statement, after = self._first, dict[str, Any]()
        while places := _page(self._database, statement, after):
            keys = [place["key"] for place in places]
            rows = {row[self._key]: row for row in _page(self._database, self._rows, {"keys": keys})}
            yield from (rows[key] for key in keys if key in rows)
            statement, after = self._next, {"after_due": places[-1]["due"], "after_key": keys[-1]}


def pages_by_key(
    database: Database, rows: Select[Any], key: Column[Any], *conditions: ColumnElement[bool]
) -> Iterator[RowMapping]:
    """Yield those of `rows` that meet `conditions`, ordered by key, read a page at a time."""
    first = rows.where(*conditions).order_by(key).limit(_PAGE)
    following = first.where(key > bindparam("after_key"))
    statement, after = first, dict[str, Any]()
    while page := _page(database, statement, after):
        yield from page
        statement, after = following, {"after_key": page[-1][key.name]}


def _page(database: Database, statement: Select[Any], values: Mapping[str, Any]) -> Sequence[RowMapping]:
    def work(connection: Connection, uncertain: bool) -> Sequence[RowMapping]:
        return connection.execute(statement, values).mappings().all()

    return database.run(work)
