"""Advancing many schedules by one call: each as if alone, whatever the others' results, and each is recorded."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from psched.errors import AlreadyFinishedError, NotFoundError, PreemptedError
from psched.model import Claim, Policy, Rule, ScheduleRow
from psched.store import ScheduleStore
from psched.store.ledger import SKIPPED, Entry, LedgerFilter, Step
from tests.stores.bench import FAR_OFF, HOURLY, LONG_AGO, Bench, soon

KEYS = ["a", "b 'quoted' \\", "c ÄÖ 😀", "d"]


def taken(bench: Bench, store: ScheduleStore, keys: list[str]) -> list[Claim]:
    for key in keys:
        bench.add(store, key)
    claims = store.acquire(len(keys), 100)
    assert sorted(claim.row.key for claim in claims) == sorted(keys)
    return claims


def steps_of(claims: list[Claim]) -> list[Step]:
    return [Step(claim, FAR_OFF + n, FAR_OFF + n) for n, claim in enumerate(claims)]


def times(store: ScheduleStore, key: str) -> tuple[int, float, bool]:
    row = store.get(key)
    assert row is not None
    return row.next_time, row.next_run_time, row.settled


def entries(store: ScheduleStore) -> list[tuple[str, int, str]]:
    if store.ledger is None:
        return []
    return sorted((row.key, row.scheduled_time, row.outcome) for row in store.ledger.rows(LedgerFilter()))


def test_all_are_advanced_and_recorded(bench: Bench, store: ScheduleStore) -> None:
    keys = [key for key in KEYS if bench.takes(key)]
    steps = steps_of(taken(bench, store, keys))
    assert store.advance_many(steps, soon()) == [None] * len(keys)
    for step in steps:
        assert times(store, step.claim.row.key) == (step.next_time, step.next_run_time, True)
    if store.ledger is not None:
        assert entries(store) == [(key, LONG_AGO, "finished") for key in keys]
    assert store.advance_many([], soon()) == []


def _outcomes(endings: str) -> list[str]:
    """Return the outcomes in a row's record of its last leases.

    In it each outcome follows a fence and an acquire's number.
    """
    return [ended.rpartition(":")[2] for ended in endings.split(";")]


def test_what_is_advanced_with_others_is_stored_and_recorded_as_what_is_advanced_alone(
    bench: Bench, store: ScheduleStore
) -> None:
    policy = Policy(alert_after=60) if store.alerts is not None else Policy()
    for key in ("alone", "one", "two"):
        store.add(key, "t", HOURLY, LONG_AGO, LONG_AGO, {}, policy)
    for claim in store.acquire(3, 100):
        store.retry(claim.lease, 0, "it broke", soon())
    claims = {claim.row.key: claim._replace(started=LONG_AGO) for claim in store.acquire(3, 100)}
    entry = Entry(SKIPPED, "late", LONG_AGO, LONG_AGO + 7200, 3)
    store.advance(claims["alone"], FAR_OFF, FAR_OFF + 30, soon(), entry=entry)
    steps = [Step(claims[key], FAR_OFF, FAR_OFF + 30, entry) for key in ("one", "two")]
    assert store.advance_many(steps, soon()) == [None, None]
    alone, one = bench.raw("alone"), bench.raw("one")
    assert alone is not None
    assert one is not None
    differ = {name for name in alone if alone[name] != one.get(name)}
    assert differ <= {"key", "id", "nonce", "claim", "created", "updated", "fence", "ready", "version", "endings"}
    if "endings" in alone:  # each has its fence, which differs by the millisecond in which the row was added
        assert _outcomes(alone["endings"]) == _outcomes(one["endings"])
    if store.ledger is not None:
        rows = {row.key: row for row in store.ledger.rows(LedgerFilter())}
        assert rows["one"] == replace(
            rows["alone"], key="one", ended=rows["one"].ended, fence=rows["one"].fence, version=rows["one"].version
        )
        assert rows["one"].error == "it broke"


def test_each_is_told_what_became_of_it_and_the_others_are_advanced(
    bench: Bench, store: ScheduleStore, other: ScheduleStore
) -> None:
    claims = taken(bench, store, ["a", "changed", "deleted", "m", "settled", "stale", "z"])
    lost = {claim.row.key: claim for claim in claims}
    seen = other.get("changed")
    assert seen is not None
    new = Rule("*/5 * * * *", "UTC", 7)
    assert other.modify(seen, replace(seen, rule=new))
    other.delete("deleted")
    (step,) = [step for step in steps_of(claims) if step.claim.row.key == "settled"]
    store.advance(step.claim, step.next_time, step.next_run_time, soon())
    stale = lost["stale"]
    claims[claims.index(stale)] = stale._replace(lease=stale.lease._replace(fence=stale.lease.fence - 1))
    before = {key: bench.raw(key) for key in ("changed", "settled", "stale")}
    steps = steps_of(claims)
    found = dict(zip((claim.row.key for claim in claims), store.advance_many(steps, soon()), strict=True))
    assert [key for key, answer in found.items() if answer is None] == ["a", "m", "z"]
    changed = found["changed"]
    assert isinstance(changed, ScheduleRow)
    assert changed.rule == new
    assert isinstance(found["deleted"], NotFoundError)
    assert isinstance(found["settled"], AlreadyFinishedError)
    assert isinstance(found["stale"], PreemptedError)
    assert {key: bench.raw(key) for key in before} == before
    assert [times(store, key)[2] for key in ("a", "m", "z")] == [True] * 3
    if store.ledger is not None:
        assert [key for key, _, _ in entries(store)] == ["a", "m", "settled", "z"]


def test_one_that_is_not_as_it_was_is_enough_to_look_at_each(bench: Bench, store: ScheduleStore) -> None:
    changes: dict[str, dict[str, Any]] = {
        "a": {"cron": "5 * * * *"},
        "b": {"timezone": "Asia/Tokyo"},
        "c": {"delay": 7},
    }
    claims = taken(bench, store, ["a", "b", "c", "fence", "w", "x", "y", "z"])
    for claim, second in zip(claims[:4], claims[4:], strict=True):
        key, first = claim.row.key, claim
        seen = store.get(key)
        assert seen is not None
        if key in changes:
            assert store.modify(seen, replace(seen, rule=replace(seen.rule, **changes[key])))
        else:
            first = claim._replace(lease=claim.lease._replace(fence=claim.lease.fence - 1))
        before = bench.raw(key)
        refused, done = store.advance_many(steps_of([first, second]), soon())
        assert isinstance(refused, ScheduleRow if key in changes else PreemptedError)
        assert done is None
        assert bench.raw(key) == before
    assert store.ledger is None or [key for key, _, _ in entries(store)] == ["w", "x", "y", "z"]
