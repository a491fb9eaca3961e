"""Changing many rows by one statement, which is told of them in one parameter, and so always the same. Any process."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import Connection, FromClause, Insert, String, Update, bindparam, column

from psched.dialects.insertion import given_rows
from psched.dialects.pairs import Texts

PREFIX = "given_"
"""Begins the name of each column that is given, so that none is a word of SQL."""


def given(parameter: str, types: Mapping[str, Any]) -> FromClause:
    """Return what stands in FROM for the rows in `parameter`, with a column `given_<name>` for each of `types`.

    The parameter is made by `insertion.as_parameter`.
    """
    fields = [column(f"{PREFIX}{name}", type_) for name, type_ in types.items()]
    return given_rows(bindparam(parameter, type_=String), fields).table_valued(*fields, name="given")


class Compiled:
    """A statement that is compiled once for each kind of connection."""

    def __init__(self, statement: Update | Insert) -> None:
        self._texts = Texts(statement)

    def execute(self, connection: Connection, values: Mapping[str, Any]) -> int:
        """Execute it and return how many rows it changed."""
        (prepared,) = self._texts.of(connection)
        changed: int = connection.exec_driver_sql(prepared.text, prepared.parameters(values)).rowcount
        return changed
