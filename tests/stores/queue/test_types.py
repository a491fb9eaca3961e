"""A worker for some types acquires all due tasks of these types, in the usual order, and reads and changes no others.

Many rows of other types are due, and have been for longer. The statements show how much is read.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import closing
from typing import Any, cast

import pytest

from psched.model import Claim, NewTask
from psched.store import TaskStore
from tests.stores.bench import FAR_OFF, LONG_AGO, eventually, keys_of, soon
from tests.stores.databases import DATABASES
from tests.stores.queue.bench import QueueBench, row_of
from tests.stores.rows import RedisRows
from tests.stores.statements import Watch, watched

AHEAD = 2000
FEW = 400
"""The maximum number of rows that a call may read, besides one for each requested type."""
WINDOW = 1700
"""The maximum number of rows of a call if tasks have users: 100 rows of each of eight types, and some rows of users."""

Look = Callable[[TaskStore, list[str]], object]
"""What an idle worker calls: it reads all types that have rows, or asks for its own types."""


def look_for_all(store: TaskStore, types: list[str]) -> None:
    store.due_by_type()


def ask_for_own(store: TaskStore, types: list[str]) -> None:
    store.next_due(types)


each_look = pytest.mark.parametrize("look", [look_for_all, ask_for_own])


def types_of(count: int) -> list[str]:
    return [f"ours{number:03}" for number in range(count)]


def fill(bench: QueueBench, store: TaskStore, users: int = 0) -> None:
    """Submit 2,000 tasks of another type, which have been due for long. `users`: the number of their users."""
    if not users:
        copy(bench, store, [f"foreign{n}" for n in range(AHEAD)], "foreign", LONG_AGO)
        return
    foreign = [NewTask(f"foreign{n}", "foreign", run_at=LONG_AGO, user=f"user{n % users}") for n in range(AHEAD)]
    assert store.submit(foreign) == []


def copy(bench: QueueBench, store: TaskStore, keys: list[str], type_: str, due: int) -> None:
    """Submit a task that is due at `due`, and copy its row without psched. Each copy is due a second later."""
    bench.submit(store, keys[:1], type=type_, run_at=due)
    bench.rows.copy(keys, lambda n: due + n)


def submit(store: TaskStore, count: int, types: list[str], user: str | None = None) -> None:
    """Submit tasks of these types in turn, each due after the one before."""
    new = [
        NewTask(f"ours{n:03}", types[n % len(types)], run_at=LONG_AGO + 100 + n, user=user and f"{user}{n % 3}")
        for n in range(count)
    ]
    assert store.submit(new) == []


@each_look
@pytest.mark.parametrize("crowded", [False, True])
@pytest.mark.parametrize("count", [1, 3, 20])
def test_rows_of_the_wanted_types_are_taken_earliest_first(
    ours: QueueBench, crowded: bool, count: int, look: Look
) -> None:
    store, types = ours.queue(), types_of(count)
    submit(store, 30, types)
    ours.submit(store, ["later"], type=types[0], run_at=FAR_OFF)
    if crowded:
        ours.submit(store, [f"foreign{n}" for n in range(30)], type="foreign")
    look(store, types)
    taken = keys_of(store.acquire(12, 100, types))
    if not crowded or count <= 8:
        assert taken == [f"ours{n:03}" for n in range(12)]
    taken += keys_of(store.acquire(30, 100, types))
    assert sorted(taken) == [f"ours{n:03}" for n in range(30)]
    assert store.acquire(5, 100, types) == []
    if crowded:
        row = row_of(store, "foreign7")
        assert (row.status, row.attempts, row.node) == ("waiting", 0, None)
        assert len(store.acquire(50, 100)) == 30


@each_look
@pytest.mark.parametrize("crowded", [False, True])
def test_priorities_and_users_count_among_the_wanted_types(ours: QueueBench, crowded: bool, look: Look) -> None:
    store, types = ours.queue(), ["a", "b"]
    if crowded:
        for user in (None, "u", "v"):
            ours.submit(store, [f"x{user}{n}" for n in range(20)], type="x", user=user, priority=1)
    for number, type_ in enumerate(types):
        ours.submit(store, [f"{type_}low"], type=type_, run_at=LONG_AGO + number)
        ours.submit(store, [f"{type_}high"], type=type_, run_at=LONG_AGO + number, priority=5)
    look(store, types)
    assert keys_of(store.acquire(3, 100, types)) == ["ahigh", "bhigh", "alow"]
    for user in ("u", "v"):
        keys = [f"{user}{n}" for n in range(6)]
        ours.submit(store, keys[::2], type="a", user=user, max_running=3, run_at=LONG_AGO)
        ours.submit(store, keys[1::2], type="b", user=user, max_running=3, run_at=LONG_AGO)
    taken = [claim for _ in range(8) for claim in store.acquire(4, 100, types)]
    users = Counter(getattr(claim.row, "user", None) for claim in taken)
    assert users == {None: 1, "u": 3, "v": 3}
    assert {claim.row.type for claim in taken} == {"a", "b"}


@pytest.mark.parametrize("types", [["a"], ["a", *(f"none{n}" for n in range(20))]], ids=["one", "many"])
def test_a_user_behind_users_at_their_limits_is_found_although_other_types_are_due(
    ours: QueueBench, types: list[str]
) -> None:
    store = ours.queue()
    for number in range(3):
        ours.submit(store, [f"x{number}{n}" for n in range(50)], type="x", user=f"u{number}")
        ours.submit(store, [f"a{number}{n}" for n in range(60)], type="a", user=f"u{number}", max_running=1)
    ours.submit(store, [f"x4{n}" for n in range(50)], type="x", user="z")
    ours.submit(store, ["wanted"], type="a", user="z", run_at=LONG_AGO + 1000)
    found: list[str] = []

    def poll() -> bool:
        store.due_by_type()
        found.extend(keys_of(store.acquire(10, 100, types)))
        return "wanted" in found

    assert eventually(poll)
    assert len(found) == 4


def test_of_many_types_each_is_looked_at_after_few_acquires(ours: QueueBench) -> None:
    """All users of most types are at their limits.

    Earlier the user with room was found only if chance selected this user.
    """
    store, types = ours.queue(), types_of(40)
    for user in ("foreign", "u", "v", "w"):
        ours.submit(store, [f"{user} runs"], type=types[0], user=user, max_running=1)
    assert len(store.acquire(4, 100)) == 4
    for number, type_ in enumerate(types):
        ours.submit(store, [f"waits {type_}"], type=type_, user="uvw"[number % 3], run_at=LONG_AGO + number)
    ours.submit(store, ["waits"], type="foreign", user="foreign")
    for place in (0, 13, 39):
        ours.submit(store, [f"wanted {place}"], type=types[place], user=f"has room {place}", run_at=LONG_AGO + 1000)
    found = [key for _ in range(5) for key in keys_of(store.acquire(10, 100, types))]
    assert sorted(found) == ["wanted 0", "wanted 13", "wanted 39"]


@pytest.mark.parametrize("types", [["a"], ["a", "b"], ["b", "a"]], ids=" ".join)
def test_a_user_behind_many_at_their_limits_is_found_whatever_else_is_looked_at(
    ours: QueueBench, types: list[str]
) -> None:
    store = ours.queue()
    users = [f"user{n:03}" for n in range(150)]
    for task in ("runs", "waits"):
        store.submit([NewTask(f"{user} {task}", "a", run_at=LONG_AGO, user=user, max_running=1) for user in users])
        while task == "runs" and store.acquire(500, 100, ["a"]):
            pass
    ours.submit(store, ["b"], type="b", user=users[0], max_running=1)
    ours.submit(store, ["wanted"], type="a", user="zoe", run_at=LONG_AGO + 1000)
    found = [key for _ in range(8) for key in keys_of(store.acquire(10, 100, types))]
    assert found == ["wanted"]


@pytest.mark.parametrize("ours", ["redis"], indirect=True)
def test_on_redis_types_are_forgotten_an_hour_after_their_last_row(ours: QueueBench) -> None:
    store = ours.queue()
    ours.submit(store, ["a"], type="a")
    ours.submit(store, ["b"], type="b")
    store.delete("a")
    assert store.due_by_type().keys() == {"b"}
    client, types = noted_types(ours)
    client.zadd(types, {"a": 1, "b": 1})  # as if noted long ago
    assert store.due_by_type().keys() == {"b"}
    assert client.zrange(types, 0, -1) == ["b"]
    assert client.zscore(types, "b") > 1
    ours.submit(store, ["again"], type="a")
    assert store.due_by_type().keys() == {"a", "b"}


@pytest.mark.parametrize("ours", ["redis"], indirect=True)
def test_a_forgotten_type_is_known_again_when_a_retired_row_is_revived(ours: QueueBench) -> None:
    store = ours.queue()
    ours.submit(store, ["a"], type="a")
    store.retire(ours.claim(store, "a"), "failed", "broken", None, soon())
    forget(ours, store, "a")
    store.retry_failed("a")
    assert store.due_by_type() == {"a": 0.0}
    assert keys_of(store.acquire(1, 100, ["a"])) == ["a"]


@pytest.mark.parametrize("ours", ["redis"], indirect=True)
def test_a_forgotten_type_is_known_again_when_its_user_has_room(ours: QueueBench) -> None:
    store = ours.queue()
    parked = park_behind_another_type(ours, store)
    forget(ours, store, "b")
    store.retire(parked, "finished", None, None, soon())
    assert store.due_by_type() == {"b": 0.0}
    assert keys_of(store.acquire(1, 100, ["b"])) == ["b"]


@pytest.mark.parametrize("ours", ["redis"], indirect=True)
def test_a_forgotten_type_is_known_again_when_a_parked_row_is_preempted(ours: QueueBench) -> None:
    store = ours.queue()
    park_behind_another_type(ours, store)
    forget(ours, store, "b")
    taken = store.preempt("b", 100)
    assert 0 < store.due_by_type()["b"] <= 100
    store.retry(taken.lease, 1000, None, soon())
    assert 100 < store.due_by_type()["b"] <= 1000


def test_a_type_whose_rows_wait_for_room_that_a_dead_worker_took_is_seen(ours: QueueBench) -> None:
    store = ours.queue()
    for key, type_ in (("a", "a"), ("b", "b"), ("c", "b"), ("of another", "c")):
        user = "v" if type_ == "c" else "u"
        ours.submit(store, [key], type=type_, user=user, max_running=1)
    ours.submit(store, ["long"], type="long", user="v", max_running=1, run_at=LONG_AGO)
    assert keys_of(store.acquire(1, 100, ["long"])) == ["long"]
    assert keys_of(store.acquire(1, 0.2, ["a"])) == ["a"]
    assert store.acquire(1, 100, ["b", "c"]) == []  # on Redis their rows are parked now

    def take_what_is_seen() -> list[str]:
        return keys_of(store.acquire(5, 100, ["b"])) if store.due_by_type().get("b") == 0.0 else []

    assert eventually(take_what_is_seen) in (["b"], ["c"])


@pytest.mark.parametrize("ours", ["redis"], indirect=True)
def test_a_forgotten_type_wakes_workers_for_those_that_take_some_types_when_it_is_known_again(ours: QueueBench) -> None:
    store = ours.queue()
    ours.submit(store, ["a"], type="a")
    store.retire(ours.claim(store, "a"), "cancelled", None, None, soon())
    forget(ours, store, "a")
    wakeup = store.open_wakeup(lambda type_: type_ == "a")
    assert wakeup is not None
    with closing(wakeup):
        wakeup.listen(60)
        assert eventually(lambda: not wakeup.is_notified() and wakeup.proven)
        store.retry_failed("a")
        assert eventually(wakeup.is_notified)


def noted_types(bench: QueueBench) -> tuple[Any, str]:
    """Return a Redis client, and the key under which Redis stores the types that have rows."""
    rows = cast("RedisRows", bench.rows)
    return rows.client, f"{rows.prefix}types"


def forget(bench: QueueBench, store: TaskStore, type_: str) -> None:
    """Let an hour pass since a type was recorded, and check that a call then forgets this type."""
    client, types = noted_types(bench)
    client.zadd(types, {type_: 1})
    assert type_ not in store.due_by_type()
    assert type_ not in client.zrange(types, 0, -1)


def park_behind_another_type(bench: QueueBench, store: TaskStore) -> Claim:
    """Run the task `a` of a user, so that the user's task `b`, of another type, must wait. Return the claim of `a`."""
    bench.submit(store, ["a"], type="a", user="u", max_running=1)
    bench.submit(store, ["b"], type="b", user="u", max_running=1)
    claim = bench.claim(store, "a")
    assert store.acquire(1, 100, ["b"]) == []
    return claim


@pytest.mark.new_table
@pytest.mark.parametrize("analysed", [False, True], ids=["never analysed", "analysed"])
@pytest.mark.parametrize("ours", DATABASES, indirect=True)
def test_rows_of_other_types_that_are_due_are_not_read(ours: QueueBench, analysed: bool) -> None:
    store = ours.queue()
    fill(ours, store)
    for count in (1, 50, 500):
        types = types_of(count)
        submit(store, 20, types)
        if analysed:
            analyse(ours)
        ask_for_own(store, types)
        store.acquire(1, 100, types)
        with watched(ours) as watch:
            assert len(store.acquire(10, 100, types)) == 10
        see_that_few_rows_were_read(watch, FEW + 2 * count)
        with watched(ours) as watch:
            assert len(store.acquire(10, 100, types)) == 9
            assert store.acquire(10, 100, types) == []
        see_that_few_rows_were_read(watch, 2 * (FEW + 2 * count))
        ours.execute("DELETE FROM {table} WHERE type <> 'foreign'")


@pytest.mark.new_table
@pytest.mark.parametrize("analysed", [False, True], ids=["never analysed", "analysed"])
@pytest.mark.parametrize("ours", DATABASES, indirect=True)
def test_nor_where_most_rows_are_of_the_wanted_types(ours: QueueBench, analysed: bool) -> None:
    """A database may estimate that the index of all types is good enough. But its first rows have other types."""
    store = ours.queue()
    fill(ours, store)
    copy(ours, store, [f"ours{n:05}" for n in range(10 * AHEAD)], *types_of(1), LONG_AGO + 100)
    if analysed:
        analyse(ours)
    store.due_by_type()
    store.acquire(1, 100, types_of(1))
    with watched(ours) as watch:
        assert len(store.acquire(10, 100, types_of(1))) == 10
    see_that_few_rows_were_read(watch, FEW)


@pytest.mark.new_table
@pytest.mark.parametrize("analysed", [False, True], ids=["never analysed", "analysed"])
@pytest.mark.parametrize("count", [1, 50])
@pytest.mark.parametrize("ours", DATABASES, indirect=True)
def test_nor_are_those_of_users(ours: QueueBench, count: int, analysed: bool) -> None:
    store, types = ours.queue(), types_of(count)
    fill(ours, store, users=3)
    submit(store, 20, types, "user")
    if analysed:
        analyse(ours)
    ask_for_own(store, types)
    taken = keys_of(store.acquire(1, 100, types))
    with watched(ours) as watch:
        taken += keys_of(store.acquire(10, 100, types))
    assert len(taken) >= 4
    see_that_few_rows_were_read(watch, WINDOW + 2 * count)


@pytest.mark.new_table
@pytest.mark.parametrize("analysed", [False, True], ids=["never analysed", "analysed"])
@pytest.mark.parametrize("count", [1, 50, 500])
@pytest.mark.parametrize("ours", DATABASES, indirect=True)
def test_where_no_others_are_due_rows_are_read_in_their_order_by_one_statement(
    ours: QueueBench, count: int, analysed: bool
) -> None:
    store, types = ours.queue(), types_of(count)
    submit(store, FEW + 100 + count, types)
    ours.submit(store, ["foreign"], type="foreign", run_at=FAR_OFF)
    if analysed:
        analyse(ours)
    ask_for_own(store, types)
    store.acquire(1, 100, types)
    with watched(ours) as watch:
        assert keys_of(store.acquire(10, 100, types)) == [f"ours{n:03}" for n in range(1, 11)]
    assert len(watch.statements) == (3 if ours.database == "mysql" else 1), watch.statements
    see_that_few_rows_were_read(watch, FEW + count)


@pytest.mark.new_table
@pytest.mark.parametrize("count", [1, 50])
@pytest.mark.parametrize("ours", DATABASES, indirect=True)
def test_rows_are_read_in_their_order_again_once_the_others_are_gone(ours: QueueBench, count: int) -> None:
    store, types = ours.queue(), types_of(count)
    ours.submit(store, ["foreign"], type="foreign", run_at=LONG_AGO)
    submit(store, 100, types)
    ask_for_own(store, types)
    with watched(ours) as watch:
        store.acquire(10, 100, types)
    assert any("type = " in text for text in watch.statements), watch.statements
    store.delete("foreign")
    ask_for_own(store, types)
    with watched(ours) as watch:
        assert len(store.acquire(10, 100, types)) == 10
    assert len(watch.statements) == (3 if ours.database == "mysql" else 1), watch.statements
    assert not any("type = " in text for text in watch.statements), watch.statements


def see_that_few_rows_were_read(watch: Watch, few: int) -> None:
    """Fail with the statements and plans if a call has read more than `few` rows, or a whole table."""
    story = "\n".join([*watch.statements, *watch.plans, str(watch.reads)])
    assert sum(watch.reads) <= few, story
    plans = [plan for plan in watch.plans if "_users" not in plan]
    assert not [plan for plan in plans if plan.startswith("SCAN queue") or "Seq Scan queue" in plan], story
    assert not [plan for plan in plans if plan.startswith("queue") and "type=ALL" in plan], story


def analyse(bench: QueueBench) -> None:
    """Let the database gather its statistics now."""
    bench.execute(
        {"sqlite": "ANALYZE", "mysql": "ANALYZE TABLE {table}", "postgresql": "ANALYZE {table}"}[bench.database]
    )
