"""Alerts in `rdb`: finds overdue occurrences by an index, and stores runs that failed until they are reported."""

from __future__ import annotations

from typing import Any

from sqlalchemy import BigInteger, Connection, Table, bindparam, delete, func, insert, or_, select, update

from psched.backends.common.rows import milliseconds, read_failure, read_overdue, storable
from psched.backends.sql.compiled_statements import cached_on_class
from psched.backends.sql.database import Database
from psched.backends.sql.dialect import now_ms, with_index_hint
from psched.model import Claim
from psched.store.alert_store import Overdue, UnreportedFailure
from psched.store.ledger import OnCommit


class RdbOverdueAlerts:
    """Implements `OverdueAlerts` on a table of schedules."""

    def __init__(self, database: Database, table: Table) -> None:
        self._database = database
        self._write_statements(table)

    @cached_on_class
    def _write_statements(self, table: Table) -> None:
        c = table.c
        is_late = c.alert_at <= now_ms()
        occurrence = func.coalesce(c.regular_time, c.next_time)
        is_unreported = or_(c.alerted.is_(None), c.alerted != occurrence)
        is_free = or_(c.alert_claimed_until.is_(None), c.alert_claimed_until <= now_ms())
        this = (c.key == bindparam("of_key"), occurrence == bindparam("of_time"))
        columns = (c.key, c.type, occurrence.label("next_time"), c.delay_ms, c.status, c.attempts, c.node, c.last_error)
        late = select(*columns, now_ms().label("now")).where(is_late).order_by(c.alert_at, c.key)
        self._overdue = with_index_hint(late.limit(bindparam("limit")), table, "alert")
        self._unreported = self._overdue.where(is_unreported, is_free)
        until = now_ms() + bindparam("span", type_=BigInteger)
        self._claim = update(table).where(*this, is_late, is_unreported, is_free).values(alert_claimed_until=until)
        self._mark_reported = update(table).where(*this).values(alerted=occurrence, alert_claimed_until=None)

    def overdue(self, limit: int) -> list[Overdue]:
        return list(map(read_overdue, self._database.rows(self._overdue, {"limit": limit})))

    def unreported(self, limit: int) -> list[Overdue]:
        return list(map(read_overdue, self._database.rows(self._unreported, {"limit": limit})))

    def claim(self, overdue: Overdue, seconds: float) -> bool:
        return self._database.change(self._claim, {**_this(overdue), "span": milliseconds(seconds)}) == 1

    def mark_reported(self, overdue: Overdue) -> None:
        self._database.change(self._mark_reported, _this(overdue))


def _this(occurrence: Overdue | UnreportedFailure) -> dict[str, Any]:
    return {"of_key": occurrence.key, "of_time": milliseconds(occurrence.scheduled_time)}


_FREE = 20
"""How many failures one claim reads, to claim one of them. Other callers may claim the first ones at the same time."""


class RdbFailures:
    """Implements `UnreportedFailures` on its own table."""

    def __init__(self, database: Database, table: Table, holder: str) -> None:
        self._database = database
        self._holder = holder
        self._write_statements(table)

    @cached_on_class
    def _write_statements(self, table: Table) -> None:
        c = table.c
        self._insert = insert(table).values(failed=now_ms())
        this = c.key == bindparam("of_key"), c.scheduled_time == bindparam("of_time"), c.fence == bindparam("of_fence")
        free = c.claimed_until <= now_ms()
        first = select(*c).where(free).order_by(c.claimed_until, c.key).limit(_FREE)
        self._free = with_index_hint(first, table, "claimed")
        until = now_ms() + bindparam("span", type_=BigInteger)
        self._claim = update(table).where(*this, free).values(claimed_until=until)
        self._delete = delete(table).where(*this)

    def insert(self, claim: Claim, error: str | None, on_commit: OnCommit | None = None) -> OnCommit:
        """Return a function to call in the transaction that settles `claim`.

        The function calls `on_commit` and inserts the failure.
        """
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
            if on_commit is not None:
                on_commit(connection)
            connection.execute(self._insert, values)

        return work

    def claim(self, seconds: float) -> UnreportedFailure | None:
        span = milliseconds(seconds)
        for failure in map(read_failure, self._database.rows(self._free)):
            if self._database.change(self._claim, {**_this(failure), "of_fence": failure.fence, "span": span}) == 1:
                return failure
        return None

    def mark_reported(self, failure: UnreportedFailure) -> None:
        self._database.change(self._delete, {**_this(failure), "of_fence": failure.fence})
