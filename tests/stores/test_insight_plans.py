"""Insight's queries read few of many rows, by plans of the database's own planner."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from psched.insight import ScheduleInsight, TaskInsight
from psched.model import LeaseTimes, NewTask, TaskStatus
from psched.queue.queue import Queue
from psched.schedules.collection import Defaults, ScheduleCollection
from psched.store import ScheduleStore
from tests.stores.bench import FAR_OFF, LONG_AGO, Bench
from tests.stores.databases import DATABASES, SharedDatabases
from tests.stores.queue.bench import QueueBench
from tests.stores.queue.conftest import made_bench
from tests.stores.statements import Watch, watched
from tests.stores.test_plans import stop_analysing

pytestmark = pytest.mark.new_table

FEW = 900
"""The maximum number of rows that a query may read, of 6,000 schedules and 4,500 tasks, if it counts up to MOST."""
MOST = 50
TIMES = LeaseTimes(300, 5)
ANALYSE = {"sqlite": "ANALYZE", "mysql": "ANALYZE TABLE {table}", "postgresql": "ANALYZE {table}"}

on_databases = pytest.mark.parametrize(
    "bare", [("rdb", database) for database in DATABASES], indirect=True, ids="-".join
)

SCHEDULES: dict[str, Callable[[ScheduleInsight], object]] = {
    "counts": lambda insight: insight.counts(MOST),
    "types": lambda insight: insight.types(most=MOST),
    "types of a scrape": lambda insight: insight.types(most=1),
    "page": lambda insight: insight.page(limit=10),
    "page of a type": lambda insight: insight.page(type="rare", limit=10),
    "page of a prefix": lambda insight: insight.page(prefix="key0000", limit=10),
    "next page": lambda insight: insight.page(after=(FAR_OFF + 3000, "key04500"), limit=10),
    "running": lambda insight: insight.page(state="running", limit=10),
    "failing": lambda insight: insight.page(state="failing", limit=10),
    "details": lambda insight: insight.details("key00005"),
    "overdue": lambda insight: insight.overdue(10),
    "preview of a change": lambda insight: insight.preview("key00005", {"cron": "7 * * * *"}),
    "timeline": lambda insight: insight.timeline(3600),
    "proof": lambda insight: insight.proof(LONG_AGO, LONG_AGO + 3600, prefix="key000", limit=3),
}

TASKS: dict[str, Callable[[TaskInsight], object]] = {
    "counts": lambda insight: insight.counts(MOST),
    "types": lambda insight: insight.types(most=MOST),
    "types of a scrape": lambda insight: insight.types(most=1),
    "page": lambda insight: insight.page(limit=10),
    "waiting of a type": lambda insight: insight.page(status="waiting", type="rare", limit=10),
    "waiting of a user": lambda insight: insight.page(status="waiting", user="user0007", limit=10),
    "late": lambda insight: insight.late(60, limit=10),
    "running": lambda insight: insight.page(status="running", limit=10),
    "failed": lambda insight: insight.page(status="failed", limit=10),
    "details": lambda insight: insight.details("backlog0005"),
    "users": lambda insight: insight.users(limit=10, most=MOST),
}


@on_databases
def test_questions_about_schedules_read_few_rows(bench: Bench, store: ScheduleStore) -> None:
    bench.fill(store, [f"key{n:05}" for n in range(6000)], lambda n: LONG_AGO + n if n < 1500 else FAR_OFF + n)
    store.acquire(20, 1000)
    bench.write("key04500", type="rare")
    bench.execute(ANALYSE[bench.database])
    insight = see_that_schedules_are_found(bench)
    bench.rows.copy_change({"key": f"key{n:05}"} for n in range(1, 30))
    counts = []
    for limit in (1, 25):
        with watched(bench) as watch:
            assert len(insight.proof(LONG_AGO, LONG_AGO + 3600, limit=limit).proofs) == limit
        counts.append(len(watch.statements))
    assert counts[0] == counts[1], "the audit of 25 schedules sends as many statements as that of one"


@on_databases
@pytest.mark.parametrize("analysed", ["never", "while all were due", "while none was due"])
@pytest.mark.parametrize("generic", [False, True], ids=["own plan", "generic plan"])
def test_old_statistics_do_not_slow_down_questions_about_schedules(
    bench: Bench, store: ScheduleStore, analysed: str, generic: bool
) -> None:
    then, now = (FAR_OFF, LONG_AGO) if analysed == "while none was due" else (LONG_AGO, FAR_OFF)
    stop_analysing(bench)
    bench.fill(store, [f"key{n:05}" for n in range(6000)], lambda _: then)
    if analysed != "never":
        bench.execute(ANALYSE[bench.database])
    bench.write("key04500", type="rare")
    bench.execute(f"UPDATE {{table}} SET due = {LONG_AGO}000 WHERE {bench.quoted_key} < 'key00020'")
    store.acquire(20, 1000)
    bench.execute(f"UPDATE {{table}} SET due = {now}000, next_time = {now}000")
    see_that_schedules_are_found(bench, generic)


def see_that_schedules_are_found(bench: Bench, generic: bool = False) -> ScheduleInsight:
    """Ask each question of `SCHEDULES`, and fail if one of them reads many rows."""
    insight = ScheduleInsight(ScheduleCollection(bench.open(read_only=True), TIMES, Defaults()))
    for name, ask in SCHEDULES.items():
        ask(insight)
        with watched(bench, generic=generic) as watch:
            ask(insight)
        see_that_few_rows_were_read(bench, watch, name)
    return insight


@pytest.fixture(params=DATABASES)
def queue(request: pytest.FixtureRequest, databases: SharedDatabases, tmp_path: Path) -> Iterator[QueueBench]:
    """A queue with 1,500 finished tasks, 1,500 that are not due, and 1,500 due ones, of 500 users. Never analysed."""
    with made_bench(databases, "rdb", request.param, tmp_path, new=True) as bench:
        store = bench.queue()
        stop_analysing(bench)
        store.submit([NewTask(f"done{n:04}", "t", user=f"user{n % 500:04}") for n in range(1500)])
        bench.execute(
            "UPDATE {table} SET status = 'finished', due = NULL, band = NULL, finished_at = updated,"
            " purge_at = updated + 300000"
        )
        for name, first in (("later", FAR_OFF), ("backlog", LONG_AGO)):
            users = [f"user{n % 500:04}" for n in range(1500)]
            store.submit([NewTask(f"{name}{n:04}", "t", user=user, run_at=first + n) for n, user in enumerate(users)])
        store.submit([NewTask("rare", "rare", run_at=LONG_AGO)])
        store.acquire(20, 1000)
        yield bench


@pytest.mark.parametrize("analysed", [False, True], ids=["never analysed", "analysed"])
@pytest.mark.parametrize("generic", [False, True], ids=["own plan", "generic plan"])
def test_questions_about_tasks_read_few_rows(queue: QueueBench, analysed: bool, generic: bool) -> None:
    if analysed:
        queue.execute(ANALYSE[queue.database])
    insight = TaskInsight(Queue(queue.queue(read_only=True), TIMES))
    for name, ask in TASKS.items():
        ask(insight)
        with watched(queue, generic=generic) as watch:
            ask(insight)
        see_that_few_rows_were_read(queue, watch, name)


@pytest.mark.parametrize("queue", ["sqlite"], indirect=True)
@pytest.mark.parametrize("status", ["waiting", "running", "finished"])
def test_a_page_of_few_tasks_does_not_read_the_others(queue: QueueBench, status: TaskStatus) -> None:
    """The statistics say that every task has this status. With such statistics SQLite read the whole table."""
    values = {
        "waiting": "status = 'waiting', due = updated, band = priority + 1000, holder = NULL, purge_at = NULL",
        "running": "status = 'running', due = updated, band = priority + 1000, holder = 'dead', purge_at = NULL",
        "finished": "status = 'finished', due = NULL, band = NULL, holder = NULL, purge_at = updated + 300000",
    }
    queue.execute("DELETE FROM {table} WHERE user_name = ''")
    queue.execute(f"UPDATE {{table}} SET {values[status]}")
    queue.execute(ANALYSE[queue.database])
    others = "finished" if status == "waiting" else "waiting"
    queue.execute(f"UPDATE {{table}} SET {values[others]} WHERE user_name <> 'user0007'")
    insight = TaskInsight(Queue(queue.queue(read_only=True), TIMES))
    with watched(queue) as watch:
        assert len(insight.page(status=status, limit=5).rows) == 5
    see_that_few_rows_were_read(queue, watch, status)


def see_that_few_rows_were_read(bench: Bench, watch: Watch, name: str) -> None:
    """Fail with the statements and plans if a query has read more than `FEW` rows."""
    story = "\n".join([name, *watch.statements, *watch.plans, str(watch.reads)])
    assert watch.statements, name
    assert sum(watch.reads) <= FEW, story
    if bench.database == "sqlite" and name != "counts":  # a count of all rows is a scan that ends at its bound
        scans = [plan for plan in watch.plans if plan.startswith(f"SCAN {bench.table}")]
        assert not [plan for plan in scans if "INDEX" not in plan], story
