"""Implements the queries of `psched.insight` on the tables of PerfectSched and PerfectQueue.

These tables keep the type of a row inside its data, so psched cannot count by type.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import sqlalchemy as sa

from psched.backends.common.rows import RowReader
from psched.backends.rdb_compat.lease_store import seconds
from psched.backends.sql.capped_counts import CappedCounts, Indexed, capped
from psched.backends.sql.database import Database
from psched.backends.sql.dialect import now_ms
from psched.errors import NotSupportedError
from psched.model import Rule
from psched.store.counts import Counted, DueUsers, RuleUse, TypeCounts

_PAGE = 10_000
"""The maximum number of schedules whose rules one statement reads."""


class CompatCounts:
    """Implements `TableCounts` for tables of schedules and of tasks."""

    def __init__(self, database: Database, table: sa.Table) -> None:
        self._database = database
        self._table = table

    def types(self, limit: int, most: int) -> list[TypeCounts]:
        raise NotSupportedError(
            "rdb_compat stores the type of a row inside its data, so it cannot count by type; use `type: rdb`"
        )

    def _counts(self, wanted: Mapping[str, Sequence[Indexed]], most: int) -> Mapping[str, Counted]:
        statement = CappedCounts(self._table, wanted)
        return self._database.run(lambda connection, _: statement.read(connection, most))


class CompatScheduleCounts(CompatCounts):
    """Implements `ScheduleCounts`. The table does not show which schedules run, have failed or are paused."""

    def counts(self, most: int) -> Mapping[str, Counted]:
        timeout = self._table.c.timeout
        due = Indexed([timeout <= seconds(now_ms())], [timeout])
        return self._counts({"total": [Indexed()], "due": [due]}, most)

    def rules(self) -> Iterator[RuleUse]:
        c = self._table.c
        rule = (c.cron, c.timezone, c.delay)
        rows = sa.select(c.id, *rule).where(c.id > sa.bindparam("after")).order_by(c.id).limit(_PAGE).subquery()
        names = [rows.c[column.name] for column in rule]
        last, count = sa.func.max(rows.c.id).label("key"), sa.func.count().label("count")
        statement = sa.select(*names, last, count).group_by(*names).order_by(last)
        after: str | None = ""
        while after is not None:
            found = self._database.rows(statement, {"after": after})
            for row in found:
                fields = RowReader(row)
                zone = fields.optional_text("timezone")
                yield RuleUse(
                    Rule(fields.text("cron"), "UTC" if zone is None else zone, fields.seconds("delay")),
                    None,
                    row["count"],
                    fields.text("key"),
                )
            is_full = sum(row["count"] for row in found) == _PAGE
            after = found[-1]["key"] if is_full else None  # the last key by Ruby's collation, which ignores case


class CompatTaskCounts(CompatCounts):
    """Implements `TaskCounts`.

    The table does not show whether a task is leased or waits. So every task that is due later counts as `running`.
    """

    def __init__(self, database: Database, table: sa.Table, first_timeout: int) -> None:
        """`first_timeout`: a task is finished if its timeout is at or before this time (unix seconds)."""
        super().__init__(database, table)
        self._first_timeout = first_timeout

    def counts(self, most: int) -> Mapping[str, Counted]:
        timeout, now = self._table.c.timeout, seconds(now_ms())
        due = Indexed((timeout > self._first_timeout, timeout <= now), (timeout,))
        finished, later = (Indexed((found,), (timeout,)) for found in (timeout <= self._first_timeout, timeout > now))
        return self._counts({"waiting": [due], "due": [due], "running": [later], "finished": [finished]}, most)

    def running_of(self, user: str) -> tuple[int, int | None]:
        c = self._table.c
        held = (c.timeout > seconds(now_ms()), c.created_at.is_not(None), c.resource == user)
        count = capped(self._table, Indexed(held, (c.timeout,)), _PAGE + 1)
        return self._database.scalar(sa.select(count)), None

    def users(self, limit: int, most: int) -> DueUsers:
        raise NotSupportedError("rdb_compat cannot list users with due tasks: its rows do not show which tasks run")
