"""The database's clock, as a construct that each dialect compiles in its own way."""

from __future__ import annotations

from typing import Any

from sqlalchemy import BigInteger, ScalarSelect, select
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.functions import FunctionElement


class now_ms(FunctionElement[int]):  # noqa: N801 – spelled like the SQL function it stands for
    """The database's clock inside a statement: unix time in milliseconds, the same all through the statement."""

    type = BigInteger()
    inherit_cache = True


def now_once() -> ScalarSelect[int]:
    """Return the same clock for a statement on many rows: PostgreSQL and SQLite compute `now_ms` for each of them."""
    return select(now_ms()).scalar_subquery()


class larger_of(FunctionElement[int]):  # noqa: N801 – spelled like the SQL function it stands for
    """The larger of two integers, neither of them NULL."""

    type = BigInteger()
    inherit_cache = True


@compiles(larger_of)
def _larger_of(element: larger_of, compiler: SQLCompiler, **options: Any) -> str:
    return f"GREATEST({compiler.process(element.clauses, **options)})"


@compiles(larger_of, "sqlite")
def _larger_of_sqlite(element: larger_of, compiler: SQLCompiler, **options: Any) -> str:
    return f"max({compiler.process(element.clauses, **options)})"
