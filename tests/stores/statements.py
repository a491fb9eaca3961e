"""The statements that a store really executes: their plans, and the rows that they read and lock."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest
import sqlalchemy as sa
from psycopg import sql

from tests.stores.bench import Bench
from tests.stores.rows import RedisRows

READS_ROWS = ("SELECT", "UPDATE", "DELETE", "WITH")


@dataclass
class Watch:
    """What the statements of one call did. `reads`: the rows that each statement read; `plans`: the planner's text."""

    bench: Bench
    statements: list[str] = field(default_factory=list)
    plans: list[str] = field(default_factory=list)
    reads: list[int] = field(default_factory=list)
    locked: set[str] = field(default_factory=set)
    locks: bool = False
    generic: bool = False
    _before: int = 0

    def before(self, cursor: Any, statement: str, parameters: Any) -> None:
        self.statements.append(statement)
        if self.locks and statement.lstrip().startswith(("UPDATE", "WITH", "SELECT")):
            self._look_at_locks(cursor, statement, parameters)
        getattr(self, f"_before_{self.bench.database}")(cursor, statement, parameters)

    def after(self, cursor: Any) -> None:
        if self.bench.database == "mysql":
            dry_run = cursor.connection.cursor()
            read = handler_reads(dry_run)
            own_cost = handler_reads(dry_run) - read
            self.reads.append(read - self._before - own_cost)

    def _before_sqlite(self, cursor: Any, statement: str, parameters: Any) -> None:
        dry_run = cursor.connection.cursor()
        for *_, detail in dry_run.execute(f"EXPLAIN QUERY PLAN {statement}", parameters).fetchall():
            self.plans.append(detail)

    def _before_mysql(self, cursor: Any, statement: str, parameters: Any) -> None:
        dry_run = cursor.connection.cursor()
        dry_run.execute(f"EXPLAIN FORMAT=TRADITIONAL {statement}", parameters)
        names = [column[0] for column in dry_run.description]
        for row in dry_run.fetchall():
            step = dict(zip(names, row, strict=True))
            self.plans.append(f"{step['table']} type={step['type']} key={step['key']} {step['Extra']}")
        self._before = handler_reads(dry_run)

    def _before_postgresql(self, cursor: Any, statement: str, parameters: Any) -> None:
        with undone(cursor) as dry_run:
            if self.generic:
                statement, parameters = prepared(dry_run, statement, parameters), None
            dry_run.execute(f"EXPLAIN (ANALYZE, FORMAT JSON) {statement}", parameters)
            answer = dry_run.fetchone()[0]
            if self.generic:
                dry_run.execute("DEALLOCATE probe")
            plan = answer if isinstance(answer, list) else json.loads(answer)
            nodes = list(walk(plan[0]["Plan"]))
            self.plans += [f"{node['Node Type']} {node.get('Index Name', '')}" for node in nodes]
            self.reads.append(sum(rows_read(node) for node in nodes if _reads_a_table(node)))

    def _look_at_locks(self, cursor: Any, statement: str, parameters: Any) -> None:
        """Run the statement, find out which rows no other session can lock now, and roll the statement back."""
        quoted = self.bench.quoted_key
        with undone(cursor) as dry_run:
            dry_run.execute(statement, parameters)
            with self.bench.connect() as outside:
                every = set(outside.scalars(sa.text(f"SELECT {quoted} FROM {self.bench.table}")))
                free = set(outside.scalars(sa.text(f"SELECT {quoted} FROM {self.bench.table} FOR UPDATE SKIP LOCKED")))
            self.locked |= every - free


@contextlib.contextmanager
def watched(bench: Bench, locks: bool = False, table: str | None = None, generic: bool = False) -> Iterator[Watch]:
    """Yield a `Watch` of all statements on the table that engines of this process execute in the block.

    `table`: the name to look for in statements (default: the table of rows). `generic`: explain the plans that
    PostgreSQL makes for any parameters, and may use once a session has executed a statement several times. On Redis
    `reads` has the number of executed commands, including commands in scripts.
    """
    watch = Watch(bench, locks=locks, generic=generic)
    named = bench.table if table is None else table
    if isinstance(bench.rows, RedisRows):
        at_first = bench.rows.commands()
        yield watch
        watch.reads.append(bench.rows.commands() - at_first - 1)
        return
    busy = False

    def before(conn: Any, cursor: Any, statement: str, parameters: Any, context: Any, many: bool) -> None:
        nonlocal busy
        if statement.lstrip().upper().startswith(READS_ROWS) and named in statement and not busy:
            busy = True
            watch.before(cursor, statement, parameters)
            busy = False

    def after(conn: Any, cursor: Any, statement: str, parameters: Any, context: Any, many: bool) -> None:
        if watch.statements and statement == watch.statements[-1] and not busy:
            watch.after(cursor)

    sa.event.listen(sa.Engine, "before_cursor_execute", before)
    sa.event.listen(sa.Engine, "after_cursor_execute", after)
    try:
        yield watch
    finally:
        sa.event.remove(sa.Engine, "before_cursor_execute", before)
        sa.event.remove(sa.Engine, "after_cursor_execute", after)


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A list with the number of bytes of `data` in each answer that is read as mappings, as whole rows are."""
    found: list[int] = []

    def mappings(result: sa.CursorResult[Any]) -> sa.MappingResult:
        kept = result.freeze()
        found.append(sum(len(row.get("data") or "") for row in kept().mappings()))
        return kept().mappings()

    monkeypatch.setattr(sa.CursorResult, "mappings", mappings)
    return found


@contextlib.contextmanager
def undone(cursor: Any) -> Iterator[Any]:
    """Yield a cursor of the same session whose writes are rolled back."""
    connection = cursor.connection
    dry_run = connection.cursor()
    inside = in_transaction(connection)
    dry_run.execute("SAVEPOINT probe" if inside else "BEGIN")
    try:
        yield dry_run
    finally:
        dry_run.execute("ROLLBACK TO SAVEPOINT probe" if inside else "ROLLBACK")
        dry_run.close()


def prepared(dry_run: Any, statement: str, parameters: Mapping[str, Any]) -> str:
    """Prepare a statement of psycopg as `probe`, with a plan for any parameters. Return the EXECUTE for these ones."""
    places = {name: place for place, name in enumerate(parameters, start=1)}
    numbered = re.sub(r"%\((\w+)\)s", lambda found: f"${places[found[1]]}", statement).replace("%%", "%")
    dry_run.execute("SET LOCAL plan_cache_mode = force_generic_plan")
    dry_run.execute(f"PREPARE probe AS {numbered}")
    values = ", ".join(sql.Literal(value).as_string(dry_run) for value in parameters.values())
    return f"EXECUTE probe ({values})"


def in_transaction(connection: Any) -> bool:
    """Return whether a PyMySQL or psycopg connection is in a transaction."""
    info = getattr(connection, "info", None)
    if info is not None:
        return bool(info.transaction_status.name != "IDLE")
    return bool(connection.server_status & 1)


def _reads_a_table(node: dict[str, Any]) -> bool:
    """Return whether a step of a plan reads a table or an index.

    A Subquery Scan only passes on what such a step has read.
    """
    return "Scan" in node["Node Type"] and ("Relation Name" in node or "Index Name" in node)


def handler_reads(dry_run: Any) -> int:
    """Return the number of rows that the storage engine has passed to this session (on MariaDB)."""
    dry_run.execute("SHOW SESSION STATUS LIKE 'Handler_read%'")
    return sum(int(value) for _, value in dry_run.fetchall())


def walk(node: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield node
    for child in node.get("Plans", ()):
        yield from walk(child)


def rows_read(node: dict[str, Any]) -> int:
    removed = node.get("Rows Removed by Filter", 0) + node.get("Rows Removed by Index Recheck", 0)
    return int((node["Actual Rows"] + removed) * node["Actual Loops"])
