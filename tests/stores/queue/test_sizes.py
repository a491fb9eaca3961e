"""Large data: how much one acquire takes, which sizes are stored, and data that is too large to be read."""

from __future__ import annotations

import base64
import gzip
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest

from psched.acquisition.task_source import TaskSource
from psched.backends import open_stores
from psched.model import Claim, LeaseTimes, NewTask, TaskFilter
from psched.queue.settlement import TaskSettlement
from psched.store import StoreSettings, TaskStore
from tests.stores.bench import LONG_AGO, soon
from tests.stores.queue.bench import QueueBench, keys_in, row_of
from tests.stores.sent_statements import before_each

MB = 1_000_000
TASKS = ["a", "b", "c", "d", "e"]


def taken(store: TaskStore, limit: int = 10) -> list[str]:
    return [claim.row.key for claim in store.acquire(limit, 100)]


@pytest.mark.parametrize("users", [[None] * 5, ["one"] * 5, [None, "one", "two", None, "one"]])
def test_an_acquire_takes_16_mb_and_one_task_at_least(ours: QueueBench, users: list[str | None]) -> None:
    store = ours.queue()
    for number, (key, user) in enumerate(zip(TASKS, users, strict=True)):
        store.submit([NewTask(key, "t", run_at=1_600_000_000 + number, user=user)])
    for key, size in zip(TASKS, [6 * MB, 6 * MB, 6 * MB, 4 * MB, 20 * MB], strict=True):
        ours.write(key, size=size)
    rounds = []
    while keys := taken(store):
        rounds.append(set(keys))
    sizes = dict(zip(TASKS, [6, 6, 6, 4, 20], strict=True))
    assert sorted(key for keys in rounds for key in keys) == TASKS
    assert all(len(keys) == 1 or sum(sizes[key] for key in keys) <= 16 for keys in rounds), rounds
    assert len(rounds) <= 4, rounds


def test_in_one_order_it_takes_what_fits(ours: QueueBench) -> None:
    store = ours.queue()
    ours.submit(store, TASKS)
    for key, size in zip(TASKS, [17 * MB, 6 * MB, 6 * MB, 4 * MB, 1], strict=True):
        ours.write(key, size=size)
    assert [taken(store), taken(store), taken(store), taken(store)] == [["a"], ["b", "c", "d"], ["e"], []]


@pytest.mark.parametrize("many", ["a", None])
@pytest.mark.parametrize("few", ["b", None])
def test_users_share_the_16_mb_by_turns(ours: QueueBench, many: str | None, few: str | None) -> None:
    """This holds whether earlier tasks are finished or not, and whichever tasks have been due longest."""
    if many == few:
        return
    store = ours.queue()
    submit_large(ours, store, many, 20)
    submit_large(ours, store, few, 3, run_at=LONG_AGO + 999)
    assert [set(users) for users in rounds_of(store)[:3]] == [{many, few}] * 3


@pytest.mark.parametrize(("size", "within"), [(15 * MB, 5), (7_900_000, 4)])
def test_a_user_who_got_nothing_for_the_data_of_others_comes_first_next_time(
    ours: QueueBench, size: int, within: int
) -> None:
    store = ours.queue()
    users = ["a", "b", None, "c", "d"]
    for number, user in enumerate(users):
        submit_large(ours, store, user, 5, size=size, run_at=LONG_AGO + 100 * number)
    rounds = rounds_of(store)
    assert [user for users_of_round in rounds for user in users_of_round][:5] == users
    for start in range(4):
        found = {user for users_of_round in rounds[start : start + within] for user in users_of_round}
        assert found == set(users), rounds


def test_a_user_with_a_high_limit_does_not_take_all_the_bytes(ours: QueueBench) -> None:
    store = ours.queue()
    submit_large(ours, store, "a", 20, max_running=20)
    submit_large(ours, store, "b", 3, max_running=1, run_at=LONG_AGO + 999)
    assert [set(users) for users in rounds_of(store)[:4]] == [{"a"}, {"a", "b"}] * 2


def test_who_was_cut_off_comes_first_also_behind_a_long_backlog(ours: QueueBench) -> None:
    store = ours.queue()
    for user in ("a", "b"):
        submit_large(ours, store, user, 60)
    submit_large(ours, store, "late", 1, run_at=LONG_AGO + 999)
    assert [users[0] for users in rounds_of(store)[:2]] == ["a", "late"]


@pytest.mark.parametrize("small", ["a", None])
@pytest.mark.parametrize("large", ["b", None])
def test_a_task_of_16_mb_is_not_left_behind_small_ones(ours: QueueBench, small: str | None, large: str | None) -> None:
    if small == large:
        return
    store = ours.queue()
    ours.submit(store, [f"small{n}" for n in range(40)], user=small)
    submit_large(ours, store, large, 2, size=16 * MB, run_at=LONG_AGO + 999)
    rounds = rounds_of(store, limit=8)
    assert [users for users in rounds[:4] if large in users] == [[large], [large]]


def submit_large(bench: QueueBench, store: TaskStore, user: str | None, count: int, **fields: Any) -> None:
    """Submit tasks of a user, whose stored `size` is 7.9 MB if no other is given."""
    size = fields.pop("size", 7_900_000)
    keys = [f"{user}{n:03}" for n in range(count)]
    bench.submit(store, keys, user=user, **fields)
    for key in keys:
        bench.write(key, size=size)


def rounds_of(store: TaskStore, limit: int = 50) -> list[list[object]]:
    """Return the users of the tasks of each acquire, until nothing is due.

    Each task is finished before the next acquire.
    """
    rounds = []
    while claims := store.acquire(limit, 100):
        rounds.append([getattr(claim.row, "user") for claim in claims])  # noqa: B009 – of a TaskRow
        for claim in claims:
            store.retire(claim, "finished", None, 100, soon())
    return rounds


def test_of_some_types_it_takes_as_much(ours: QueueBench) -> None:
    store = ours.queue()
    for key, type_ in zip(TASKS, ["t", "u", "t", "u", "v"], strict=True):
        ours.submit(store, [key], type=type_)
        ours.write(key, size=7 * MB)
    assert len(store.acquire(10, 100, ["t", "u"])) == 2
    assert len(store.acquire(10, 100, ["t", "u"])) == 2
    assert store.acquire(10, 100, ["t", "u"]) == []


@pytest.mark.parametrize("spread", ["types", "priorities"])
def test_when_its_16_mb_are_taken_an_acquire_asks_no_further(ours: QueueBench, spread: str) -> None:
    store = ours.queue()
    types = [f"type{number:02}" for number in range(40)]
    for number, type_ in enumerate(types):
        apart = {"type": type_} if spread == "types" else {"priority": number % 4}
        ours.submit(store, [f"key{number:02}"], **apart)
        ours.write(f"key{number:02}", size=8 * MB)
    ours.submit(store, ["foreign"], type="foreign", priority=-1)  # so that types are read apart
    wanted = types if spread == "types" else None
    store.acquire(2, 100, wanted)
    of_two = sent_by(lambda: store.acquire(2, 100, wanted))
    of_many = sent_by(lambda: store.acquire(100, 100, wanted))
    assert of_many == of_two


def sent_by(acquire: Callable[[], list[Claim]]) -> int:
    """Return the number of statements of an acquire, which must return two tasks."""
    sent: list[str] = []
    with before_each(sent.append):
        assert len(acquire()) == 2
    return len(sent)


def test_what_is_due_behind_is_still_due(ours: QueueBench) -> None:
    store = ours.queue()
    ours.submit(store, TASKS)
    for key in TASKS:
        ours.write(key, size=17 * MB)
    source = TaskSource(store, TaskSettlement(store, 100, max_attempts=None), LeaseTimes(60, 300, 15))
    for key in TASKS:
        assert store.next_due() == 0.0
        assert [task.key for task in source.poll_multi(10, ahead=True)] == [key]


@pytest.mark.parametrize("compression", [None, "gzip"])
def test_the_size_of_the_json_is_stored(ours: QueueBench, compression: str | None) -> None:
    store = ours.queue()
    content = {"a": "ä" * MB}
    store.submit([NewTask("key", "t", content, compression=compression), NewTask("other", "t", {})])
    assert size_in(ours, "key") == len('{"a":""}') + 2 * MB
    assert size_in(ours, "other") == 2
    claims = {claim.row.key: claim for claim in store.acquire(2, 100)}
    store.update_data(claims["key"], {"b": 1}, soon())
    store.update_data(claims["other"], {"b": "x" * 100}, soon())
    assert [size_in(ours, key) for key in ("key", "other")] == [7, 108]


def size_in(bench: QueueBench, key: str) -> int:
    row = bench.raw(key)
    assert row is not None
    return int(row["size"])


def limited(bench: QueueBench, most: int) -> TaskStore:
    """Open a store with this `max_data_size`, in bytes."""
    settings = StoreSettings(url=bench.url, holder="host/1/limited", queue=bench.table, max_data_size=most)
    store = open_stores(bench.type, settings).queue
    assert store is not None
    bench._queues.append(store)
    return store


def test_data_above_the_limit_is_refused(bench: QueueBench) -> None:
    store = limited(bench, 1000)
    for compression in (None, "gzip"):
        fits = NewTask(f"fits {compression}", "t", {"a": "x" * 900}, compression=compression)
        too_large = NewTask("too large", "t", {"a": "x" * 1000}, compression=compression)
        with pytest.raises(ValueError, match="1008 bytes.*max_data_size" if not bench.compat else "max_data_size"):
            store.submit([too_large])
        assert store.submit([fits]) == []
        [claim] = store.acquire(1, 100)
        with pytest.raises(ValueError, match="max_data_size"):
            store.update_data(claim, {"a": "x" * 1000}, soon())
        store.update_data(claim, {"a": "x" * 901}, soon())
        row = store.get(fits.key)
        assert row is not None
        assert (len(row.data["a"]), row.problem) == (901, None)


def test_compressed_data_may_be_larger_than_what_is_stored_at_once(bench: QueueBench) -> None:
    store = bench.queue()
    with pytest.raises(ValueError, match="at most 8000000 can be stored; compress it"):
        store.submit([NewTask("plain", "t", {"a": "x" * 9 * MB})])
    assert store.submit([NewTask("packed", "t", {"a": "x" * 9 * MB}, compression="gzip")]) == []
    assert len(row_of(store, "packed").data["a"]) == 9 * MB


@cache
def packed_text(size: int) -> bytes:
    return gzip.compress(b'{"a":"' + b"x" * size + b'"}')


@pytest.mark.parametrize("size", [64 * MB, 2000])
def test_data_that_expands_too_far_is_a_problem_of_its_row_alone(bench: QueueBench, size: int) -> None:
    store = limited(bench, 1000)
    bench.submit(store, ["bomb", "good"])
    packed = packed_text(size)
    bench.write("bomb", data=packed if bench.compat else base64.b64encode(packed).decode())
    assert keys_in(store) == ["bomb", "good"]
    assert "max_data_size" in str(row_of(store, "bomb").problem)
    source = TaskSource(store, TaskSettlement(store, 100, max_attempts=None), LeaseTimes(60, 300, 15))
    assert [task.key for task in source.poll_multi(10)] == ["good"]
    assert [row.key for row in store.list(TaskFilter()) if row.problem] == ["bomb"]
