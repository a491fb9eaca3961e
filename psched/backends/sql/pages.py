"""Reading a whole table in the order of due times, a page at a time. Used in children and clients."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from sqlalchemy import Index, RowMapping, Select, bindparam, or_, select

from psched.dialects.database import Database

_PAGE = 100
"""Rows read by one statement: few, for MariaDB would rather sort the whole table than follow its index for many."""


class Pages:
    """All rows of the table of `index`, which is one of due time and key, in its order."""

    def __init__(self, database: Database, index: Index) -> None:
        table = index.table
        assert table is not None
        due, key = index.columns
        self._database = database
        self._due, self._key = due.name, key.name
        self._first = select(*table.c).order_by(due, key).limit(_PAGE)
        # The range stands by itself, since MariaDB uses an index for it, but not for (due, key) > (…, …).
        after_key = or_(due > bindparam("after_due"), key > bindparam("after_key"))
        self._next = self._first.where(due >= bindparam("after_due"), after_key)

    def __iter__(self) -> Iterator[RowMapping]:
        rows = self._read(self._first, {})
        while rows:
            yield from rows
            rows = self._read(self._next, {"after_due": rows[-1][self._due], "after_key": rows[-1][self._key]})

    def _read(self, statement: Select[Any], values: Mapping[str, Any]) -> Sequence[RowMapping]:
        return self._database.run(lambda connection, _: connection.execute(statement, values).mappings().all())
