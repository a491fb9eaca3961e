"""Runs that have failed for good in `rdb`, until somebody was told of them. Used in children and clients."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import BigInteger, Connection, Table, bindparam, delete, insert, select, update

from psched.backends.rdb.leases import storable
from psched.backends.rdb.tables import milliseconds
from psched.backends.sql.fields import Fields
from psched.dialects.base import now_ms
from psched.dialects.database import Database
from psched.dialects.once import once
from psched.failure import Failure
from psched.model import Claim
from psched.store import Also

_RIVALS = 20
"""How many failures are read, of which other callers may claim some first."""


class RdbFailures:
    """`Failures` in a table beside that of the rows, and what writes it."""

    def __init__(self, database: Database, table: Table, holder: str) -> None:
        self._database = database
        self._holder = holder
        self._write_statements(table)

    @once
    def _write_statements(self, table: Table) -> None:
        c = table.c
        self._insert = insert(table).values(failed=now_ms())
        this = c.key == bindparam("of_key"), c.scheduled_time == bindparam("of_time"), c.fence == bindparam("of_fence")
        free = c.telling_until <= now_ms()
        self._free = select(*c).where(free).order_by(c.telling_until, c.key).limit(_RIVALS)
        until = now_ms() + bindparam("span", type_=BigInteger)
        self._claim = update(table).where(*this, free).values(telling_until=until)
        self._told = delete(table).where(*this)

    def entering(self, claim: Claim, error: str | None, also: Also | None = None) -> Also:
        """Return what enters the failure of a claimed run, in one with its end, after `also`."""
        row = claim.row
        values = {
            "key": row.key,
            "scheduled_time": milliseconds(row.scheduled_time),
            "fence": claim.lease.fence,
            "type": row.type,
            "attempts": row.attempts,
            "error": storable(error),
            "node": self._holder,
        }

        def work(connection: Connection) -> None:
            if also is not None:
                also(connection)
            connection.execute(self._insert, values)

        return work

    def claim(self, seconds: float) -> Failure | None:
        """Return a failure that no other caller gets for so many seconds, or None."""
        found = self._database.run(lambda connection, _: connection.execute(self._free).mappings().all())
        span = round(seconds * 1000)
        return next((one for one in map(read_failure, found) if self._write(self._claim, one, span=span)), None)

    def told(self, failure: Failure) -> None:
        """Forget a failure."""
        self._write(self._told, failure)

    def _write(self, statement: Any, failure: Failure, **values: int) -> bool:
        which = {
            "of_key": failure.key,
            "of_time": milliseconds(failure.scheduled_time),
            "of_fence": failure.fence,
        }
        return self._database.run(
            lambda connection, _: bool(connection.execute(statement, {**which, **values}).rowcount == 1)
        )


def read_failure(row: Mapping[Any, Any]) -> Failure:
    """Return a stored failure."""
    fields = Fields(row)
    return Failure(
        key=fields.text("key"),
        type=fields.text("type"),
        scheduled_time=int(fields.seconds("scheduled_time", 1000)),
        fence=fields.number("fence"),
        attempts=fields.number("attempts"),
        error=fields.optional_text("error"),
        node=fields.text("node"),
        failed_at=fields.seconds("failed", 1000),
    )
