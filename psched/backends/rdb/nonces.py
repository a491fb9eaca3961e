"""Which of many new rows are ours: those with the number that the writing call gave them. Children and clients."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import Connection, Table, bindparam, select

from psched.dialects.database import Database
from psched.dialects.insertion import Insertion

_PAGE = 500
"""Rows looked at by one statement."""


class Nonces:
    """Looks at the numbers in the rows of one table."""

    def __init__(self, table: Table) -> None:
        c = table.c
        self._look = select(c.key, c.nonce).where(c.key.in_(bindparam("keys", expanding=True)))

    def others(self, connection: Connection, keys: list[str], nonce: int) -> list[str]:
        """Return those of `keys` that are not written under `nonce`, now or by an attempt whose answer was lost."""
        ours: set[str] = set()
        for start in range(0, len(keys), _PAGE):
            found = connection.execute(self._look, {"keys": keys[start : start + _PAGE]})
            ours.update(key for key, number in found if number == nonce)
        return [key for key in keys if key not in ours]

    def insert_one(
        self, database: Database, insertion: Insertion, row: Mapping[str, Any], values: Mapping[str, Any]
    ) -> list[str]:
        """Insert a row by one statement; returns its key if that is not written under the `nonce` in `values`."""
        dialect = database.dialect
        if database.run_direct(lambda direct, _: insertion.execute(dialect, direct, [row], values)) == 1:
            return []
        return database.run(lambda connection, _: self.others(connection, [row["key"]], values["nonce"]))
