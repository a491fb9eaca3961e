"""Listing a whole table, however large its rows are, and whatever another program has written into its keys."""

from __future__ import annotations

import sqlite3
from collections import Counter
from pathlib import Path

import pytest

from psched.model import TaskFilter
from psched.store import ScheduleStore
from tests.stores.bench import LONG_AGO, Bench
from tests.stores.databases import SQL_PAIRS, STORES, SharedDatabases, on_sql
from tests.stores.queue.bench import QueueBench, keys_in
from tests.stores.queue.conftest import made_bench
from tests.stores.statements import answers

__all__ = ["answers"]

SIZES = [6, 6, 5, 20, 9, 1, 1]
KEYS = [f"key{n}" for n in range(len(SIZES))]
PAGE = 500
MANY = 600


@pytest.fixture
def most(monkeypatch: pytest.MonkeyPatch) -> int:
    """Reduce the maximum number of bytes of one read to a thousandth, so that the tests need only small rows.

    Return that maximum.
    """
    monkeypatch.setattr("psched.backends.sql.paging.MAX_BATCH_SIZE", 16_000)
    return 16_000


def see_that_little_was_read_at_once(answers: list[int], most: int) -> None:
    assert sum(answers) >= sum(SIZES) * 1000, "what was read is not seen here"
    alone = [size for size in answers if size > most]
    assert all(size < 21_000 for size in alone), answers
    assert len(alone) == 1, "no row but the one of 20,000 bytes is larger"


@on_sql
def test_listing_schedules_reads_16_mb_at_once(
    bench: Bench, store: ScheduleStore, most: int, answers: list[int]
) -> None:
    for key, size in zip(KEYS, SIZES, strict=True):
        bench.add(store, key, data={"a": "x" * size * 1000})
    answers.clear()
    assert [row.key for row in store.list()] == KEYS
    see_that_little_was_read_at_once(answers, most)


@pytest.mark.parametrize("pair", SQL_PAIRS, ids="-".join)
def test_listing_tasks_reads_16_mb_at_once(
    pair: tuple[str, str], databases: SharedDatabases, tmp_path: Path, most: int, answers: list[int]
) -> None:
    with made_bench(databases, *pair, tmp_path) as bench:
        store = bench.queue()
        for key, size in zip(KEYS, SIZES, strict=True):
            bench.submit(store, [key], data={"a": "x" * size * 1000}, user="one")
        bench.submit(store, ["other"], user="another")
        answers.clear()
        assert keys_in(store, user="one", status="waiting") == KEYS
        see_that_little_was_read_at_once(answers, most)


@pytest.mark.parametrize("due", ["NULL", "'soon'", "CAST(x'ff41' AS TEXT)", "CAST(x'ff41' AS BLOB)", "1e30", "1.5"])
@pytest.mark.parametrize("type_", STORES)
def test_schedules_behind_due_times_that_are_none_are_listed(
    type_: str, due: str, databases: SharedDatabases, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("psched.backends.sql.paging.BATCH", 2)
    bench = databases.bench(type_, "sqlite", tmp_path)
    bench.make()
    store = bench.open()
    keys = [f"key{number}" for number in range(9)]
    for key in keys:
        bench.add(store, key)
    store.close()
    names = ("timeout", "id") if type_ == "rdb_compat" else ("due", "key")
    with sqlite3.connect(bench.url.removeprefix("sqlite:///")) as connection:
        spoil_due_times(connection, bench.table, *names, due)
    connection.close()
    store = bench.open()
    found = list(store.list())
    assert Counter(row.key for row in found) == Counter(keys)
    assert sorted(row.key for row in found if row.problem is not None) == ["key3", "key4", "key5"]
    assert all(f"column {names[0]} should hold an integer" in str(row.problem) for row in found if row.problem)
    bench.close()


def spoil_due_times(connection: sqlite3.Connection, table: str, column: str, key: str, due: str) -> None:
    """Write `due` into three rows of a table. If it is NULL, the column first has to accept this."""
    connection.execute("PRAGMA ignore_check_constraints = ON")
    [sql] = connection.execute("SELECT sql FROM sqlite_master WHERE name = ?", (table,)).fetchone()
    [definition] = [line for line in sql.splitlines() if line.strip().startswith(f"{column} ")]
    if due == "NULL":
        connection.execute("PRAGMA writable_schema = ON")
        lifted = sql.replace(definition, definition.replace("NOT NULL", ""))
        connection.execute("UPDATE sqlite_master SET sql = ? WHERE name = ?", (lifted, table))
        connection.commit()
        [version] = connection.execute("PRAGMA schema_version").fetchone()
        connection.execute(f"PRAGMA schema_version = {version + 1}")
    connection.execute(f"UPDATE {table} SET {column} = {due} WHERE {key} IN ('key3', 'key4', 'key5')")
    connection.commit()


@pytest.mark.parametrize("same_time", [True, False])
@pytest.mark.parametrize("type_", STORES)
def test_schedules_behind_keys_that_are_no_text_are_listed(
    type_: str, databases: SharedDatabases, tmp_path: Path, same_time: bool
) -> None:
    bench = databases.bench(type_, "sqlite", tmp_path)
    bench.make()
    store = bench.open()
    lift_checks(bench)
    bench.fill(store, every_key(), lambda i: LONG_AGO + (0 if same_time else i))
    spoil_keys(bench)
    see_all(bench, Counter(row.key for row in store.list()))
    bench.close()


@pytest.mark.parametrize("type_", STORES)
def test_tasks_behind_keys_that_are_no_text_are_listed(type_: str, databases: SharedDatabases, tmp_path: Path) -> None:
    with made_bench(databases, type_, "sqlite", tmp_path) as bench:
        store = bench.queue()
        lift_checks(bench)
        bench.submit(store, every_key())
        spoil_keys(bench)
        see_all(bench, Counter(row.key for row in store.list(TaskFilter())))


def every_key() -> list[str]:
    return [f"{kind}{n:03}" for kind in ("text", "blob", "good") for n in range(MANY)]


def lift_checks(bench: Bench | QueueBench) -> None:
    """Drop the table's checks of its keys."""
    assert not bench.rows.spoil([("no such row", bench.columns.key, "''")])


def spoil_keys(bench: Bench | QueueBench) -> None:
    """Change some keys to BLOBs, and some to text that is not UTF-8."""
    key = bench.quoted_key
    for kind in ("text", "blob"):
        changed = f"UPDATE {{table}} SET {key} = CAST(X'FF' || {key} AS {kind.upper()}) WHERE {key} LIKE '{kind}%'"
        assert bench.execute(changed) == MANY


def see_all(bench: Bench, listed: Counter[str]) -> None:
    assert MANY > PAGE, "the keys of each kind fill a page"
    assert [key for key, times in listed.items() if times > 1] == []
    assert sum(key.startswith("good") for key in listed) == MANY
    assert sum(key.startswith("\ufffdtext") for key in listed) == MANY
    assert sum(key.startswith("\ufffdblob") for key in listed) == MANY
