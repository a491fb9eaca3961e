"""Large schedules: how many one acquire takes, and what is stored of their size."""

from __future__ import annotations

from psched.model import LeaseTimes, Rule
from psched.schedules.collection import Defaults, ScheduleCollection
from psched.store import ScheduleStore
from tests.stores.bench import LONG_AGO, Bench, keys_of
from tests.stores.databases import on_our_tables

MB = 1_000_000
KEYS = ["a", "b", "c", "d", "e"]
pytestmark = on_our_tables


def test_an_acquire_takes_16_mb_and_one_schedule_at_least(bench: Bench, store: ScheduleStore) -> None:
    bench.fill(store, KEYS, lambda i: LONG_AGO + i)
    for key, size in zip(KEYS, [17 * MB, 6 * MB, 6 * MB, 4 * MB, 1], strict=True):
        bench.write(key, size=size)
    rounds = [keys_of(store.acquire(10, 100)) for _ in range(4)]
    assert rounds == [["a"], ["b", "c", "d"], ["e"], []]


def test_of_some_types_it_takes_as_much(bench: Bench, store: ScheduleStore) -> None:
    for key, type_ in zip(KEYS, ["t", "u", "t", "u", "v"], strict=True):
        bench.add(store, key, type=type_)
        bench.write(key, size=7 * MB)
    assert [len(store.acquire(10, 100, ["t", "u"])) for _ in range(3)] == [2, 2, 0]


def test_the_size_of_the_json_is_stored(bench: Bench, store: ScheduleStore) -> None:
    bench.add(store, "key", data={"a": "ä" * 1000}, rule=Rule("0 * * * *", "UTC"))
    assert size_in(bench) == len('{"a":""}') + 2000
    schedules = ScheduleCollection(store, LeaseTimes(300, 300, 15), Defaults("UTC"))
    schedules["key"].modify(data={"b": 1})
    assert size_in(bench) == 7


def size_in(bench: Bench) -> int:
    row = bench.raw("key")
    assert row is not None
    return int(row["size"])
