"""Rows that only Ruby can run: psched neither leases nor changes them, and runs the rows around them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from psched.backends import open_stores
from psched.backends.rdb_compat.skipped_row_cache import SkippedRowCache
from psched.backends.sql.bulk_statements import as_parameter, rows_in
from psched.config import from_mapping
from psched.model import NewTask
from psched.schedules.collection import open_schedules
from psched.schedules.settlement import rule_problem
from psched.store import ScheduleStore, StoreSettings, TaskStore
from tests.compat.original_queue import OriginalQueue
from tests.compat.original_schedules import Original
from tests.stores.bench import FAR_OFF, LONG_AGO, Bench, keys_of, soon
from tests.stores.databases import DATABASES, SharedDatabases
from tests.stores.queue.bench import QueueBench
from tests.stores.queue.conftest import open_bench
from tests.stores.statements import watched

MANY = 10_000
THEIRS = b'{"type":"theirs"}'
OURS = b'{"type":"ours"}'


def is_ours(type_: str) -> bool:
    return type_ == "ours"


@dataclass
class Shared:
    """A table of an original, with psched's store on it. `insert`: writes one row."""

    bench: Bench
    store: ScheduleStore | TaskStore
    insert: Callable[..., None]

    def fill(self, keys: list[str], data: bytes, timeout: Callable[[int], int]) -> None:
        """Write one row for each key. Row number n is due at `timeout(n)`."""
        fixed = {"created_at": "1600000000"}
        if not isinstance(self.bench, QueueBench):
            fixed = {"next_time": "1600000000", "cron": "'0 * * * *'", "delay": "0", "timezone": "'UTC'"}
        names = ["id", "timeout", "data", *fixed]
        given = rows_in("given", (sa.column("new_key", sa.String(255)), sa.column("new_due", sa.BigInteger)))
        values = [given.c.new_key, given.c.new_due, sa.literal(data), *map(sa.literal_column, fixed.values())]
        insert = sa.table(self.bench.table, *map(sa.column, names)).insert().from_select(names, sa.select(*values))
        with self.bench.connect() as connection:
            rows = [{"new_key": key, "new_due": timeout(n)} for n, key in enumerate(keys)]
            connection.execute(insert, {"given": as_parameter(rows, ["new_key", "new_due"])})

    def due(self) -> float | None:
        """Return the seconds until psched has a row that it can run."""
        return self.store.next_due(accepts=is_ours)

    def take(self, limit: int = 10) -> list[str]:
        return keys_of(self.store.acquire(limit, 100, accepts=is_ours))


@pytest.fixture(params=[(kind, database) for kind in ("schedules", "queue") for database in DATABASES], ids="-".join)
def shared(request: pytest.FixtureRequest, databases: SharedDatabases, tmp_path: Path) -> Iterator[Shared]:
    """The table of each original on each database, as the original makes it, with psched's index."""
    kind, database = request.param
    shared = (
        make_queue(databases, database, tmp_path) if kind == "queue" else make_schedules(databases, database, tmp_path)
    )
    try:
        yield shared
    finally:
        shared.bench.close()


def make_queue(databases: SharedDatabases, database: str, folder: Path) -> Shared:
    bench = open_bench(databases, "rdb_compat", database, folder)
    original = OriginalQueue(bench)
    original.make_table()
    return Shared(bench, bench.queue(), original.submit)


def make_schedules(databases: SharedDatabases, database: str, folder: Path) -> Shared:
    bench = databases.bench("rdb_compat", database, folder)
    original = Original(bench)
    original.make_table()
    store = bench.open()
    store.create_tables()
    return Shared(bench, store, original.add)


def test_rows_of_other_types_are_not_written_and_what_is_behind_them_runs(shared: Shared) -> None:
    for n, data in enumerate([THEIRS, OURS, THEIRS, THEIRS, OURS, THEIRS]):
        shared.insert(f"key{n}", data=data, timeout=LONG_AGO + n)
    shared.insert("later", data=OURS, timeout=FAR_OFF)
    before = {key: shared.bench.raw(key) for key in ("key0", "key2", "key3", "key5")}
    for limit in (1, 1):
        assert len(shared.take(limit)) == 1
    assert shared.take() == []
    wait = shared.due()
    assert wait is not None
    assert wait > 50, "the rows of others count as due"
    assert {key: shared.bench.raw(key) for key in before} == before


def test_a_call_that_wants_many_takes_those_among_the_rows_of_others(shared: Shared) -> None:
    for n in range(40):
        shared.insert(f"key{n:02}", data=OURS if n % 8 == 7 else THEIRS, timeout=LONG_AGO + n)
    assert shared.take(3) == ["key07", "key15", "key23"]
    assert shared.take(3) == ["key31", "key39"]


def test_all_types_are_taken_when_none_is_refused(shared: Shared) -> None:
    shared.insert("key1", data=THEIRS)
    shared.insert("key2", data=OURS)
    assert shared.take() == ["key2"]
    assert keys_of(shared.store.acquire(10, 100)) == ["key1"]


def test_rows_whose_keys_are_no_text_keep_nothing_waiting(shared: Shared) -> None:
    if shared.bench.database != "sqlite":
        return  # the others store no such key
    for n in range(8):
        shared.insert(f"bad{n}", data=OURS, timeout=LONG_AGO + n)
    for kind, half in (("TEXT", "< 'bad4'"), ("BLOB", "BETWEEN 'bad4' AND 'bad9'")):
        assert shared.bench.execute(f"UPDATE {{table}} SET id = CAST(X'FF' || id AS {kind}) WHERE id {half}") == 4
    shared.insert("ours", data=OURS, timeout=LONG_AGO + 9)
    assert shared.take(3) == ["ours"]
    assert shared.take(3) == []


def test_a_row_that_comes_to_be_ours_is_run(shared: Shared) -> None:
    shared.insert("key", data=THEIRS)
    assert shared.take() == []
    assert shared.due() is None
    shared.bench.write("key", data=OURS, timeout=LONG_AGO + 1)
    assert shared.due() == 0
    assert shared.take() == ["key"]


def test_many_rows_of_others_cost_a_poll_a_few_statements_and_keep_nothing_waiting(shared: Shared) -> None:
    shared.fill([f"theirs{n:05}" for n in range(MANY)], THEIRS, lambda n: LONG_AGO + 10 + n)
    shared.insert("ours", data=OURS, timeout=LONG_AGO + 10 + MANY)
    assert shared.take() == ["ours"], "not found by the first poll"
    for key, timeout in (("ahead", LONG_AGO + 1), ("amid", LONG_AGO + MANY // 2), ("behind", int(time.time()) - 1)):
        shared.insert(key, data=OURS, timeout=timeout)
        with watched(shared.bench) as watch:
            assert shared.due() == 0
            assert shared.take() == [key], "not found by the next poll"
        assert len(watch.statements) <= 10, watch.statements
    with watched(shared.bench) as watch:
        assert shared.take() == []
        wait = shared.due()
    assert wait is not None, "what was taken comes back when its lease ends"
    assert wait > 50
    assert len(watch.statements) <= 8, watch.statements
    assert not [text for text in watch.statements if text.startswith("UPDATE")], watch.statements
    whole = [plan for plan in watch.plans if "TEMP B-TREE" in plan or "filesort" in plan or "Sort" in plan]
    if not isinstance(shared.bench, QueueBench):  # whose order by weight has to be worked out
        assert not whole, watch.plans


def test_a_row_is_read_again_after_a_while() -> None:
    now = 100.0
    rows = SkippedRowCache(lambda: now)
    rows.add("key", 5, None)
    assert rows.refresh(None)
    assert rows.has("key", 5)
    assert not rows.has("key", 6)
    assert not rows.has("other", 5)
    now += 61
    assert not rows.refresh(None)
    assert not rows.has("key", 5)


def test_what_is_remembered_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("psched.backends.rdb_compat.skipped_row_cache._REMEMBERED", 3)
    rows = SkippedRowCache()
    for n in range(5):
        rows.add(f"key{n}", n, "a problem")
    assert len(rows) == 3
    assert [rows.has(f"key{n}", n) for n in range(5)] == [False, False, True, True, True]


RUBYS_OWN: list[dict[str, Any]] = [
    {"timezone": "Tokyo"},
    {"timezone": "Eastern Time (US & Canada)"},
    {"cron": "1,2, * * * *"},
    {"cron": "0 0 * * 7-3"},
]
"""Columns of schedules that PerfectSched can run and psched cannot."""


@pytest.mark.parametrize("bare", DATABASES)
def test_rules_that_only_ruby_can_read_are_left_to_ruby(
    bare: str, databases: SharedDatabases, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    bench = databases.bench("rdb_compat", bare, tmp_path)
    original = Original(bench)
    original.make_table()
    section = from_mapping({"type": "rdb_compat", "url": bench.url, "table": bench.table}).schedules
    assert section is not None
    for n, rule in enumerate(RUBYS_OWN):
        original.add(f"rubys{n}", timeout=LONG_AGO + n, **rule)
    original.add("ours", timeout=LONG_AGO + 100)
    before = [bench.raw(f"rubys{n}") for n in range(len(RUBYS_OWN))]
    with open_schedules(section, "host/1/h") as schedules:
        [task] = schedules.poll_multi(10)
        assert task.key == "ours"
        assert schedules.poll_multi(10) == []
        wait = schedules.store.next_due()
        assert wait is not None
        assert wait > 100, "it waits for a row that it cannot run"
        task.finish()
    assert [bench.raw(f"rubys{n}") for n in range(len(RUBYS_OWN))] == before
    told = [record.getMessage() for record in caplog.records if "left to Ruby" in record.getMessage()]
    assert len(told) == len(RUBYS_OWN), "each is told of once"
    assert {row["id"] for row in iter(original.poll, None)} >= {f"rubys{n}" for n in range(len(RUBYS_OWN))}
    bench.close()


@pytest.mark.parametrize("bare", DATABASES)
def test_rows_of_other_workers_leave_a_users_limit_for_ours(
    bare: str, databases: SharedDatabases, tmp_path: Path
) -> None:
    shared = make_queue(databases, bare, tmp_path)
    shared.insert("theirs", data=THEIRS, resource="u", max_running=1, timeout=LONG_AGO)
    shared.insert("ours", data=OURS, resource="u", max_running=1, timeout=LONG_AGO + 1)
    assert shared.take() == ["ours"]
    shared.bench.close()


@pytest.mark.parametrize("bare", DATABASES)
def test_problems_are_found_by_the_predicate_that_is_handed_in(
    bare: str, databases: SharedDatabases, tmp_path: Path
) -> None:
    bench = databases.bench("rdb_compat", bare, tmp_path)
    Original(bench).make_table()
    problem = partial(rule_problem, dialect="perfectsched")
    settings = StoreSettings(bench.url, "h", schedules=bench.table, problem=problem)
    store = open_stores("rdb_compat", settings).schedules
    assert store is not None
    Original(bench).add("bad", timezone="Tokyo")
    Original(bench).add("good", timeout=LONG_AGO + 1)
    [claim] = store.acquire(10, 100)
    assert claim.row.key == "good"
    store.advance(claim, FAR_OFF, FAR_OFF, soon())
    store.close()
    bench.close()


def test_a_submitted_task_is_judged_by_the_type_in_its_data(databases: SharedDatabases, tmp_path: Path) -> None:
    shared = make_queue(databases, "sqlite", tmp_path)
    assert isinstance(shared.bench, QueueBench)
    store = shared.bench.queue()
    store.submit([NewTask("key", "ours", {"type": "theirs"}, compression="gzip")])
    assert shared.take() == ["key"]
    shared.bench.close()
