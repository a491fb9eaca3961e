"""Implements the queries of `psched.insight` on the tables of `rdb`.

The queries count rows up to a limit, and count the schedules that use each rule.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import sqlalchemy as sa

from psched.backends.common.rows import (
    RUNNING,
    TASK_CANCELLED,
    TASK_FAILED,
    TASK_FINISHED,
    WAITING,
    milliseconds,
    read_rule_use,
)
from psched.backends.rdb.next_due import DueTimes
from psched.backends.rdb.schema import (
    has_status,
    is_no_backfill,
    leased_of_users,
    listed_twice,
    of_type,
    type_condition_and_order,
)
from psched.backends.rdb.waiting_users import NO_USER, least_of
from psched.backends.sql.capped_counts import CappedCounts, Indexed, capped
from psched.backends.sql.compiled_statements import Statement, cached
from psched.backends.sql.database import Database
from psched.backends.sql.dialect import Dialect, now_ms
from psched.model import NEVER, NO_OCCURRENCE
from psched.store.counts import Counted, DueUsers, RuleUse, TypeCounts, UserCounts

_PAGE = 50_000
"""The maximum number of schedules whose rules one statement reads."""
_MOST_MERGED = 100_000
"""The maximum number of different rules that `RdbScheduleCounts.rules` merges. It then yields these rules, and merges
the next pages separately."""
_MOST_FINISHED = 1000
"""The maximum number of finished tasks that are counted. It is small, because the index that finds them also contains
failed tasks."""
_MOST_RUNNING = 10_000
"""The maximum number of running tasks without user that are counted."""
_LEASED = "leased"
_AT_ONCE = 16
"""The maximum number of pairs of type and band that one statement counts."""
_WAITING: sa.ColumnElement[str] = sa.literal_column(f"'{WAITING}'")


class _Leased(NamedTuple):
    """The number of leased rows, and of rows with a valid lease, by type.

    `more`: whether some leased rows were not counted.
    """

    of_types: Mapping[str, tuple[int, int]]
    more: bool


class _First(NamedTuple):
    """The first rows of a type: their number, how many are due, and for how many seconds the first row has been due."""

    rows: int
    due: int
    oldest: float | None


class RdbCounts:
    """Implements `TableCounts` for tables of schedules and of tasks."""

    def __init__(self, database: Database, table: sa.Table, due_times: DueTimes) -> None:
        self._database = database
        self._table = table
        self._due_times = due_times

    def types(self, limit: int, most: int) -> list[TypeCounts]:
        names = self._due_times.types_in_order()[:limit]

        def work(connection: sa.Connection, _: bool) -> list[TypeCounts]:
            bands = self._due_times.bands(connection) or (None,)
            leased = self._leased_by_type(connection, most)
            return self._of_types(connection, names, bands, leased, most)

        found = self._database.run(work)
        return sorted(found, key=lambda each: -1.0 if each.oldest is None else each.oldest, reverse=True)

    def _of_types(
        self, connection: sa.Connection, names: Sequence[str], bands: Sequence[int | None], leased: _Leased, most: int
    ) -> list[TypeCounts]:
        first = self._first_of_types(connection, [(name, band) for name in names for band in bands], most, leased)
        found = []
        for name in names:
            held, running = leased.of_types.get(name, (0, 0))
            rows = [first[name, band] for band in bands]
            waiting = Counted.up_to(most, sum(row.rows for row in rows) - held)
            if leased.more:
                waiting = cached(_waiting_of_type, type(self._database.dialect), self._table, tuple(bands)).read(
                    connection, most // 10, {"of_type": name}
                )[WAITING]
            due = Counted.up_to(most, sum(row.due for row in rows))
            oldest = max((row.oldest for row in rows if row.oldest is not None), default=None)
            found.append(TypeCounts(name, waiting, due, Counted(running, leased.more), oldest))
        return found

    def _first_of_types(
        self, connection: sa.Connection, wanted: Sequence[tuple[str, int | None]], most: int, leased: _Leased
    ) -> Mapping[tuple[str, int | None], _First]:
        """Count the first rows of each pair of type and band in `wanted`. One statement reads several pairs.

        For schedules the band is None.
        """
        found: dict[tuple[str, int | None], _First] = {}
        for start in range(0, len(wanted), _AT_ONCE):
            part = wanted[start : start + _AT_ONCE]
            count = 1 << (len(part) - 1).bit_length()
            values: dict[str, Any] = {}
            for place in range(count):
                name, band = part[min(place, len(part) - 1)]
                held = leased.of_types.get(name, (0, 0))[0]
                limit = most + 1 + held if place < len(part) else 0
                values |= {f"type_{place}": name, f"band_{place}": band, f"limit_{place}": limit}
            statement = cached(_first_of_each, type(self._database.dialect), self._table, count)
            for place, rows, due, earliest, now in statement.rows(connection, values):
                if place < len(part):
                    is_due = isinstance(earliest, int) and earliest <= now  # SQLite columns may hold any value
                    found[part[place]] = _First(rows, due, (now - earliest) / 1000 if is_due else None)
        return found

    def _leased_by_type(self, connection: sa.Connection, most: int) -> _Leased:
        found = cached(_leased_types, self._table).rows(connection, {"most": most + 1})
        more = sum(number for _, number, _ in found) > most
        return _Leased({name: (number, running) for name, number, running in found}, more)


def _first_of_each(dialect: type[Dialect], table: sa.Table, count: int) -> Statement:
    """Return a SELECT about the first rows, by due time, of each of `count` pairs of type and band.

    Its columns are the position of the pair among the parameters, the number of rows, the number of due rows, the
    earliest due time, and the clock.
    """
    c, parts = table.c, []
    for place in range(count):
        limit = sa.bindparam(f"limit_{place}", type_=sa.Integer, required=True)
        type_ = sa.bindparam(f"type_{place}", type_=c.type.type)
        in_band = [c.band == sa.bindparam(f"band_{place}", type_=sa.Integer)] if "band" in c else []
        rows = of_type(dialect, sa.select(c.due).where(*in_band).limit(limit), table, type_).subquery()
        due = sa.func.count(sa.case((rows.c.due <= now_ms(), 1)))
        number = sa.literal_column(str(place), sa.Integer)
        parts.append(sa.select(number, sa.func.count(), due, sa.func.min(rows.c.due), now_ms()).select_from(rows))
    return Statement(sa.union_all(*parts))


def _waiting_of_type(dialect: type[Dialect], table: sa.Table, bands: Sequence[int | None]) -> CappedCounts:
    """Return the statement that counts the waiting rows of the type :of_type. It reads each row."""
    c = table.c
    of_type, same = type_condition_and_order(dialect, table, sa.bindparam("of_type", type_=c.type.type))
    order, index = (*same, c.due, c.key), f"{table.name}_type_due"
    rows = [
        Indexed([of_type, *([] if band is None else [c.band == _number(band)]), c.status == _WAITING], order, index)
        for band in bands
    ]
    return CappedCounts(table, {WAITING: rows})


def _leased_types(table: sa.Table) -> Statement:
    """Return the SELECT that counts, by type, the leased rows and the rows whose lease is valid."""
    c, leased = table.c, _leased(table)
    live = sa.case((c.due > now_ms(), 1)).label("live")
    limit = sa.bindparam("most", type_=sa.Integer, required=True)
    some = sa.select(c.type, live).where(*leased.conditions).order_by(*leased.order).limit(limit).subquery()
    return Statement(sa.select(some.c.type, sa.func.count(), sa.func.count(some.c.live)).group_by(some.c.type))


def _leased(table: sa.Table) -> Indexed:
    """Return the rows that have a holder, including those whose lease has expired."""
    c = table.c
    return Indexed((c.status == sa.literal_column(f"'{RUNNING}'"), c.holder.is_not(None)), (c.holder,))


def _running(table: sa.Table) -> Indexed:
    leased = _leased(table)
    return Indexed((*leased.conditions, table.c.due > now_ms()), leased.order)


def _number(value: int) -> sa.ColumnElement[int]:
    return sa.literal_column(str(value), sa.Integer)


class RdbScheduleCounts(RdbCounts):
    def counts(self, most: int) -> Mapping[str, Counted]:
        statement = cached(_schedule_counts, self._table)
        return self._database.run(lambda connection, _: statement.read(connection, most))

    def rules(self) -> Iterator[RuleUse]:
        last_of_page, of_page, of_rest = cached(_rules, self._table)
        merged: dict[tuple[Any, ...], tuple[str, int]] = {}
        after: Any = ""
        while after is not None:
            found = self._read(last_of_page, {"after": after})
            last = found[0][0] if found else None
            page = of_rest if last is None else of_page
            for *columns, key, count in self._read(page, {"after": after, "last": last}):
                if count:
                    _, before = merged.get(tuple(columns), (key, 0))
                    merged[tuple(columns)] = key, before + count
            if len(merged) > _MOST_MERGED or last is None:
                yield from _uses(merged)
                merged.clear()
            after = last

    def _read(self, statement: Statement, values: Mapping[str, Any]) -> Sequence[Sequence[Any]]:
        return self._database.run(lambda connection, _: statement.rows(connection, values))


_OF_RULE = ("cron", "timezone", "delay_ms", "options")


def _uses(merged: Mapping[tuple[Any, ...], tuple[str, int]]) -> Iterator[RuleUse]:
    """Yield how many schedules use each rule.

    `merged`: for each type and each rule, the key of one schedule, and the number of schedules that are neither paused
    nor ended.
    """
    rules: dict[tuple[Any, ...], RuleUse] = {}  # a cache: reading a rule takes longer than all the rest
    for (type_, *values), (key, count) in merged.items():
        rule = tuple(values)
        known = rules.get(rule)
        if known is None:
            row = {**dict(zip(_OF_RULE, rule, strict=True)), "type": type_, "key": key}
            known = read_rule_use(row, count)
            if not known.rule.spread:  # with a spread, the stored delay depends on the key
                rules[rule] = known
        yield RuleUse(known.rule, type_, count, key, known.overlap, known.on_failure)


def _rules(table: sa.Table) -> tuple[Statement, Statement, Statement]:
    """Return three SELECTs for the page of schedules whose keys come after :after.

    The first returns the last key of the page; no row if the page is not full. The second returns the rules of a full
    page, up to the key :last. The third returns the rules of the last page. The columns of the second and the third are
    the type, those of `_OF_RULE`, the last key, and the number of schedules that are neither paused nor ended.
    """
    c = table.c
    is_paused = c.paused_from.is_not(None) & c.paused_until.is_(None)
    runs = sa.func.count(sa.case((sa.not_(is_paused) & (c.due < milliseconds(NO_OCCURRENCE)), 1)))
    columns = (c.type, *(c[name] for name in _OF_RULE))
    after = c.key > sa.bindparam("after", type_=c.key.type)
    last = sa.select(c.key).where(after).order_by(c.key).limit(1).offset(_PAGE - 1)
    rules = sa.select(*columns, sa.func.max(c.key), runs).where(after).group_by(*columns)
    return Statement(last), Statement(rules.where(c.key <= sa.bindparam("last", type_=c.key.type))), Statement(rules)


def _schedule_counts(table: sa.Table) -> CappedCounts:
    c = table.c
    runs = c.paused_from.is_(None) | c.paused_until.is_not(None)
    never, ended = _number(milliseconds(NEVER)), _number(milliseconds(NO_OCCURRENCE))
    own = is_no_backfill(table)
    running = _running(table)
    wanted = {
        "total": [Indexed([own])],
        "due": [Indexed([c.due <= now_ms(), own], [c.due])],
        "running": [Indexed([*running.conditions, own], running.order)],
        "failing": [Indexed([c.failing.is_not(None), runs, own], [c.failing])],
        "paused": [Indexed([c.due >= never, c.due < ended, own], [c.due])],
        "ended": [Indexed([c.due >= ended, own], [c.due])],
    }
    return CappedCounts(table, wanted)


class RdbTaskCounts(RdbCounts):
    def counts(self, most: int) -> Mapping[str, Counted]:
        def work(connection: sa.Connection, _: bool) -> Mapping[str, Counted]:
            bands = self._due_times.bands(connection)
            found = cached(_task_counts, self._table, bands).read(connection, most)
            leased = found.pop(_LEASED)
            no_lease_expired = not leased.more and leased == found[RUNNING]
            if found["due"].more and no_lease_expired:  # no due task has a lease: all are waiting
                waiting = found["due"]
            else:
                waiting = self._waiting(connection, bands, leased, most)
            return {WAITING: waiting, **found}

        return self._database.run(work)

    def _waiting(self, connection: sa.Connection, bands: tuple[int, ...], leased: Counted, most: int) -> Counted:
        """Return the number of waiting tasks: the tasks that have not ended, minus the leased tasks.

        If `leased.more`, each row is read and counted instead, up to a tenth of `most`.
        """
        if leased.more:
            return cached(_waiting_tasks, self._table, bands).read(connection, most // 10)[WAITING]
        found = cached(_tasks_in_bands, self._table, bands).read(connection, most + leased.count)[WAITING]
        waiting = max(0, found.count - leased.count)
        return Counted(waiting, found.more)

    def running_of(self, user: str) -> tuple[int, int | None]:
        def work(connection: sa.Connection, _: bool) -> tuple[int, int | None]:
            of_user = [*self._running_of_users(connection, [user])] or [(user, 0, None)]
            return of_user[0][1], least_of(of_user[0][2], None)

        return self._database.run(work)

    def users(self, limit: int, most: int) -> DueUsers:
        return self._database.run(lambda connection, _: self._users(connection, limit, most))

    def _users(self, connection: sa.Connection, limit: int, most: int) -> DueUsers:
        found: dict[str, _DueOfUser] = {}
        more = False
        for band in self._due_times.bands(connection):
            rows = connection.execute(self._first_by_user, {"of_band": band, "most": most}).all()
            is_full = sum(row.number for row in rows) == most
            more = more or is_full
            for name, due, least, number, now in rows:
                if not isinstance(due, int):  # SQLite columns may hold any value
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
        return DueUsers(listed, more or len(found) > limit)

    @property
    def _first_by_user(self) -> sa.Select[str, int, int | None, int, int]:
        """Return a SELECT about the first :most due rows in the band :of_band, grouped by user.

        Its columns are the user, the first due time, the lowest `max_running`, the number of rows, and the clock.
        """
        c = self._table.c
        due = sa.select(c.user_name, c.due, c.max_running).where(c.band == sa.bindparam("of_band"), c.due <= now_ms())
        rows = due.order_by(c.due, c.key).limit(sa.bindparam("most")).subquery()
        columns = (sa.func.min(rows.c.due), sa.func.min(rows.c.max_running), sa.func.count().label("number"), now_ms())
        return sa.select(rows.c.user_name, *columns).group_by(rows.c.user_name)

    def _running_of_users(
        self, connection: sa.Connection, names: Sequence[str]
    ) -> Iterator[tuple[str, int, int | None]]:
        c = self._table.c
        users = [name for name in names if name != NO_USER]
        if users:
            dialect, is_live = type(self._database.dialect), c.due > now_ms()
            rows = leased_of_users(dialect, self._table, c.user_name, c.max_running).where(is_live).subquery().c
            limit = sa.func.min(sa.case((rows.max_running >= 1, rows.max_running)))
            of_each = sa.select(rows.user_name, sa.func.count(), limit).group_by(rows.user_name)
            found = connection.execute(of_each, {"users": listed_twice(users)})
            yield from ((user, count, least) for user, count, least in found)
        if NO_USER in names:
            running = _running(self._table)
            without = capped(
                self._table, Indexed((c.user_name == NO_USER, *running.conditions), running.order), _MOST_RUNNING + 1
            )
            yield NO_USER, connection.execute(sa.select(without)).scalar_one(), None


class _DueOfUser(NamedTuple):
    """The due tasks of one user. `more`: whether the user may have due tasks that were not read."""

    number: int
    more: bool
    oldest: float
    max_running: int | None

    def and_of(self, other: _DueOfUser) -> _DueOfUser:
        """Return the sum of this user's due tasks in two bands."""
        return _DueOfUser(
            self.number + other.number,
            self.more or other.more,
            max(self.oldest, other.oldest),
            least_of(self.max_running, other.max_running),
        )


def _task_counts(table: sa.Table, bands: tuple[int, ...]) -> CappedCounts:
    c = table.c
    wanted = {
        "due": [Indexed((c.band == _number(band), c.due <= now_ms()), (c.due, c.key)) for band in bands],
        RUNNING: [_running(table)],
        TASK_FAILED: [_ended(table, TASK_FAILED)],
        TASK_CANCELLED: [_ended(table, TASK_CANCELLED)],
        TASK_FINISHED: [_finished(table)],
        _LEASED: [_leased(table)],
    }
    return CappedCounts(table, wanted)


def _waiting_tasks(table: sa.Table, bands: tuple[int, ...]) -> CappedCounts:
    c = table.c
    rows = [Indexed((c.band == _number(band), c.status == _WAITING), (c.due, c.key)) for band in bands]
    return CappedCounts(table, {WAITING: rows})


def _tasks_in_bands(table: sa.Table, bands: tuple[int, ...]) -> CappedCounts:
    c = table.c
    return CappedCounts(table, {WAITING: [Indexed((c.band == _number(band),), (c.due, c.key)) for band in bands]})


def _finished(table: sa.Table) -> Indexed:
    """Return the finished tasks.

    For MariaDB an index is forced, because MariaDB would read all tasks without a holder.
    """
    conditions = (*has_status(table, TASK_FINISHED), table.c.purge_at > _number(0))
    return Indexed(conditions, (table.c.purge_at,), f"{table.name}_held", _MOST_FINISHED)


def _ended(table: sa.Table, status: str) -> Indexed:
    """Return the tasks with this status. The conditions name only columns of their index."""
    c = table.c
    if "ended" in c:
        return Indexed((c.ended == sa.literal_column(f"'{status}'"),), (c.ended, c.key))
    return Indexed(has_status(table, status), (c.status, c.key))
