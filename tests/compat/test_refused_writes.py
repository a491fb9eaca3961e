"""Rows that would kill or hang the Ruby workers of the shared table: psched refuses to write them, and says why."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from psched import cron
from psched.backends.rdb_compat.ruby_cron_check import ruby_problem
from psched.config import from_mapping
from psched.errors import ConfigError, NotSupportedError
from psched.model import NewSchedule, NewTask, Rule
from psched.schedules.collection import ScheduleCollection, open_schedules
from psched.store import ScheduleStore
from tests.compat.original_schedules import Original
from tests.stores.bench import FAR_OFF, HOURLY, Bench
from tests.stores.databases import DATABASES, SharedDatabases
from tests.stores.queue.bench import QueueBench, keys_in
from tests.stores.queue.conftest import open_bench

FATAL = {
    "* * * * * *": "without seconds",
    "0 0 9 * * 1": "without seconds",
    "0 9 * * mon#1": "does not support the nth or last weekday",
    "0 9 * * 5L": "does not support the nth or last weekday",
    "0 9 * * mon,fril": "does not support the nth or last weekday",
    "@midnight": "knows only @hourly",
    "@DAILY": "in lower case",
    " @daily": "in lower case",
    "0 9 * * fri-sun": "counts Sunday as day 0",
    "0 9 * * 1-7": "counts Sunday as day 0",
    "0 9 * * */7": "cannot step by 0",
    "0 9 * * mon-fri/7": "cannot step by 0",
    "0 9 l * *": "write 'L'",
    "0 9 L,L * *": "write 'L'",
    "0\n9 * * *": "spaces or tabs",
}
"""Expressions that psched can read and PerfectSched cannot, each with a part of the reason."""

READ = [
    *("* * * * *", "@hourly", "@daily", "@weekly", "@monthly", "@yearly", "@annually", "\t0\t9 * *  MON "),
    *("*/7 */7 */7 */7 1", "0 9 1,15,L * *", "0 9 L * *", "0 9 * Jan-mar,DEC sun,1-5/2", "0 9 * * 0-7"),
    *("5/15 1-3/2 * * 7", "0 9 * * */2", "0 9 * * */17", "07 09 07 07 07"),
]
"""Expressions that psched and PerfectSched can read."""


@pytest.mark.parametrize("expression", [*FATAL, *READ])
def test_what_is_fatal_is_reported_from_what_is_read(expression: str) -> None:
    cron.validate(expression, "UTC", "perfectsched")
    problem = ruby_problem(expression, "UTC")
    assert (FATAL[expression] in problem) if problem is not None else expression in READ


LORD_HOWE = {
    "0 0 * * *": True,
    "0 9 * 4-6 *": True,
    "0 9 1 * *": True,
    "0 9 20 * 0": True,
    "30 2 20 4 *": False,
    "0 1 * * *": False,
    "*/5 * * * *": False,
    "0 9 * 5-12 *": False,
    "0 9 * * 1": False,
    "0 9 L * 0": False,
}
"""Whether PerfectSched hangs on the expression in April, when half an hour occurs twice on Lord Howe Island."""


@pytest.mark.parametrize("expression", LORD_HOWE)
def test_what_hangs_where_half_an_hour_comes_twice_is_found(expression: str) -> None:
    problem = ruby_problem(expression, "Australia/Lord_Howe")
    assert (problem is not None) == LORD_HOWE[expression]
    assert problem is None or "hour 1" in problem
    assert ruby_problem(expression, "Europe/Berlin") is None


@pytest.fixture
def schedules(bench: Bench, original: Original) -> Iterator[ScheduleCollection]:
    """A collection of schedules on the table that the original has made."""
    section = from_mapping({"type": "rdb_compat", "url": bench.url, "table": bench.table}).schedules
    assert section is not None
    with open_schedules(section, "host/1/h") as schedules:
        yield schedules


def test_no_such_schedule_is_added_or_made_of_another(bench: Bench, schedules: ScheduleCollection) -> None:
    schedules.add("key", "t", cron="0 9 * * *")
    before = bench.raw("key")
    for expression, reason in FATAL.items():
        with pytest.raises(NotSupportedError, match="PerfectSched") as refused:
            schedules.add("new", "t", cron=expression)
        assert reason in str(refused.value)
        with pytest.raises(NotSupportedError, match="'key': cron"):
            schedules["key"].modify(cron=expression)
    with pytest.raises(NotSupportedError, match="in April"):
        schedules["key"].modify(timezone="Australia/Lord_Howe")
    many = [NewSchedule("one", "t", "* * * * *"), NewSchedule("two", "t", "* * * * * *")]
    with pytest.raises(NotSupportedError, match="'two'"):
        schedules.add_many(many)
    with pytest.raises(ConfigError, match="fields"):
        schedules.add("new", "t", cron="* * * *")
    assert [row.key for row in schedules.list()] == ["key"]
    assert bench.raw("key") == before


def test_what_psched_alone_reads_and_somebody_wrote_runs_and_is_kept(
    bench: Bench, original: Original, store: ScheduleStore
) -> None:
    original.add("key", cron="30 0 * * * *", timeout=FAR_OFF)
    seen = store.get("key")
    assert seen is not None
    assert store.modify(seen, replace(seen, rule=replace(seen.rule, delay=5), data={"a": 1}))
    row = bench.raw("key")
    assert row is not None
    assert (row["cron"], row["delay"]) == ("30 0 * * * *", 5)


STRANGE = "k😀y"


def test_keys_that_ruby_cannot_read_are_refused(bench: Bench, original: Original, store: ScheduleStore) -> None:
    with pytest.raises(NotSupportedError, match=r"U\+1F600 has four bytes"):
        store.add(STRANGE, "t", HOURLY, FAR_OFF, FAR_OFF, {})
    store.add("k€y日", "t😀", Rule("0 * * * *", "UTC"), FAR_OFF, FAR_OFF, {"😀": "😀"})
    assert [row.key for row in store.list()] == ["k€y日"]


@pytest.mark.parametrize("database", DATABASES)
def test_keys_and_users_of_tasks_that_ruby_cannot_read_are_refused(
    database: str, databases: SharedDatabases, tmp_path: Path
) -> None:
    bench: QueueBench = open_bench(databases, "rdb_compat", database, tmp_path)
    store = bench.queue()
    store.create_tables()
    for task in (NewTask(STRANGE, "t"), NewTask("key", "t", user="😀")):
        with pytest.raises(NotSupportedError, match="four bytes"):
            store.submit([NewTask("good", "t"), task])
    assert keys_in(store) == []
    assert store.submit([NewTask("good", "t😀", {"😀": 1}, user="日")]) == []
    bench.close()
