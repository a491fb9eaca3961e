"""The database's clock, as a construct that each dialect compiles in its own way. Any process."""

from __future__ import annotations

from sqlalchemy import BigInteger, ScalarSelect, select
from sqlalchemy.sql.functions import FunctionElement


class now_ms(FunctionElement[int]):  # noqa: N801 – spelled like the SQL function it stands for
    """The database's clock inside a statement: unix time in milliseconds, the same all through the statement."""

    type = BigInteger()
    inherit_cache = True


def now_once() -> ScalarSelect[int]:
    """Return the same clock for a statement on many rows: PostgreSQL and SQLite compute `now_ms` for each of them."""
    return select(now_ms()).scalar_subquery()
