"""The ledger of schedules on SQL databases: tables, reading and trimming.

Each statement uses an index: occurrences are found by key and time, failed runs and other runs by their end times. Only
`changed_since` reads all changes.
"""

from __future__ import annotations

import heapq
import random
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from operator import itemgetter
from typing import Any

import sqlalchemy as sa

from psched.backends.common.rows import BATCH, RUN_TIMES, milliseconds, read_change, read_ledger_row, read_run_times
from psched.backends.common.table_name_check import checked_name
from psched.backends.sql.compiled_statements import Statement, cached, cached_on_class
from psched.backends.sql.database import Database
from psched.backends.sql.dialect import MYSQL_OPTIONS, ExactText, LongText, now_ms
from psched.backends.sql.paging import OrderedPages
from psched.backends.sql.run_output import SqlRunOutput, output_table
from psched.model import Claim
from psched.store.ledger import DELETE, Change, Definition, DefinitionTimes, KeptOutput, LedgerFilter, LedgerRow, Output

_OLDEST = now_ms() - sa.bindparam("age", type_=sa.BigInteger)
_ALL = 2**62
"""A number larger than any time."""
_KEYS = 30
"""The maximum number of keys that one statement reads. It is small, because the statement examines every change of the
schedules with these keys, and a schedule may have many changes.
"""
_EXAMINED = 10_000
"""How many entries one statement examines to find the last entries of some definitions."""
_AT_ONCE = 32
"""The maximum number of schedules whose entries or changes one statement reads."""


def ledger_table(metadata: sa.MetaData, schedules: str) -> sa.Table:
    """Return the table of settled occurrences.

    The primary key keeps the occurrences of a schedule together. `extra` is 1 for an extra run. `trouble` is 1 if
    `LedgerRow.had_trouble` is true, so that an index finds such entries.
    """
    table = sa.Table(
        f"{checked_name(schedules)}_ledger",
        metadata,
        sa.Column("key", ExactText(255), primary_key=True),
        sa.Column("scheduled_time", sa.BigInteger, primary_key=True),
        sa.Column("fence", sa.BigInteger, primary_key=True),
        sa.Column("version", sa.BigInteger, nullable=False),
        sa.Column("outcome", sa.String(16), nullable=False),
        sa.Column("detail", LongText),
        sa.Column("last_time", sa.BigInteger),
        sa.Column("occurrences", sa.Integer),
        sa.Column("extra", sa.Integer, nullable=False, server_default="0"),
        sa.Column("previous", sa.BigInteger),
        sa.Column("attempts", sa.Integer, nullable=False),
        sa.Column("trouble", sa.Integer, nullable=False),
        sa.Column("node", ExactText(255)),
        sa.Column("started", sa.BigInteger),
        sa.Column("ended", sa.BigInteger, nullable=False),
        sa.Column("error", LongText),
        sa.Column("reckoning", sa.String(64), nullable=False),
        **MYSQL_OPTIONS,
    )
    c = table.c
    sa.Index(f"{table.name}_ended", c.trouble, c.ended, c.key, c.scheduled_time, c.fence)
    return table


def limit_columns() -> tuple[sa.Column[Any], ...]:
    """Return the columns of a policy's limits, for the table of schedules and for the table of changes."""
    return (
        sa.Column("max_lateness_ms", sa.BigInteger),
        sa.Column("alert_after_ms", sa.BigInteger),
        sa.Column("max_attempts", sa.Integer),
    )


def option_columns() -> tuple[sa.Column[Any], ...]:
    """Return the columns `OPTION_COLUMNS`, for the table of schedules and for the table of changes."""
    return (sa.Column("options", LongText), sa.Column("owner", ExactText(255)))


def changes_table(metadata: sa.MetaData, schedules: str) -> sa.Table:
    """Return the table of definition changes, with one row for each version of a schedule.

    `number`: the number of the call that made the change. If the answer to a call is lost, the call finds its change by
    this number. `paused_from` and `paused_until`: the last pause of the schedule at the time of the change.
    """
    return sa.Table(
        f"{checked_name(schedules)}_changes",
        metadata,
        sa.Column("key", ExactText(255), primary_key=True),
        sa.Column("version", sa.BigInteger, primary_key=True),
        sa.Column("changed", sa.BigInteger, nullable=False),
        sa.Column("action", sa.String(16), nullable=False),
        sa.Column("node", ExactText(255)),
        sa.Column("type", ExactText(255), nullable=False),
        sa.Column("cron", ExactText(255), nullable=False),
        sa.Column("timezone", ExactText(255), nullable=False),
        sa.Column("delay_ms", sa.BigInteger, nullable=False),
        sa.Column("catch_up", sa.String(8), nullable=False),
        *limit_columns(),
        sa.Column("pending", sa.BigInteger),
        sa.Column("first_time", sa.BigInteger, nullable=False),
        sa.Column("due", sa.BigInteger, nullable=False),
        sa.Column("reckoning", sa.String(64)),
        sa.Column("number", sa.BigInteger),
        sa.Column("paused_from", sa.BigInteger),
        sa.Column("paused_until", sa.BigInteger),
        *option_columns(),
        sa.Column("data", LongText),
        **MYSQL_OPTIONS,
    )


LEDGER_TABLES = (ledger_table, changes_table, output_table)
"""Functions that make the tables of a `SqlLedger`, in this order."""


class SqlLedger:
    """Implements `Ledger` on the tables that `LEDGER_TABLES` makes."""

    def __init__(self, database: Database, ledger: sa.Table, changes: sa.Table, outputs: sa.Table) -> None:
        self._database = database
        self._outputs = SqlRunOutput(database, outputs)
        self._write_statements(ledger, changes)
        # a random start, so that processes trim different keys first
        self._trim_after = chr(random.randrange(0x20, 0x7F))

    @cached_on_class
    def _write_statements(self, ledger: sa.Table, changes: sa.Table) -> None:
        self._ledger = ledger
        c = changes.c
        of_key = c.key == sa.bindparam("of_key", type_=c.key.type)
        self._of_key = Statement(sa.select(*c).where(of_key).order_by(c.version))
        of_keys = c.key.in_(sa.bindparam("keys", type_=c.key.type, expanding=True))
        self._of_keys = Statement(sa.select(*c).where(of_keys).order_by(c.key, c.version))
        self._change_keys = c.key
        these = [column.in_(sa.bindparam(f"of_{column.name}s", expanding=True)) for column in (c.key, c.version)]
        self._run_times = sa.select(*(c[name] for name in RUN_TIMES)).where(*these)
        self._columns = [column.name for column in c]
        self._changed_since = sa.select(c.key).where(c.changed >= sa.bindparam("since")).distinct()
        self._next_key = sa.select(c.key).where(c.key > sa.bindparam("after_key")).order_by(c.key).limit(1)
        self._next_keys = self._next_key.distinct().limit(_KEYS)
        row = ledger.c
        of_key, old = (
            row.key == sa.bindparam("of_key"),
            (row.trouble == sa.bindparam("trouble")) & (row.ended < _OLDEST),
        )
        self._old = _nth(row.ended, (row.ended, row.key, row.scheduled_time, row.fence)).where(old)
        self._delete_old = sa.delete(ledger).where(old, row.ended <= sa.bindparam("end"))
        self._first = _nth(row.scheduled_time, (row.scheduled_time, row.fence)).where(of_key)
        self._last = _nth(row.scheduled_time, (row.scheduled_time.desc(), row.fence.desc())).where(of_key)
        self._delete_first = sa.delete(ledger).where(of_key, row.scheduled_time <= sa.bindparam("end"))
        this = c.key == sa.bindparam("of_key")
        self._version = sa.select(sa.func.max(c.version)).where(this, c.changed < _OLDEST)
        self._superseded = sa.delete(changes).where(this, c.version < sa.bindparam("of_version"))
        gone = c.action == DELETE
        self._deleted = sa.delete(changes).where(this, c.version == sa.bindparam("of_version"), gone)

    def rows(self, wanted: LedgerFilter) -> Iterator[LedgerRow]:
        c = self._ledger.c
        if wanted.key is not None:
            conditions = [c.key == wanted.key, *_between(c.scheduled_time, wanted)]
            if wanted.failed:
                conditions.append(c.trouble == 1)
            return map(read_ledger_row, self._pages((c.scheduled_time, c.fence), conditions, wanted))
        order = (c.ended, c.key, c.scheduled_time, c.fence)
        kinds = [
            self._pages(order, [c.trouble == trouble, *_between(c.ended, wanted)], wanted)
            for trouble in ((1,) if wanted.failed else (0, 1))
        ]
        merged = heapq.merge(*kinds, key=itemgetter(*(column.name for column in order)))
        return map(read_ledger_row, merged if wanted.last is None else deque(merged, wanted.last))

    def first_rows(
        self, keys: Collection[str], first: int, since: float | None = None, until: float | None = None
    ) -> Mapping[str, Sequence[LedgerRow]]:
        return self._rows_of_each(_first_of_each, keys, first, since, until)

    def last_rows(
        self, keys: Collection[str], last: int, until: float | None = None
    ) -> Mapping[str, Sequence[LedgerRow]]:
        return self._rows_of_each(_last_of_each, keys, last, None, until)

    def _rows_of_each(
        self, make: _Make, keys: Collection[str], most: int, since: float | None, until: float | None
    ) -> Mapping[str, Sequence[LedgerRow]]:
        names = list(dict.fromkeys(keys))
        bounds = {
            "since": -_ALL if since is None else milliseconds(since),
            "until": _ALL if until is None else milliseconds(until),
        }
        found: dict[str, list[LedgerRow]] = {name: [] for name in names}
        for place, row in self._entries_of_each(make, [{"key": name, **bounds, "most": most} for name in names]):
            found[names[place]].append(row)
        for rows in found.values():
            rows.sort(key=lambda row: (row.scheduled_time, row.fence))
        return found

    def rows_before(self, time: int, wanted: Collection[Definition]) -> Mapping[Definition, LedgerRow]:
        last = self.last_rows([each.key for each in wanted], 1, until=time - 0.001)
        found: dict[Definition, LedgerRow] = {}
        others: list[tuple[Definition, int]] = []
        for each in wanted:
            for row in last[each.key]:
                if row.version == each.version:
                    found[each] = row
                else:
                    others.append((each, milliseconds(row.scheduled_time + 1)))
        for start in range(0, len(others), _AT_ONCE):
            found.update(self._last_entries(dict(others[start : start + _AT_ONCE])))
        return found

    def _last_entries(self, wanted: Mapping[Definition, int]) -> Iterator[tuple[Definition, LedgerRow]]:
        """Yield the last entry of each definition before the time that `wanted` gives for the definition.

        Times are unix milliseconds. Definitions without such an entry are left out. Each round sends two statements for
        all definitions whose entry is still searched for.
        """
        before = dict(wanted)
        while before:
            left, skipped = list(before), max(_EXAMINED // len(before), 1) - 1
            given = [{"key": each.key, "before": before[each], "most": 1} for each in left]
            nth = self._of_each(_nth_of_each, [{**values, "skipped": skipped} for values in given])
            ends = {left[place]: time for place, time in nth}
            spans = [
                {**values, "first": ends.get(each, -_ALL), "version": each.version}
                for each, values in zip(left, given, strict=True)
            ]
            found = {left[place]: row for place, row in self._entries_of_each(_last_of_each_version, spans)}
            yield from found.items()
            before = {each: end for each, end in ends.items() if each not in found}

    def _entries_of_each(self, make: _Make, given: Sequence[Mapping[str, Any]]) -> Iterator[tuple[int, LedgerRow]]:
        """Yield the entries that `make` selects for each element of `given`, each with the position of that element."""
        columns = [column.name for column in self._ledger.c]
        for place, *row in self._of_each(make, given):
            yield place, read_ledger_row(dict(zip(columns, row, strict=True)))

    def _of_each(self, make: _Make, given: Sequence[Mapping[str, Any]]) -> Iterator[Sequence[Any]]:
        """Yield the rows that `make` selects for each element of `given`.

        Each row begins with the position of its element.
        """
        for start in range(0, len(given), _AT_ONCE):
            part = given[start : start + _AT_ONCE]
            count = 1 << (len(part) - 1).bit_length()
            part = [*part, *[{**part[-1], "most": 0}] * (count - len(part))]
            statement = cached(make, self._ledger, count, self._database.dialect.limits_in_unions)
            values = {f"{name}_{place}": each[name] for place, each in enumerate(part) for name in each}
            for place, *row in self._read(statement, values):
                yield start + place, *row

    def changes(self, key: str) -> list[Change]:
        rows = self._read(self._of_key, {"of_key": key})
        return [read_change(dict(zip(self._columns, row, strict=True))) for row in rows]

    def changes_of(self, keys: Collection[str]) -> Mapping[str, list[Change]]:
        names = list(dict.fromkeys(keys))
        if len(names) == 1:  # the plan of an IN with one value may be worse
            return {names[0]: self.changes(names[0])}
        found: dict[str, list[Change]] = {name: [] for name in names}
        for start in range(0, len(names), _AT_ONCE):
            part = names[start : start + _AT_ONCE]
            for row in self._database.run(partial(self._changes_of, part)):
                change = read_change(dict(zip(self._columns, row, strict=True)))
                found[change.key].append(change)
        return found

    def _changes_of(self, keys: Sequence[str], connection: sa.Connection, _: bool) -> Sequence[Sequence[Any]]:
        return self._of_keys.rows_on(connection, keys)

    def _read(self, statement: Statement, values: Mapping[str, Any]) -> Sequence[Sequence[Any]]:
        return self._database.run(lambda connection, _: statement.rows(connection, values))

    def changed_since(self, time: float) -> list[str]:
        values = {"since": milliseconds(time)}
        return sorted(row["key"] for row in self._database.rows(self._changed_since, values))

    def run_times(self, wanted: Collection[Definition]) -> Mapping[Definition, DefinitionTimes]:
        if not wanted:
            return {}
        keys, versions = map(list, map(set, zip(*wanted, strict=True)))  # many schedules have the same version
        rows = self._database.rows(self._run_times, {"of_keys": keys, "of_versions": versions})
        found = dict(map(read_run_times, rows))
        return {name: times for name, times in found.items() if name in wanted}

    def keys(self, after: str = "") -> Iterator[str]:
        while found := [row["key"] for row in self._database.rows(self._next_keys, {"after_key": after})]:
            yield from found
            after = found[-1]

    def next_keys(self, after: Collection[str]) -> Mapping[str, str | None]:
        texts = list(after)
        found: dict[str, str | None] = {}
        for start in range(0, len(texts), _AT_ONCE):
            part = texts[start : start + _AT_ONCE]
            count = 1 << (len(part) - 1).bit_length()
            statement = cached(_next_key_of_each, self._change_keys, count)
            values = {f"after_{place}": part[min(place, len(part) - 1)] for place in range(count)}
            [row] = self._read(statement, values)
            found.update(zip(part, row, strict=False))
        return found

    def _pages(
        self, order: Sequence[sa.Column[Any]], conditions: Sequence[sa.ColumnElement[bool]], wanted: LedgerFilter
    ) -> Iterator[sa.RowMapping]:
        """Yield rows in `order`, page by page, or the last `wanted.last` rows by one statement.

        Needs an index that begins with the columns of `conditions`, followed by `order`.
        """
        rows = sa.select(*self._ledger.c).where(*conditions)
        if wanted.last is not None:
            newest = rows.order_by(*(column.desc() for column in order)).limit(wanted.last)
            yield from reversed(self._database.rows(newest, {}))
            return
        size = BATCH if wanted.page is None else min(wanted.page, BATCH)
        in_parts = not self._database.dialect.finds_ranges_in_or
        pages = OrderedPages(rows, {column.name: column for column in order}, size, in_parts)
        for page in pages.pages(self._database.rows):
            yield from page

    def keep_output(self, claim: Claim, output: Output, retention: float) -> None:
        self._outputs.keep(claim, output, retention)

    def outputs(self, key: str) -> list[KeptOutput]:
        return self._outputs.of_key(key)

    def trim(self, retention: float, count: int, limit: int, key: str | None) -> bool:
        age = round(retention * 1000)

        def work(connection: sa.Connection, uncertain: bool) -> bool:
            deleted = [self._trim_old(connection, age, limit, trouble) for trouble in (0, 1)]
            deleted.append(self._outputs.purge(connection, limit))
            if key is not None:
                deleted.append(self._trim_key(connection, key, count, limit))
            self._trim_changes(connection, age)
            return max(deleted) >= limit

        return self._database.run(work)

    def _trim_old(self, connection: sa.Connection, age: int, limit: int, trouble: int) -> int:
        kind = {"age": age, "trouble": trouble}
        end = connection.execute(self._old, {**kind, "skipped": limit - 1}).scalar()
        done: int = connection.execute(self._delete_old, {**kind, "end": _ALL if end is None else end}).rowcount
        return done

    def _trim_key(self, connection: sa.Connection, key: str, count: int, limit: int) -> int:
        surplus = connection.execute(self._last, {"of_key": key, "skipped": count}).scalar()
        if surplus is None:
            return 0
        end = connection.execute(self._first, {"of_key": key, "skipped": limit - 1}).scalar()
        values = {"of_key": key, "end": surplus if end is None else min(surplus, end)}
        done: int = connection.execute(self._delete_first, values).rowcount
        return done

    def _trim_changes(self, connection: sa.Connection, age: int) -> None:
        """Trim the changes of the next key. Keep the last change older than `age` milliseconds and all later changes.

        If the last change older than `age` records the deletion of the schedule, this change is deleted, too.
        """
        key = connection.execute(self._next_key, {"after_key": self._trim_after}).scalar()
        self._trim_after = "" if key is None else key
        version = None if key is None else connection.execute(self._version, {"of_key": key, "age": age}).scalar()
        if version is not None:
            values = {"of_key": key, "of_version": version}
            connection.execute(self._superseded, values)
            connection.execute(self._deleted, values)


_Make = Callable[[sa.Table, int, bool], Statement]
"""Makes a SELECT of the entries of several schedules. Each entry comes with the position of its schedule.

Takes the ledger, the number of schedules, and `limits_in_unions` (see `Dialect`).
"""


def _first_of_each(ledger: sa.Table, count: int, limits_in_unions: bool) -> Statement:
    c = ledger.c
    return _union([_within(ledger, place) for place in range(count)], (c.scheduled_time, c.fence), limits_in_unions)


def _last_of_each(ledger: sa.Table, count: int, limits_in_unions: bool) -> Statement:
    return _union([_within(ledger, place) for place in range(count)], _backwards(ledger), limits_in_unions)


def _within(ledger: sa.Table, place: int) -> sa.Select[Any]:
    between = ledger.c.scheduled_time.between(_parameter("since", place), _parameter("until", place))
    return _numbered(ledger, place, *ledger.c).where(between)


def _nth_of_each(ledger: sa.Table, count: int, limits_in_unions: bool) -> Statement:
    """Return a SELECT of the occurrence of one entry of each schedule.

    For schedule number N (from 0), the statement takes the entries before :before_N, the last one first, and skips
    :skipped_N of them.
    """
    c = ledger.c
    parts = [
        _numbered(ledger, place, c.scheduled_time)
        .where(c.scheduled_time < _parameter("before", place))
        .offset(sa.bindparam(f"skipped_{place}", type_=sa.Integer, required=True))
        for place in range(count)
    ]
    return _union(parts, _backwards(ledger), limits_in_unions)


def _last_of_each_version(ledger: sa.Table, count: int, limits_in_unions: bool) -> Statement:
    """Return a SELECT of the last entry of each schedule, with a given version and in a range of occurrences.

    For schedule number N (from 0), the version is :version_N. The range begins at :first_N and ends before :before_N.
    """
    c = ledger.c
    parts = [
        _numbered(ledger, place, *c).where(
            c.scheduled_time < _parameter("before", place),
            c.scheduled_time >= _parameter("first", place),
            c.version == _parameter("version", place),
        )
        for place in range(count)
    ]
    return _union(parts, _backwards(ledger), limits_in_unions)


def _parameter(name: str, place: int) -> sa.BindParameter[int]:
    return sa.bindparam(f"{name}_{place}", type_=sa.BigInteger)


def _numbered(ledger: sa.Table, place: int, *columns: sa.Column[Any]) -> sa.Select[Any]:
    """Return a SELECT of `columns` of the entries of one schedule. `place`: the position of the schedule."""
    c = ledger.c
    number = sa.literal_column(str(place), sa.Integer).label("place")
    return sa.select(number, *columns).where(c.key == sa.bindparam(f"key_{place}", type_=c.key.type))


def _backwards(ledger: sa.Table) -> Sequence[sa.ColumnElement[Any]]:
    return ledger.c.scheduled_time.desc(), ledger.c.fence.desc()


def _union(parts: Sequence[sa.Select[Any]], order: Sequence[Any], limits_in_unions: bool) -> Statement:
    """Return a SELECT of the first rows of each part.

    Avoids subqueries where the database allows that, because MariaDB writes subqueries with long texts to disk.
    """
    limited = [
        part.order_by(*order).limit(sa.bindparam(f"most_{place}", type_=sa.Integer, required=True))
        for place, part in enumerate(parts)
    ]
    return Statement(sa.union_all(*(each if limits_in_unions else sa.select(*each.subquery().c) for each in limited)))


def _next_key_of_each(key: sa.Column[Any], count: int) -> Statement:
    """Return a SELECT of one row with `count` columns: the first key after :after_0, after :after_1, and so on.

    With min() PostgreSQL would read all keys that follow if there was one key when it last analysed the table.
    """
    after = [sa.bindparam(f"after_{place}", type_=key.type) for place in range(count)]
    first = sa.select(key).order_by(key).limit(1)
    return Statement(sa.select(*(first.where(key > each).scalar_subquery() for each in after)))


def _between(column: sa.Column[Any], wanted: LedgerFilter) -> Iterator[sa.ColumnElement[bool]]:
    if wanted.since is not None:
        yield column >= milliseconds(wanted.since)
    if wanted.until is not None:
        yield column <= milliseconds(wanted.until)


def _nth(column: sa.Column[Any], order: Any) -> sa.Select[Any]:
    """Return a SELECT of `column` from the row that follows the first :skipped rows in `order`."""
    return sa.select(column).order_by(*order).limit(1).offset(sa.bindparam("skipped"))
