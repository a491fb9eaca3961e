"""Adding columns to a table that an older psched made. Used by `psched init`."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Column, Connection, Table, inspect
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.schema import DDLElement
from sqlalchemy.sql.compiler import DDLCompiler


class AddColumn(DDLElement):
    """ALTER TABLE … ADD COLUMN: a column that may be NULL, or has a default."""

    def __init__(self, column: Column[Any]) -> None:
        self.column = column


@compiles(AddColumn)
def _add_column(element: AddColumn, compiler: DDLCompiler, **options: Any) -> str:
    table = compiler.preparer.format_table(element.column.table)
    return f"ALTER TABLE {table} ADD COLUMN {compiler.get_column_specification(element.column)}"


def add_missing_columns(connection: Connection, table: Table) -> None:
    """Add to the stored table each column of `table` that it lacks."""
    present = {column["name"] for column in inspect(connection).get_columns(table.name)}
    for column in table.columns:
        if column.name not in present:
            connection.execute(AddColumn(column))
