"""What `psched.insight` asks of the tables of `rdb`: capped counts, and how often rules are used."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

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
from psched.backends.rdb.waiting_users import NO_USER, least_of
from psched.backends.sql.capped_counts import Indexed, capped, counts
from psched.backends.sql.database import Database
from psched.backends.sql.dialect import now_ms
from psched.model import NEVER, NO_OCCURRENCE
from psched.store.reads import Counted, RuleUse, TypeCounts, UserCounts

_PAGE = 10_000
"""Schedules whose rules one statement reads."""
_MOST_FINISHED = 1000
"""The most finished tasks that are counted: the index that finds them does not tell them from failed ones."""
_MOST_RUNNING = 10_000
"""Running tasks without a user are counted up to this."""
_LEASED = "leased"


class _Leased(NamedTuple):
    """The numbers of rows that a worker holds, and of those whose lease is valid, by type.

    `more`: there are more than were counted.
    """

    of_types: Mapping[str, tuple[int, int]]
    more: bool


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
            leased = self._leased_by_type(connection, most)
            return [self._of_type(connection, name, bands, leased, most) for name in names]

        found = self._database.run(work)
        return sorted(found, key=lambda each: -1.0 if each.oldest is None else each.oldest, reverse=True)

    def _of_type(
        self, connection: sa.Connection, name: str, bands: Sequence[int | None], leased: _Leased, most: int
    ) -> TypeCounts:
        held, running = leased.of_types.get(name, (0, 0))
        limit = most + 1 + held
        rows = [connection.execute(self._first_of_type(band, limit), {"of_type": name}).one() for band in bands]
        now = rows[0][3]
        earliest = min((row[2] for row in rows if isinstance(row[2], int)), default=math.inf)  # SQLite holds any value
        oldest = (now - earliest) / 1000 if earliest <= now else None
        waiting = Counted.up_to(most, sum(row[0] for row in rows) - held)
        if leased.more:
            waiting = self._waiting_of_type(connection, name, bands, most // 10)
        due = Counted.up_to(most, sum(row[1] for row in rows))
        return TypeCounts(name, waiting, due, Counted(running, leased.more), oldest)

    def _first_of_type(self, band: int | None, limit: int) -> sa.Executable:
        """Return a SELECT about the first rows of a type in due order.

        Its columns are their number, the number of those due, the earliest due
        time, and the clock.
        """
        c = self._table.c
        first = using_type_index(sa.select(c.due), self._table).where(*self._here(band))
        rows = first.order_by(c.due, c.key).limit(limit).subquery()
        due = sa.func.count(sa.case((rows.c.due <= now_ms(), 1)))
        return sa.select(sa.func.count(), due, sa.func.min(rows.c.due), now_ms()).select_from(rows)

    def _waiting_of_type(self, connection: sa.Connection, name: str, bands: Sequence[int | None], most: int) -> Counted:
        """Return the number of waiting rows of a type by looking at each row."""
        c = self._table.c
        wanted = {WAITING: [Indexed([*self._here(band), c.status == WAITING], (c.due, c.key)) for band in bands]}
        return counts(connection, self._table, wanted, most, {"of_type": name})[WAITING]

    def _here(self, band: int | None) -> list[sa.ColumnElement[bool]]:
        """Return the conditions on rows of the type :of_type in a band."""
        c = self._table.c
        return [c.type == sa.bindparam("of_type"), *([] if band is None else [c.band == band])]

    def _leased_by_type(self, connection: sa.Connection, most: int) -> _Leased:
        c = self._table.c
        live = sa.case((c.due > now_ms(), 1)).label("live")
        rows = sa.select(c.type, live).where(*self._leased.conditions).order_by(*self._leased.order).limit(most + 1)
        some = rows.subquery()
        numbers = sa.select(some.c.type, sa.func.count(), sa.func.count(some.c.live)).group_by(some.c.type)
        found = connection.execute(numbers).all()
        more = sum(number for _, number, _ in found) > most
        return _Leased({name: (number, running) for name, number, running in found}, more)

    @property
    def _leased(self) -> Indexed:
        """The rows that a worker holds, though perhaps no longer."""
        c = self._table.c
        return Indexed((c.status == RUNNING, c.holder.is_not(None)), (c.holder,))

    @property
    def _running(self) -> Indexed:
        return Indexed((*self._leased.conditions, self._table.c.due > now_ms()), self._leased.order)


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
            "paused": [Indexed([c.due >= milliseconds(NEVER), c.due < milliseconds(NO_OCCURRENCE)], [c.due])],
            "ended": [Indexed([c.due >= milliseconds(NO_OCCURRENCE)], [c.due])],
        }
        return self._database.run(lambda connection, _: counts(connection, self._table, wanted, most))

    def rules(self) -> Iterator[RuleUse]:
        c = self._table.c
        columns = (c.type, c.cron, c.timezone, c.delay_ms, c.options)
        is_paused = c.paused_from.is_not(None) & c.paused_until.is_(None)
        runs = sa.case((sa.not_(is_paused) & (c.due < milliseconds(NO_OCCURRENCE)), 1)).label("runs")
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
                    fields = RowReader(row)
                    rule = read_rule(fields, fields.options("options")[0])
                    yield RuleUse(rule, row["type"], row["count"], row["key"])
            is_full = sum(row["every"] for row in found) == _PAGE
            keys = [row["key"] for row in found if isinstance(row["key"], str)]  # SQLite may hold other text
            after = max(keys, default=None) if is_full else None


class RdbTaskReads(RdbReads):
    """Implements `TaskReads`."""

    def counts(self, most: int) -> Mapping[str, Counted]:
        c = self._table.c

        def work(connection: sa.Connection, _: bool) -> Mapping[str, Counted]:
            bands = self._due_times.bands(connection)
            wanted = {
                "due": [Indexed((c.band == band, c.due <= now_ms()), (c.due, c.key)) for band in bands],
                RUNNING: [self._running],
                TASK_FAILED: [self._ended(TASK_FAILED)],
                TASK_CANCELLED: [self._ended(TASK_CANCELLED)],
                _LEASED: [self._leased],
            }
            found = counts(connection, self._table, wanted, most)
            found |= counts(connection, self._table, {TASK_FINISHED: [self._finished]}, min(most, _MOST_FINISHED))
            waiting = self._waiting(connection, bands, found.pop(_LEASED), most)
            return {WAITING: waiting, **found}

        return self._database.run(work)

    @property
    def _finished(self) -> Indexed:
        """The finished tasks. MariaDB would read all tasks without a holder, also those without an end of retention."""
        conditions = (*has_status(self._table, TASK_FINISHED), self._table.c.purge_at > 0)
        return Indexed(conditions, (self._table.c.purge_at,), f"{self._table.name}_held")

    def _ended(self, status: str) -> Indexed:
        """Return the failed or the cancelled tasks, by conditions on the columns of their index alone."""
        c = self._table.c
        if "ended" in c:
            return Indexed((c.ended == status,), (c.ended, c.key))
        return Indexed(has_status(self._table, status), (c.status, c.key))

    def _waiting(self, connection: sa.Connection, bands: Sequence[int], leased: Counted, most: int) -> Counted:
        """Return the number of waiting tasks: of all that are not retired, which an index counts, without those leased.

        If more are leased than were counted, look at each row instead, and count up to a tenth of `most`.
        """
        c = self._table.c
        if leased.more:
            rows = [Indexed((c.band == band, c.status == WAITING), (c.due, c.key)) for band in bands]
            return counts(connection, self._table, {WAITING: rows}, most // 10)[WAITING]
        every = [Indexed((c.band == band,), (c.due, c.key)) for band in bands]
        found = counts(connection, self._table, {WAITING: every}, most + leased.count)[WAITING]
        waiting = max(0, found.count - leased.count)
        return Counted(waiting, found.more)

    def running_of(self, user: str) -> tuple[int, int | None]:
        c = self._table.c
        held = (has_user(self._table), c.user_name == sa.bindparam("user"), user_column(self._table, "holder") > "")
        live = (*held, c.status == RUNNING, c.due > now_ms())
        limit = sa.func.min(sa.case((c.max_running >= 1, c.max_running)))
        statement = sa.select(sa.func.count(), limit).where(*live)
        count, least = self._database.run(lambda connection, _: connection.execute(statement, {"user": user}).one())
        return count, least_of(least, None)

    def users(self, limit: int, most: int) -> list[UserCounts]:
        return self._database.run(lambda connection, _: self._users(connection, limit, most))

    def _users(self, connection: sa.Connection, limit: int, most: int) -> list[UserCounts]:
        found: dict[str, _DueOfUser] = {}
        for band in self._due_times.bands(connection):
            rows = connection.execute(self._first_by_user, {"of_band": band, "most": most}).all()
            is_full = sum(row.number for row in rows) == most
            for name, due, least, number, now in rows:
                if not isinstance(due, int):  # SQLite holds any value
                    continue
                of_band = _DueOfUser(number, is_full, (now - due) / 1000, least_of(least, None))
                found[name] = of_band if name not in found else found[name].and_of(of_band)
        first = sorted(found, key=lambda name: (-found[name].oldest, name))[:limit]
        running = {name: (count, least) for name, count, least in self._running_of_users(connection, first)}
        listed = []
        for name in first:
            of_user, (count, least) = found[name], running.get(name, (0, None))
            max_running = None if name == NO_USER else least_of(of_user.max_running, least)
            due_tasks = Counted(of_user.number, of_user.more)
            listed.append(UserCounts(name or None, due_tasks, of_user.oldest, count, max_running))
        return listed

    @property
    def _first_by_user(self) -> sa.Select[str, int, int | None, int, int]:
        """The first :most due rows in :of_band, by user: due time of the first, least limit, number, and the clock."""
        c = self._table.c
        due = sa.select(c.user_name, c.due, c.max_running).where(c.band == sa.bindparam("of_band"), c.due <= now_ms())
        rows = due.order_by(c.due, c.key).limit(sa.bindparam("most")).subquery()
        columns = (sa.func.min(rows.c.due), sa.func.min(rows.c.max_running), sa.func.count().label("number"), now_ms())
        return sa.select(rows.c.user_name, *columns).group_by(rows.c.user_name)

    def _running_of_users(
        self, connection: sa.Connection, names: Sequence[str]
    ) -> Iterator[tuple[str, int, int | None]]:
        c = self._table.c
        limit = sa.func.min(sa.case((c.max_running >= 1, c.max_running)))
        is_live = (c.status == RUNNING, c.due > now_ms())
        users = [name for name in names if name != NO_USER]
        if users:
            of_users = (has_user(self._table), c.user_name.in_(users), user_column(self._table, "holder") > "")
            of_each = sa.select(c.user_name, sa.func.count(), limit).where(*of_users, *is_live).group_by(c.user_name)
            yield from ((name, count, least) for name, count, least in connection.execute(of_each))
        if NO_USER in names:
            without = Indexed((c.user_name == NO_USER, *self._running.conditions), self._running.order)
            yield NO_USER, connection.execute(sa.select(capped(self._table, without, _MOST_RUNNING))).scalar_one(), None


class _DueOfUser(NamedTuple):
    """The due tasks of one user. `more`: there may be more."""

    number: int
    more: bool
    oldest: float
    max_running: int | None

    def and_of(self, other: _DueOfUser) -> _DueOfUser:
        """Return these and those of another band."""
        return _DueOfUser(
            self.number + other.number,
            self.more or other.more,
            max(self.oldest, other.oldest),
            least_of(self.max_running, other.max_running),
        )
