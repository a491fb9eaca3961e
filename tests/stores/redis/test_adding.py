"""Many schedules in one call are added in parts, so that no other client waits for long."""

from __future__ import annotations

import pytest
import redis

from psched.backends.redis.schedule_store import RedisScheduleStore
from psched.model import Rule, ScheduleRow
from psched.store import ScheduleStore
from tests.stores.bench import FAR_OFF, Bench
from tests.stores.lost_answers import refuse_second_part
from tests.stores.rows import RedisRows


def schedules(count: int, size: int = 1) -> list[ScheduleRow]:
    rule = Rule("0 * * * *", "UTC")
    data = {"a": "x" * size}
    rows = (f"key{n:05}" for n in range(count))
    return [ScheduleRow(key, "t", data, "waiting", rule=rule, next_time=FAR_OFF, next_run_time=FAR_OFF) for key in rows]


def keys_in(store: ScheduleStore) -> list[str]:
    return sorted(row.key for row in store.list())


@pytest.mark.parametrize(("count", "size"), [(1200, 1), (300, 30_000)])
def test_many_schedules_are_added_in_parts(bench: Bench, store: ScheduleStore, count: int, size: int) -> None:
    assert isinstance(bench.rows, RedisRows)
    assert store.add_many(schedules(1)) == []  # the server knows the script
    new = schedules(count, size)
    before = bench.rows.calls_of_scripts()
    assert store.add_many(new) == ["key00000"]
    assert bench.rows.calls_of_scripts() - before == 3
    assert keys_in(store) == [row.key for row in new]


def test_an_add_that_failed_midway_may_be_repeated(store: ScheduleStore, monkeypatch: pytest.MonkeyPatch) -> None:
    assert isinstance(store, RedisScheduleStore)
    new = schedules(1200)
    refuse_second_part(monkeypatch, store, "_add")
    with pytest.raises(redis.ResponseError):
        store.add_many(new)
    assert len(keys_in(store)) == 500
    assert store.add_many(new) == [row.key for row in new[:500]]
    assert len(keys_in(store)) == 1200


def test_nothing_is_written_when_the_last_one_cannot_be(store: ScheduleStore) -> None:
    last = ScheduleRow(
        "bad",
        "t",
        {"a": float("nan")},
        "waiting",
        rule=Rule("0 * * * *", "UTC"),
        next_time=FAR_OFF,
        next_run_time=FAR_OFF,
    )
    with pytest.raises(ValueError, match="JSON"):
        store.add_many([*schedules(600), last])
    assert keys_in(store) == []
