"""Many leases in one parameter, to be joined with a table: one statement text however many there are. Any process.

Each dialect compiles `given_leases` in its own way, as it does `now_ms`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable

from sqlalchemy import BigInteger, FromClause, String, bindparam, column
from sqlalchemy.sql.functions import FunctionElement

from psched.model import Lease


class given_leases(FunctionElement[str]):  # noqa: N801 – spelled like the SQL function it stands for
    """The rows of a parameter that `as_parameter` made: `key` and `fence`."""

    type = String()
    inherit_cache = True


def leases_in(name: str) -> FromClause:
    """Return what stands in FROM for the leases in the parameter `name`, with the columns `key` and `fence`."""
    rows = given_leases(bindparam(name, type_=String))
    return rows.table_valued(column("key", String), column("fence", BigInteger), name="given")


def as_parameter(leases: Iterable[Lease]) -> str:
    """Return `leases` as such a parameter."""
    return json.dumps([(lease.key, lease.fence) for lease in leases], ensure_ascii=False)
