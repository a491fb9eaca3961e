"""Retrying many rows by one call: each as if alone, whatever the others' results. So an invalid row delays no other."""

from __future__ import annotations

import logging

import pytest

from psched.acquisition.task_source import TaskSource
from psched.backends.sql.database import Database, Work
from psched.errors import NotFoundError, PreemptedError
from psched.model import Claim, LeaseTimes, Retry
from psched.schedules.settlement import ScheduleSettlement
from psched.store import ScheduleStore
from tests.stores.bench import LONG_AGO, Bench, soon
from tests.stores.statements import watched

MALFORMED = 300


def taken(bench: Bench, store: ScheduleStore, keys: list[str]) -> dict[str, Claim]:
    for key in keys:
        bench.add(store, key)
    return {claim.row.key: claim for claim in store.acquire(len(keys), 100)}


def kept(bench: Bench, key: str) -> dict[str, object]:
    """Return the stored values of a row, without those that depend on the row or the time of the write."""
    row = bench.raw(key)
    assert row is not None
    return {name: row[name] for name in ("status", "attempts", "last_error", "crashes", "holder") if name in row}


def test_what_is_retried_with_others_is_stored_as_what_is_retried_alone(bench: Bench, store: ScheduleStore) -> None:
    claims = taken(bench, store, ["alone", "one", f"two 'quoted' \\ {'€' if bench.compat else '😀'}"])
    store.retry(claims["alone"].lease, 1000, "it broke", soon())
    rest = [claim for key, claim in claims.items() if key != "alone"]
    assert store.retry_many([Retry(claim.lease, 1000, "it broke") for claim in rest], soon()) == [None, None]
    for claim in rest:
        assert kept(bench, claim.row.key) == kept(bench, "alone")
        row, alone = store.get(claim.row.key), store.get("alone")
        assert row is not None
        assert alone is not None
        assert abs(row.next_run_time - alone.next_run_time) < 60
    assert store.retry_many([], soon()) == []


def test_each_waits_as_long_as_it_is_reported_and_keeps_its_own_error(bench: Bench, store: ScheduleStore) -> None:
    claims = taken(bench, store, ["a", "b"])
    waits = {"a": Retry(claims["a"].lease, 1000, "first"), "b": Retry(claims["b"].lease, 5000, None)}
    store.retry_many(list(waits.values()), soon())
    found = {row.key: row for row in store.list()}
    assert {row.attempts for row in found.values()} == {0 if bench.compat else 1}
    assert 3900 < found["b"].next_run_time - found["a"].next_run_time < 4100
    if not bench.compat:
        assert (found["a"].last_error, found["b"].last_error) == ("first", None)


def test_each_is_told_what_became_of_it_and_the_others_are_retried(
    bench: Bench, store: ScheduleStore, other: ScheduleStore
) -> None:
    claims = taken(bench, store, ["a", "deleted", "stale", "z"])
    other.delete("deleted")
    lease = claims["stale"].lease
    before = bench.raw("stale")
    leases = [claims["a"].lease, claims["deleted"].lease, lease._replace(fence=lease.fence - 1), claims["z"].lease]
    done, gone, lost, last = store.retry_many([Retry(lease, 1000, None) for lease in leases], soon())
    assert (done, last) == (None, None)
    assert isinstance(gone, NotFoundError)
    assert isinstance(lost, PreemptedError)
    assert bench.raw("stale") == before
    assert [store.extend([claims[key].lease], 100) for key in ("a", "z")] == [[None], [None]]


def test_what_was_retried_though_the_answer_was_lost_is_no_lost_lease(
    bench: Bench, store: ScheduleStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only on SQL: Redis uses other code, which tests/faults/test_redis.py tests."""
    run = Database.run

    def lost(database: Database, work: Work[object], until: float | None = None) -> object:
        run(database, work, until)
        return run(database, lambda connection, _: work(connection, True), until)

    claims = taken(bench, store, ["a", "b"])
    with monkeypatch.context() as fault:
        fault.setattr(Database, "run", lost)
        assert store.retry_many([Retry(claim.lease, 50, None) for claim in claims.values()], soon()) == [None, None]
    assert store.acquire(2, 100) == []


def test_what_stands_behind_malformed_rows_waits_for_a_few_statements_only(
    bench: Bench, store: ScheduleStore, caplog: pytest.LogCaptureFixture
) -> None:
    bench.fill(store, [f"bad-{n:03}" for n in range(MALFORMED)], lambda n: LONG_AGO + n)
    store.delete("bad-000")
    for n in range(1, MALFORMED):
        bench.write(f"bad-{n:03}", cron="61 * * * *")
    bench.add(store, "good", due=LONG_AGO + MALFORMED)
    source = TaskSource(store, ScheduleSettlement(store, "vixie"), LeaseTimes(300, 1000, 15))
    with caplog.at_level(logging.ERROR, "psched"), watched(bench) as watch:
        assert [task.key for task in source.poll_multi(100)] == ["good"]
    assert len([record for record in caplog.records if "cannot be run" in record.message]) == MALFORMED - 1
    assert len({record.message for record in caplog.records}) == MALFORMED - 1
    assert len(watch.statements) < 30
    bad = store.get("bad-001")
    assert bad is not None
    assert bad.attempts == 0, "what was not begun is no attempt"
