"""What `psched.insight` asks of the tables of `rdb`: capped counts, and how often rules are used."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import sqlalchemy as sa

from psched.backends.common.rows import (
    RUNNING,
    TASK_CANCELLED,
    TASK_FAILED,
    TASK_FINISHED,
    WAITING,
    RowReader,
    milliseconds,
    read_rule,
)
from psched.backends.rdb.next_due import DueTimes
from psched.backends.rdb.schema import has_status, has_user, user_column, using_type_index
from psched.backends.rdb.waiting_users import least_of
from psched.backends.sql.capped_counts import Indexed, capped, counts
from psched.backends.sql.database import Database
from psched.backends.sql.dialect import now_ms
from psched.model import NEVER
from psched.store.reads import Counted, RuleUse, TypeCounts

_PAGE = 10_000
"""Schedules whose rules one statement reads."""


class RdbReads:
    """Implements `Reads` for both kinds of tables."""

    def __init__(self, database: Database, table: sa.Table, due_times: DueTimes) -> None:
        self._database = database
        self._table = table
        self._due_times = due_times

    def types(self, limit: int, most: int) -> list[TypeCounts]:
        names = self._due_times.types_in_order()[:limit]

        def work(connection: sa.Connection, _: bool) -> list[TypeCounts]:
            bands = self._due_times.bands(connection) or (None,)
            running = self._running_by_type(connection, most)
            pairs = {name: [self._of_type(connection, name, band, most) for band in bands] for name in names}
            return [_type_counts(name, rows, running[name], most) for name, rows in pairs.items()]

        found = self._database.run(work)
        return sorted(found, key=lambda each: -1.0 if each.oldest is None else each.oldest, reverse=True)

    def _of_type(self, connection: sa.Connection, name: str, band: int | None, most: int) -> Sequence[Any]:
        """Return the numbers of waiting and of due rows of a type in a band, the earliest due time, and the clock."""
        c = self._table.c
        here = [c.type == sa.bindparam("of_type")]
        if band is not None:
            here.append(c.band == sa.bindparam("of_band"))
        waiting = capped(self._table, Indexed([*here, c.status == WAITING], (c.due, c.key)), most)
        due = capped(self._table, Indexed([*here, c.due <= now_ms()], (c.due, c.key)), most)
        earliest = using_type_index(sa.select(c.due).where(*here), self._table).order_by(c.due, c.key).limit(1)
        values = {"of_type": name, "of_band": band}
        return connection.execute(sa.select(waiting, due, earliest.scalar_subquery(), now_ms()), values).one()

    def _running_by_type(self, connection: sa.Connection, most: int) -> Mapping[str, Counted]:
        some = (
            sa.select(self._table.c.type)
            .where(*self._running.conditions)
            .order_by(*self._running.order)
            .limit(most + 1)
            .subquery()
        )
        found = connection.execute(sa.select(some.c.type, sa.func.count()).group_by(some.c.type)).all()
        more = sum(number for _, number in found) > most
        numbers = {name: Counted(number, more) for name, number in found}
        return defaultdict(lambda: Counted(0, more), numbers)

    @property
    def _running(self) -> Indexed:
        c = self._table.c
        return Indexed((c.status == RUNNING, c.holder.is_not(None), c.due > now_ms()), (c.holder,))


class RdbScheduleReads(RdbReads):
    """Implements `ScheduleReads`."""

    def counts(self, most: int) -> Mapping[str, Counted]:
        c = self._table.c
        runs = c.paused_from.is_(None) | c.paused_until.is_not(None)
        wanted = {
            "total": [Indexed()],
            "due": [Indexed([c.due <= now_ms()], [c.due])],
            "running": [self._running],
            "failing": [Indexed([c.failing.is_not(None), runs], [c.failing])],
            "paused": [Indexed([c.due >= milliseconds(NEVER)], [c.due])],
        }
        return self._database.run(lambda connection, _: counts(connection, self._table, wanted, most))

    def rules(self) -> Iterator[RuleUse]:
        c = self._table.c
        columns = (c.type, c.cron, c.timezone, c.delay_ms)
        runs = sa.case((c.paused_from.is_(None) | c.paused_until.is_not(None), 1)).label("runs")
        page = sa.select(c.key, *columns, runs).where(c.key > sa.bindparam("after")).order_by(c.key).limit(_PAGE)
        rows = page.subquery()
        names = [rows.c[column.name] for column in columns]
        last, count = sa.func.max(rows.c.key).label("key"), sa.func.count(rows.c.runs).label("count")
        every = sa.func.count().label("every")
        statement = sa.select(*names, last, count, every).group_by(*names)
        after: str | None = ""
        while after is not None:
            found = self._database.rows(statement, {"after": after})
            for row in found:
                if row["count"]:
                    yield RuleUse(read_rule(RowReader(row)), row["type"], row["count"], row["key"])
            is_full = sum(row["every"] for row in found) == _PAGE
            keys = [row["key"] for row in found if isinstance(row["key"], str)]  # SQLite may hold other text
            after = max(keys, default=None) if is_full else None


class RdbTaskReads(RdbReads):
    """Implements `TaskReads`."""

    def counts(self, most: int) -> Mapping[str, Counted]:
        c = self._table.c

        def work(connection: sa.Connection, _: bool) -> Mapping[str, Counted]:
            bands = self._due_times.bands(connection)
            ended = c.get("ended", c.status)
            wanted = {
                WAITING: [Indexed((c.band == band, c.status == WAITING), (c.due, c.key)) for band in bands],
                "due": [Indexed((c.band == band, c.due <= now_ms()), (c.due, c.key)) for band in bands],
                RUNNING: [self._running],
                TASK_FINISHED: [Indexed(has_status(self._table, TASK_FINISHED), (c.purge_at,))],
                TASK_FAILED: [Indexed(has_status(self._table, TASK_FAILED), (ended, c.key))],
                TASK_CANCELLED: [Indexed(has_status(self._table, TASK_CANCELLED), (ended, c.key))],
            }
            return counts(connection, self._table, wanted, most)

        return self._database.run(work)

    def running_of(self, user: str) -> tuple[int, int | None]:
        c = self._table.c
        held = (has_user(self._table), c.user_name == sa.bindparam("user"), user_column(self._table, "holder") > "")
        live = (*held, c.status == RUNNING, c.due > now_ms())
        limit = sa.func.min(sa.case((c.max_running >= 1, c.max_running)))
        statement = sa.select(sa.func.count(), limit).where(*live)
        count, least = self._database.run(lambda connection, _: connection.execute(statement, {"user": user}).one())
        return count, least_of(least, None)


def _type_counts(name: str, rows: Sequence[Sequence[Any]], running: Counted, most: int) -> TypeCounts:
    """Return the counts of a type, given its rows by band as `_of_type` returns them."""
    numbers = [Counted.up_to(most, sum(row[place] for row in rows)) for place in (0, 1)]
    now = rows[0][3]
    earliest = min((row[2] for row in rows if isinstance(row[2], int)), default=math.inf)  # SQLite holds any value
    oldest = (now - earliest) / 1000 if earliest <= now else None
    return TypeCounts(name, numbers[0], numbers[1], running, oldest)
