"""The audit, on each store with a ledger: it accounts for every occurrence that was due, or reports a violation."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import cast

import pytest

from psched.backends import open_stores
from psched.model import LeaseTimes, ScheduleRow
from psched.schedules.audit_result import Verdict, Why
from psched.schedules.collection import Defaults, ScheduleCollection
from psched.store import ScheduleStore, StoreSettings
from psched.store.ledger import Entry
from tests.stores.bench import Bench, soon
from tests.stores.databases import KINDS, SharedDatabases

HOUR = 3600
STORES = [*(("rdb", database) for database in ("sqlite", *KINDS)), ("redis", "redis")]
WITH_COMPAT = [*STORES, *(("rdb_compat", database) for database in ("sqlite", *KINDS))]


@pytest.fixture(params=WITH_COMPAT, ids="-".join)
def bare(request: pytest.FixtureRequest, databases: SharedDatabases, tmp_path: Path) -> Iterator[Bench]:
    """A table of each store with a ledger, on each database. The table does not exist yet."""
    type_, database = request.param
    bench = databases.bench(type_, database, tmp_path)
    try:
        yield bench
    finally:
        bench.close()


@pytest.fixture
def store(bare: Bench, databases: SharedDatabases) -> Iterator[ScheduleStore]:
    """A store on the table of `bare`, with its ledger."""
    with contextlib.nullcontext() if bare.compat else databases.made(bare):
        ledger = bare.table if bare.compat else None
        settings = StoreSettings(bare.url, "host/1/h", bare.table, reckoning="vixie 2026a", ledger=ledger)
        store = open_stores(bare.type, settings).schedules
        assert store is not None
        with contextlib.closing(store):
            if bare.compat:
                store.create_tables()
            yield store


@pytest.fixture
def schedules(store: ScheduleStore) -> ScheduleCollection:
    return ScheduleCollection(store, LeaseTimes(300, 300, 300), Defaults("UTC"))


@pytest.fixture
def begin(store: ScheduleStore) -> int:
    """Return the begin of an hour about two days ago, in unix seconds."""
    return int(store.now()) // HOUR * HOUR - 48 * HOUR


def judged(schedules: ScheduleCollection, since: int, until: int | None = None, late: float | None = None) -> Verdict:
    [verdict] = schedules.audit(since, int(schedules.store.now()) if until is None else until, late=late)
    return verdict


def found(verdict: Verdict) -> list[tuple[str, int, int]]:
    return [(violation.kind, violation.time, violation.count) for violation in verdict.violations]


def advance(store: ScheduleStore, entry: Entry, next_time: int | None = None) -> int:
    """Settle the due run by `entry`, with `next_time` (default: an hour later) as the next occurrence.

    Return the run's occurrence.
    """
    [claim] = store.acquire(1, 100)
    row = cast("ScheduleRow", claim.row)
    following = (row.next_time if entry.last is None else entry.last) + HOUR if next_time is None else next_time
    assert store.advance(claim, following, following, soon(), None, entry) is None
    return row.next_time


def test_what_never_ran_is_missing_wherever_the_window_begins(schedules: ScheduleCollection, begin: int) -> None:
    schedules.add("key", "t", cron="0 * * * *", next_time=begin)
    assert found(judged(schedules, begin + 24 * HOUR + 1, begin + 47 * HOUR)) == [("missing", begin + 25 * HOUR, 23)]
    assert found(judged(schedules, begin - HOUR, begin + 47 * HOUR)) == [("missing", begin, 48)]
    assert judged(schedules, begin - HOUR, begin - 1).expected == 0


def test_what_came_after_the_last_run_is_missing(
    store: ScheduleStore, schedules: ScheduleCollection, begin: int
) -> None:
    schedules.add("key", "t", cron="0 * * * *", next_time=begin)
    advance(store, Entry())
    advance(store, Entry())
    verdict = judged(schedules, begin, begin + 9 * HOUR)
    assert (verdict.ran, found(verdict)) == (2, [("missing", begin + 2 * HOUR, 8)])
    assert judged(schedules, begin, begin + 2 * HOUR - 1).violations == []


def test_a_run_in_progress_is_no_violation_and_a_failure_is(
    bare: Bench, schedules: ScheduleCollection, begin: int
) -> None:
    schedules.add("key", "t", cron="0 0 1 1 *", next_time=begin - 400 * 24 * HOUR)
    time = schedules["key"].metadata().next_time
    task = schedules.poll()
    assert task is not None
    verdict = judged(schedules, time, time + HOUR)
    task.retry(0, error="Traceback\nValueError: it broke")
    failing = judged(schedules, time, time + HOUR)
    if bare.compat:  # its table does not tell a run from the wait for a retry, nor how often it was begun
        assert found(verdict) == [("unknown", time, 1)]
        assert found(failing) == [("missing", time, 1)]
        return
    assert (verdict.running, verdict.expected, verdict.violations) == (1, 1, [])
    assert found(failing) == [("missing", time, 1)]
    assert failing.violations[0].what == "it failed once, the last error: ValueError: it broke"


def test_what_waits_behind_a_failing_occurrence_says_so(bare: Bench, schedules: ScheduleCollection, begin: int) -> None:
    schedules.add("key", "t", cron="0 * * * *", next_time=begin)
    task = schedules.poll()
    assert task is not None
    task.retry(500, error="Traceback\nValueError: it broke")
    verdict = judged(schedules, begin + 1, begin + 2 * HOUR)
    assert found(verdict) == [("missing", begin + HOUR, 2)]
    [waiting] = verdict.violations
    if bare.compat:
        assert waiting.why == Why("it waits behind an occurrence that is running, or waits for a retry", begin)
        return
    what = "it waits behind an occurrence that failed once, the last error: ValueError: it broke"
    assert waiting.why == Why(what, begin, schedules["key"].metadata().next_run_time)


def test_what_was_skipped_without_right_is_accused(
    store: ScheduleStore, schedules: ScheduleCollection, begin: int
) -> None:
    schedules.add("key", "t", cron="0 * * * *", next_time=begin)
    advance(store, Entry("skipped", "late", last=begin + 4 * HOUR, count=5))
    advance(store, Entry("skipped", "superseded"))
    verdict = judged(schedules, begin, begin + 5 * HOUR)
    assert found(verdict) == [("unpermitted", begin, 5), ("unpermitted", begin + 5 * HOUR, 1)]
    assert (verdict.skipped, verdict.expected) == (0, 6)


@pytest.mark.parametrize("bare", STORES, indirect=True, ids="-".join)
def test_what_the_policy_permits_is_not(store: ScheduleStore, schedules: ScheduleCollection, begin: int) -> None:
    schedules.add("key", "t", cron="0 * * * *", next_time=begin, catch_up="latest", max_lateness=9 * HOUR)
    [task] = schedules.poll_multi(1)
    task.finish()
    schedules["key"].modify(catch_up="all", max_lateness=None)
    verdict = judged(schedules, begin, task.scheduled_time)
    assert (verdict.violations, verdict.ran, verdict.reasons) == ([], 1, {"superseded"})
    assert verdict.skipped == (task.scheduled_time - begin) // HOUR


def test_what_finished_twice_is_doubled(store: ScheduleStore, schedules: ScheduleCollection, begin: int) -> None:
    schedules.add("key", "t", cron="0 * * * *", next_time=begin)
    advance(store, Entry(), next_time=begin)
    advance(store, Entry())
    verdict = judged(schedules, begin, begin)
    assert found(verdict) == [("doubled", begin, 1)]
    assert "it is recorded twice: finished by host/1/h under fence" in verdict.violations[0].what


def test_what_no_rule_asks_for_is_extra(store: ScheduleStore, schedules: ScheduleCollection, begin: int) -> None:
    schedules.add("key", "t", cron="0 * * * *", next_time=begin)
    advance(store, Entry(), next_time=begin + 60)
    advance(store, Entry(), next_time=begin + HOUR)
    assert found(judged(schedules, begin, begin + HOUR - 1)) == [("extra", begin + 60, 1)]


def test_what_was_given_up_is_failed(store: ScheduleStore, schedules: ScheduleCollection, begin: int) -> None:
    schedules.add("key", "t", cron="0 * * * *", next_time=begin)
    advance(store, Entry("failed"))
    verdict = judged(schedules, begin, begin)
    assert (found(verdict), verdict.failed) == ([("failed", begin, 1)], 1)


def test_what_began_before_its_time_is_early(store: ScheduleStore, schedules: ScheduleCollection, begin: int) -> None:
    schedules.add("key", "t", cron="0 * * * *", next_time=begin)
    advance(store, Entry(started=begin - 2))
    advance(store, Entry())
    assert found(judged(schedules, begin, begin + HOUR)) == [("early", begin, 1)]


def test_a_change_during_the_audit_is_no_violation(
    store: ScheduleStore, schedules: ScheduleCollection, begin: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    schedules.add("key", "t", cron="0 * * * *", next_time=begin)
    advance(store, Entry())
    get_many = store.get_many
    times = iter([begin + 30 * 60])

    def changed_before(keys: Sequence[str]) -> list[ScheduleRow]:
        monkeypatch.setattr(store, "get_many", get_many)
        for time in times:
            schedules["key"].modify(cron="30 * * * *", next_time=time)
            advance(store, Entry())
        return get_many(keys)

    monkeypatch.setattr(store, "get_many", changed_before)
    verdict = judged(schedules, begin, begin + HOUR)
    assert (verdict.ran, verdict.violations) == (2, [])


def test_the_audit_reads_its_entries_page_by_page(
    bare: Bench, store: ScheduleStore, schedules: ScheduleCollection, begin: int
) -> None:
    schedules.add("key", "t", cron="* * * * *", next_time=begin)
    advance(store, Entry(), next_time=begin + 1500 * 60)
    entries = [{"scheduled_time": (begin + n * 60) * 1000, "fence": 10 + n} for n in range(1500) if n != 700]
    rows = replace_entries(bare, entries)
    verdict = judged(schedules, begin, begin + 1499 * 60)
    assert (verdict.ran, found(verdict)) == (rows, [("missing", begin + 700 * 60, 1)])


def replace_entries(bare: Bench, entries: list[dict[str, int]]) -> int:
    """Replace the only entry by these copies of it. Return the number of copies."""
    bare.rows.copy_entry(entries)
    return len(entries)
