"""If the configuration names a hook, a run that has failed for good is stored until the hook has been told."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from dataclasses import replace
from typing import Protocol

import pytest
import sqlalchemy as sa

from psched.backends import open_stores
from psched.model import NewTask
from psched.store import LeaseStore, ScheduleStore, StoreSettings, TaskStore
from psched.store.ledger import FAILED, Entry
from tests.stores.bench import FAR_OFF, HOURLY, LONG_AGO, Bench, eventually, soon
from tests.stores.rows import RedisRows
from tests.stores.statements import watched
from tests.stores.test_plans import see_that_few_rows_were_read, stop_analysing


class Keep(Protocol):
    """Opens a store of schedules, or a queue in the same database, which stores runs that have failed for good."""

    def __call__(self, kind: str, keeps_failures: bool = True) -> LeaseStore: ...


@pytest.fixture
def keep(bench: Bench, store: ScheduleStore) -> Iterator[Keep]:
    queue = f"queue_{secrets.token_hex(4)}"
    opened: list[LeaseStore] = []

    def open_one(kind: str, keeps_failures: bool = True) -> LeaseStore:
        table = bench.table if kind == "schedules" else queue
        settings = StoreSettings(bench.url, "host/9/9", keeps_failures=keeps_failures, **{kind: table})
        stores = open_stores(bench.type, settings)
        found = stores.schedules if stores.queue is None else stores.queue
        assert found is not None
        opened.append(found)
        if kind == "queue":
            found.create_tables()
        return found

    yield open_one
    for each in opened:
        each.close()


def fail(store: LeaseStore, key: str, error: str | None = "it broke") -> None:
    """Add a row with one attempt, and let this attempt fail for good."""
    if hasattr(store, "submit"):
        queue: TaskStore = store
        assert queue.submit([NewTask(key, "type1", run_at=LONG_AGO)]) == []
        [claim] = queue.acquire(1, 100)
        queue.retire(claim, "failed", error, None, soon())
    else:
        schedules: ScheduleStore = store  # type: ignore[assignment]
        schedules.add(key, "type1", HOURLY, LONG_AGO, LONG_AGO, {})
        [claim] = schedules.acquire(1, 100)
        claim = claim._replace(row=replace(claim.row, last_error=error))  # type: ignore[type-var]
        assert schedules.advance(claim, FAR_OFF, FAR_OFF, soon(), entry=Entry(FAILED)) is None


@pytest.fixture(params=["schedules", "queue"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.mark.parametrize("error", ["it broke \N{PILE OF POO}", None])
def test_a_failure_is_reported_once(keep: Keep, kind: str, error: str | None) -> None:
    ours = keep(kind)
    assert ours.failures is not None
    assert ours.failures.claim(60) is None
    before = ours.now()
    fail(ours, "key 'quoted' ü", error)
    failure = ours.failures.claim(60)
    assert failure is not None
    assert (failure.key, failure.type, failure.scheduled_time) == ("key 'quoted' ü", "type1", LONG_AGO)
    assert (failure.attempts, failure.error, failure.node) == (1, error, "host/9/9")
    assert before - 0.01 <= failure.failed_at <= ours.now()
    assert ours.failures.claim(60) is None, "another node is telling"
    ours.failures.mark_reported(failure)
    ours.failures.mark_reported(failure)
    assert ours.failures.claim(0) is None


def test_a_failure_that_was_claimed_and_not_told_is_claimed_again(keep: Keep, kind: str) -> None:
    ours, others = keep(kind), keep(kind)
    assert ours.failures is not None
    assert others.failures is not None
    fail(ours, "key")
    first = ours.failures.claim(0.05)
    failures = others.failures
    again = eventually(lambda: failures.claim(60))
    assert again == first


def test_each_failure_is_claimed_by_one(keep: Keep, kind: str) -> None:
    ours, others = keep(kind), keep(kind)
    for n in range(4):
        fail(ours, f"key{n}")
    claimed = [each.failures.claim(60) for each in (ours, others) * 3 if each.failures is not None]
    assert sorted(one.key for one in claimed if one is not None) == [f"key{n}" for n in range(4)]


def test_without_a_hook_nothing_is_kept(keep: Keep, kind: str) -> None:
    ours = keep(kind, keeps_failures=False)
    fail(ours, "key")
    assert ours.failures is not None
    assert ours.failures.claim(60) is None


def test_what_is_not_settled_is_no_failure(bench: Bench, store: ScheduleStore, keep: Keep) -> None:
    ours = keep("schedules")
    bench.add(store, "key")
    [claim] = store.acquire(1, 100)
    stale = claim._replace(lease=claim.lease._replace(fence=claim.lease.fence - 1))
    with pytest.raises(Exception, match="lease of this run is lost"):
        ours.advance(stale, FAR_OFF, FAR_OFF, soon(), entry=Entry(FAILED))  # type: ignore[attr-defined]
    assert ours.failures is not None
    assert ours.failures.claim(60) is None


def keep_as_told(bench: Bench, keys: list[str], until: int = FAR_OFF) -> None:
    """Store failures that other nodes are reporting at this moment, or reported in vain until `until`."""
    if isinstance(bench.rows, RedisRows):
        bench.rows.client.zadd(f"{bench.rows.prefix}unreported", dict.fromkeys(keys, until * 1000))
        return
    with bench.connect() as connection:
        table = sa.Table(f"{bench.table}_failures", sa.MetaData(), autoload_with=connection)
        [row] = connection.execute(sa.select(table)).mappings()
        told = [{**row, "key": key, "claimed_until": until * 1000} for key in keys]
        connection.execute(table.insert(), told)


def keep_many(bench: Bench, keep: Keep, until: int) -> LeaseStore:
    """Return a store with the failure of "key" and 3,000 others that are reported until `until`."""
    stop_analysing(bench)
    ours = keep("schedules")
    fail(ours, "key")
    keep_as_told(bench, [f"key{n:04}" for n in range(3000)], until)
    return ours


@pytest.mark.new_table
def test_a_claim_reads_few_of_many_failures(bench: Bench, keep: Keep) -> None:
    ours = keep_many(bench, keep, until=0)
    assert ours.failures is not None
    with watched(bench) as watch:
        assert ours.failures.claim(60) is not None
    see_that_few_rows_were_read(watch)


@pytest.mark.new_table
def test_a_claim_reads_few_failures_where_many_are_being_told(bench: Bench, keep: Keep) -> None:
    ours = keep_many(bench, keep, until=FAR_OFF)
    assert ours.failures is not None
    with watched(bench) as watch:
        failure = ours.failures.claim(60)
        assert failure is not None
        ours.failures.mark_reported(failure)
        assert ours.failures.claim(60) is None
    see_that_few_rows_were_read(watch)
    assert failure.key == "key"
