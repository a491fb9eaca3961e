"""The number and the durations of runs are added up by minute and hour, in every store but `rdb_compat`."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from psched.histogram import BOUNDS
from psched.store import ScheduleStore
from psched.store.run_stats import HOUR, MINUTE, MINUTES_KEPT, RunKind, RunStats, RunSums, StatsWindow
from tests.stores.bench import Bench
from tests.stores.databases import DATABASES, on_our_tables
from tests.stores.lost_answers import answer_lost
from tests.stores.sent_statements import after_each
from tests.stores.statements import watched

pytestmark = pytest.mark.new_table

MONTH = 30 * 86400.0


def sums(*runs: tuple[float, float | None]) -> RunSums:
    """Return the sums for these runs, each given by its duration and its wait in seconds."""
    found = RunSums()
    for duration, wait in runs:
        found.add_run(duration, wait)
    return found


def stats_of(store: ScheduleStore) -> RunStats:
    assert store.stats is not None
    return store.stats


def this_hour(store: ScheduleStore) -> int:
    return int(store.now()) // HOUR * HOUR


@pytest.mark.parametrize("bare", [("rdb_compat", "sqlite")], indirect=True, ids="-".join)
def test_the_originals_tables_have_no_place_for_it(store: ScheduleStore) -> None:
    assert store.stats is None


@on_our_tables
def test_sums_of_nodes_and_minutes_add_up(bench: Bench, store: ScheduleStore) -> None:
    stats, other, begin = stats_of(store), stats_of(bench.open()), this_hour(store)
    first, second = sums((0.003, 0.1), (0.003, None)), sums((20.0, 7.0))
    failed = sums((0.5, 0.0))
    kinds = RunKind(begin, "a", "finished"), RunKind(begin + MINUTE, "a", "finished"), RunKind(begin, "ä'", "failed")
    stats.add("one", [(kinds[0], first), (kinds[1], second), (kinds[2], failed)], MONTH)
    stats.add("one", [(kinds[0], second)], MONTH)
    other.add("two", [(kinds[0], first)], MONTH)
    everything = sums(*[(0.003, 0.1), (0.003, None)] * 2, *[(20.0, 7.0)] * 2)
    minutes, hours = StatsWindow(begin, begin + HOUR, MINUTE), StatsWindow(begin, begin + HOUR, HOUR)
    for window in (minutes, hours):
        found = other.totals(window)
        assert [(each.time, each.type, each.outcome) for each in found] == [
            (None, "a", "finished"),
            (None, "ä'", "failed"),
        ]
        assert [each.sums for each in found] == [everything, failed]
    by_minute = other.totals(minutes, by_time=True)
    assert [(each.time, each.type, each.outcome, each.sums.runs) for each in by_minute] == [
        (begin, None, "failed", 1),
        (begin, None, "finished", 5),
        (begin + MINUTE, None, "finished", 1),
    ]
    assert [(each.time, each.sums) for each in other.totals(hours, by_time=True)] == [
        (begin, failed),
        (begin, everything),
    ]
    of_type = StatsWindow(begin, begin + MINUTE, MINUTE, "a")
    assert [(each.type, each.sums.runs) for each in stats.totals(of_type)] == [("a", 5)]
    assert stats.totals(StatsWindow(begin - HOUR, begin, MINUTE)) == []


@pytest.mark.parametrize("bare", [("rdb", database) for database in DATABASES], indirect=True, ids="-".join)
def test_the_tables_of_one_database_are_counted_apart(bench: Bench, store: ScheduleStore) -> None:
    begin = this_hour(store)
    kind = RunKind(begin - 40 * 24 * HOUR, "a", "finished")
    stats_of(store).add("one", [(kind, sums((1, 1)))], MONTH)
    bench.execute("UPDATE psched_stats SET table_name = 'another'")
    stats_of(store).purge(MONTH, 100)
    assert times(stats_of(store), HOUR, (kind.minute,)) == []
    bench.execute(f"UPDATE psched_stats SET table_name = '{bench.table}'")
    assert times(stats_of(store), HOUR, (kind.minute,)) == [kind.minute]


@on_our_tables
def test_minutes_are_kept_for_two_days_and_hours_for_the_retention(bench: Bench, store: ScheduleStore) -> None:
    stats, hour = stats_of(store), this_hour(store)
    long_ago, old, new = hour - 40 * 24 * HOUR, hour - round(MINUTES_KEPT) - HOUR, hour
    for begin in (long_ago, old, new):
        stats.add("one", [(RunKind(begin, "a", "finished"), sums((1, 1)))], MONTH)
    while stats.purge(MONTH, 1):
        pass
    assert times(stats, MINUTE, (long_ago, old, new)) == [new]
    assert times(stats, HOUR, (long_ago, old, new)) == [old, new]
    if bench.database != "redis":  # where hashes got their time of expiry when they were written
        stats.purge(0, 100)
        assert times(stats, HOUR, (long_ago, old)) == []


def times(stats: RunStats, span: int, begins: tuple[int, ...]) -> list[int]:
    return [begin for begin in begins if stats.totals(StatsWindow(begin, begin + span, span))]


@on_our_tables
def test_a_write_whose_answer_was_lost_counts_once(bench: Bench, store: ScheduleStore) -> None:
    begin = this_hour(store)
    stats = stats_of(store)
    kind = RunKind(begin, "a", "finished")
    stats.add("one", [(kind, sums((1, 1)))], MONTH)
    with answer_lost(bench.database, 1):
        stats.add("one", [(kind, sums((1, 1)))], MONTH)
    [found] = stats.totals(StatsWindow(begin, begin + HOUR, HOUR))
    assert found.sums.runs == 2


@pytest.mark.parametrize("bare", [("rdb", database) for database in DATABASES], indirect=True, ids="-".join)
def test_a_write_of_many_kinds_is_one_statement(store: ScheduleStore) -> None:
    begin = this_hour(store)
    counted = [(RunKind(begin + MINUTE * (n % 3), f"t{n}", "finished"), sums((n, n))) for n in range(200)]
    seen: list[str] = []
    with after_each(seen.append):
        stats_of(store).add("one", counted, MONTH)
    assert [statement.split()[0] for statement in seen if "psched_stats" in statement] == ["INSERT"]
    [*found] = stats_of(store).totals(StatsWindow(begin, begin + HOUR, MINUTE))
    assert len(found) == 200 and sum(each.sums[2] for each in found) == 1_000_000 * sum(range(200))


PLANNED: dict[str, Callable[[RunStats, int], object]] = {
    "add": lambda stats, begin: stats.add("n1", [(RunKind(begin, "t1", "finished"), sums((1, 1)))], MONTH),
    "purge": lambda stats, begin: stats.purge(MONTH, 100),
    "totals": lambda stats, begin: stats.totals(StatsWindow(begin, begin + 2 * MINUTE, MINUTE)),
    "totals of a type": lambda stats, begin: stats.totals(StatsWindow(begin, begin + 5 * MINUTE, MINUTE, "t1")),
    "by time": lambda stats, begin: stats.totals(StatsWindow(begin, begin + 2 * MINUTE, MINUTE), by_time=True),
}


@pytest.mark.parametrize("bare", [("rdb", database) for database in DATABASES], indirect=True, ids="-".join)
def test_each_statement_reads_few_of_many_rows(bench: Bench, store: ScheduleStore) -> None:
    stats, begin = stats_of(store), this_hour(store)
    kinds = [RunKind(begin + MINUTE * minute, f"t{n}", "finished") for minute in range(60) for n in range(20)]
    for node in ("n1", "n2", "n3"):
        stats.add(node, [(kind, sums((1, 1))) for kind in kinds], MONTH)
    bench.execute({"sqlite": "ANALYZE", "mysql": "ANALYZE TABLE psched_stats"}.get(bench.database, "ANALYZE"))
    for name, ask in PLANNED.items():
        ask(stats, begin)
        with watched(bench, table="psched_stats") as watch:
            ask(stats, begin)
        story = "\n".join([name, *watch.statements, *watch.plans, str(watch.reads)])
        assert watch.statements or name == "add", name
        assert sum(watch.reads) <= 700, story  # of 3,660
        assert not [plan for plan in watch.plans if plan.startswith("SCAN psched_stats")], story


def test_a_histogram_tells_percentiles() -> None:
    found = sums(*[(0.0015, 0.3)] * 90, *[(30.0, None)] * 9, (20_000.0, None))
    assert found.runs == 100
    assert 0.001 < (found.duration(0.5) or 0) < 0.002
    assert 20 < (found.duration(0.95) or 0) <= 50
    assert found.duration(1) == BOUNDS[-1]
    assert 0.2 < (found.wait(0.99) or 0) <= 0.5
    assert found.mean_duration == pytest.approx((90 * 0.0015 + 270 + 20_000) / 100)
    assert (RunSums().duration(0.5), RunSums().wait(0.5), RunSums().mean_duration) == (None, None, None)
