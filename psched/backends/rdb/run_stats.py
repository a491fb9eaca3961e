"""The table `psched_stats`: the number of runs per minute and per hour, and how long they took and waited."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from functools import cache
from typing import Any

import sqlalchemy as sa

from psched.backends.sql.bulk_statements import as_parameter, rows_in
from psched.backends.sql.compiled_statements import Statement, cached_on_class
from psched.backends.sql.database import Database
from psched.backends.sql.dialect import MYSQL_OPTIONS, Dialect, ExactText, now_ms
from psched.histogram import BOUNDS, BUCKETS
from psched.store.run_stats import (
    HOUR,
    MINUTE,
    MINUTES_KEPT,
    SPANS,
    RunKind,
    RunSums,
    RunTotals,
    StatsWindow,
    hours_of,
)

_ALL = 2**62
"""A number larger than any time."""
_MOST_ROWS = 20_000
"""The maximum number of rows of one answer: several months by hour, with six outcomes per hour."""


def _bucket_names(measure: str) -> list[str]:
    """Return names such as `duration_le_5ms`, `duration_le_1s` and `duration_longer`."""
    texts = [f"{bound * 1000:.0f}ms" if bound < 1 else f"{bound:.0f}s" for bound in BOUNDS]
    return [*(f"{measure}_le_{text}" for text in texts), f"{measure}_longer"]


NUMBERS = ("runs", "duration_us", "wait_us", *_bucket_names("duration"), *_bucket_names("wait"))
"""The columns of a `RunSums`, in the same order."""
_SUMS = NUMBERS[:3]
_WITHOUT_DURATIONS = tuple(name for name in NUMBERS if not name.startswith("duration"))
_KIND = ("span", "time", "type", "outcome")


@cache
def stats_table() -> sa.Table:
    """Return the table of statistics. All stores of a database share it.

    `span` is 60 or 3600 seconds; `time` is its start in unix seconds. A column such as `duration_le_5ms` counts runs
    that took at most 5 ms, but longer than the bound of the previous column. `number`: the number of the call that last
    wrote the row. If the answer to a call is lost, the call finds its row by this number.
    """
    return sa.Table(
        "psched_stats",
        sa.MetaData(),
        sa.Column("table_name", ExactText(64), primary_key=True),
        sa.Column("span", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("time", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("node", ExactText(120), primary_key=True),
        sa.Column("type", ExactText(255), primary_key=True),
        sa.Column("outcome", ExactText(16), primary_key=True),
        sa.Column("number", sa.BigInteger, nullable=False),
        *(sa.Column(name, sa.BigInteger if name in _SUMS else sa.Integer, nullable=False) for name in NUMBERS),
        **MYSQL_OPTIONS,
    )


class RdbRunStats:
    """Implements `RunStats` for one table of schedules or tasks."""

    def __init__(self, database: Database, table: str) -> None:
        self._database = database
        self._own = {"of_table": table}
        self._write_statements(type(database.dialect))

    @cached_on_class
    def _write_statements(self, dialect: type[Dialect]) -> None:
        table = stats_table()
        c = table.c
        new = rows_in("new_rows", [sa.column(f"new_{name}", c[name].type) for name in (*_KIND, *NUMBERS)])
        given = {name: new.c[f"new_{name}"] for name in (*_KIND, *NUMBERS)}
        given |= {
            "table_name": sa.bindparam("of_table", type_=c.table_name.type),
            "node": sa.bindparam("of_node", type_=c.node.type),
            "number": sa.bindparam("call_number", type_=c.number.type),
        }
        names = [column.name for column in c]
        # Without a condition SQLite reads ON CONFLICT as the ON of a join.
        rows = sa.select(*(given[name].label(name) for name in names)).select_from(new)
        rows = rows.where(sa.literal_column("1 = 1"))
        self._add = Statement(dialect.insert_or_add(table, names, rows, added=NUMBERS, replaced=("number",)))
        of_table = c.table_name == sa.bindparam("of_table")
        of_span = c.span == sa.bindparam("of_span")
        this = [c[name] == sa.bindparam(f"of_{name}") for name in ("time", "node", "type", "outcome")]
        self._number = sa.select(c.number).where(of_table, of_span, *this)
        window = [of_table, of_span, c.time >= sa.bindparam("begin"), c.time < sa.bindparam("end")]
        of_type = [*window, c.type == sa.bindparam("of_type")]
        self._totals = {
            (by_time, by_type, names): Statement(_grouped(dialect, c, of_type if by_type else window, by_time, names))
            for by_time in (False, True)
            for by_type in (False, True)
            for names in (NUMBERS, _WITHOUT_DURATIONS)
        }
        old = c.time < now_ms() // 1000 - sa.bindparam("age", type_=sa.BigInteger)
        nth = sa.select(c.time).where(of_table, of_span, old).order_by(c.time, c.node, c.type, c.outcome)
        self._nth_old = nth.limit(1).offset(sa.bindparam("skipped"))
        self._purge = sa.delete(table).where(of_table, of_span, old, c.time <= sa.bindparam("last"))

    def add(self, node: str, counted: Sequence[tuple[RunKind, Sequence[int]]], retention: float) -> None:
        if not counted:
            return
        rows = [_row(MINUTE, kind, numbers) for kind, numbers in counted]
        rows += [_row(HOUR, kind, numbers) for kind, numbers in hours_of(counted)]
        number = secrets.randbits(62)
        given = as_parameter(rows, (*_KIND, *NUMBERS))
        values = {**self._own, "of_node": node, "call_number": number, "new_rows": given}
        first = {**self._own, "of_node": node, **{f"of_{name}": rows[0][name] for name in _KIND}}

        def work(connection: sa.Connection, uncertain: bool) -> None:
            if uncertain and connection.execute(self._number, first).scalar() == number:
                return
            self._add.execute(connection, values)

        self._database.run(work)

    def totals(self, window: StatsWindow, by_time: bool = False, durations: bool = True) -> list[RunTotals]:
        names = NUMBERS if durations else _WITHOUT_DURATIONS
        values: dict[str, Any] = {**self._own, "of_span": window.span, "begin": window.begin, "end": window.end}
        if window.type is not None:
            values["of_type"] = window.type
        statement = self._totals[by_time, window.type is not None, names]
        rows = self._database.run(lambda connection, _: statement.rows(connection, values))
        return [_totals(row, by_time, durations) for row in rows]

    def purge(self, retention: float, limit: int) -> bool:
        def work(connection: sa.Connection, _: bool) -> bool:
            kept = {MINUTE: min(MINUTES_KEPT, retention), HOUR: retention}
            return max(self._purge_span(connection, span, kept[span], limit) for span in SPANS) >= limit

        return self._database.run(work)

    def _purge_span(self, connection: sa.Connection, span: int, age: float, limit: int) -> int:
        old = {**self._own, "of_span": span, "age": round(age)}
        last = connection.execute(self._nth_old, {**old, "skipped": limit - 1}).scalar()
        done: int = connection.execute(self._purge, {**old, "last": _ALL if last is None else last}).rowcount
        return done


def _grouped(
    dialect: type[Dialect], c: Any, conditions: Sequence[sa.ColumnElement[bool]], by_time: bool, names: Sequence[str]
) -> sa.Select[Any]:
    groups = [c.time if by_time else c.type, c.outcome]
    sums = [dialect.sum_of(c[name]) for name in names]
    return sa.select(*groups, *sums).where(*conditions).group_by(*groups).order_by(*groups).limit(_MOST_ROWS)


def _row(span: int, kind: RunKind, numbers: Sequence[int]) -> dict[str, Any]:
    named = dict(zip(NUMBERS, numbers, strict=True))
    return {"span": span, "time": kind.minute, "type": kind.type, "outcome": kind.outcome, **named}


def _totals(row: Sequence[Any], by_time: bool, durations: bool) -> RunTotals:
    group, outcome, *numbers = row
    sums = list(map(int, numbers))  # some databases return a sum as Decimal or as a float
    if not durations:
        runs, wait_us, *waits = sums
        sums = [runs, 0, wait_us, *[0] * BUCKETS, *waits]
    return RunTotals(group if by_time else None, None if by_time else group, outcome, RunSums(sums))
