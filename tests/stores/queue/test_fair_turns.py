"""The order of acquires: limits of users, turns between users, priorities. What must hold for concurrent claims."""

from __future__ import annotations

import itertools
import threading
import time
from collections import Counter

import pytest
import sqlalchemy as sa

from psched.clock import boottime
from psched.errors import PreemptedError
from psched.model import Claim, NewTask
from psched.store import TaskStore
from tests.stores.bench import FAR_OFF, LONG_AGO, eventually, keys_of, soon
from tests.stores.queue.bench import QueueBench, row_of
from tests.stores.statements import watched


def users_of(claims: list[Claim]) -> Counter[object]:
    return Counter(getattr(claim.row, "user") for claim in claims)  # noqa: B009 – of a TaskRow, which a Row may be


def take_all(store: TaskStore, limit: int = 10) -> list[Claim]:
    taken: list[Claim] = []
    while claims := store.acquire(limit, 100):
        taken += claims
    return taken


def test_no_more_of_a_user_run_than_may(bench: QueueBench, store: TaskStore, other: TaskStore) -> None:
    bench.submit(store, [f"key{n}" for n in range(9)], user="u", max_running=3)
    taken = [(taker, claim) for taker in (store, other, store) for claim in taker.acquire(2, 100)]
    assert keys_of([claim for _, claim in taken]) == ["key0", "key1", "key2"]
    assert store.acquire(9, 100) == []
    taker, claim = taken[1]
    taker.retire(claim, "finished", None, 100, soon())
    assert keys_of(other.acquire(9, 100)) == ["key3"]


@pytest.mark.parametrize("ours", ["sqlite", "mariadb", "postgresql"], indirect=True)
def test_who_takes_tasks_of_a_user_changes_the_row_of_the_user(ours: QueueBench) -> None:
    """In a Galera cluster two workers on different members may both get the row's lock. Then one change is refused."""
    store = ours.queue()
    ours.submit(store, ["key1", "key2"], user="u", max_running=2)
    versions: list[int] = []
    for _ in range(2):
        assert len(store.acquire(1, 100)) == 1
        with ours.connect() as connection:
            versions.append(connection.execute(sa.text(f"SELECT version FROM {ours.table}_users")).scalar_one())
    assert versions[1] == versions[0] + 1


def test_half_of_a_users_room_is_left_to_other_workers(ours: QueueBench) -> None:
    """Otherwise one worker could prefetch all of them, and run them one after another.

    This holds however often one acquire divides the free places again.
    """
    store = ours.queue()
    ours.submit(store, [f"key{n:02}" for n in range(30)], user="u", max_running=9)
    store.submit([NewTask("alone", "t", user="one"), NewTask("nobody's", "t")])
    taken = [users_of(store.acquire(50, 100)) for _ in range(6)]
    assert taken[0] == {"u": 4, "one": 1, None: 1}
    assert taken[1:] == [{"u": count} for count in (2, 1, 1, 1)] + [{}]


def test_one_users_backlog_keeps_nobody_else_waiting(bench: QueueBench, store: TaskStore) -> None:
    bench.submit(store, [f"key{n:03}" for n in range(500)], user="many", max_running=3)
    bench.submit(store, ["alone"], user="one", run_at=LONG_AGO + 9999, max_running=3)
    taken = take_all(store, 1)
    assert users_of(taken) == {"many": 3, "one": 1}


def test_each_of_many_users_behind_a_backlog_gets_a_turn(ours: QueueBench) -> None:
    store = ours.queue()
    ours.submit(store, [f"key{n:03}" for n in range(250)], user="many", max_running=1)
    users = [f"user{n:03}" for n in range(90)]
    store.submit([NewTask(user, "t", run_at=LONG_AGO + 9999, user=user, max_running=1) for user in users])
    taken = [claim for _ in range(12) for claim in store.acquire(50, 100)]
    assert users_of(taken) == Counter([*users, "many"])


def test_a_backlog_without_limit_delays_no_other_for_ever(ours: QueueBench) -> None:
    store = ours.queue()
    ours.submit(store, [f"key{n:03}" for n in range(400)], user="many")
    store.submit([NewTask(f"user{n}", "t", run_at=LONG_AGO + 9999, user=f"user{n}") for n in range(9)])
    taken = users_of([claim for _ in range(12) for claim in store.acquire(4, 100)])
    assert {user: count for user, count in taken.items() if user != "many"} == {f"user{n}": 1 for n in range(9)}


def test_whoever_may_run_more_and_runs_less_comes_first(bench: QueueBench, store: TaskStore) -> None:
    bench.submit(store, ["a1", "a2", "a3"], user="a", max_running=2)
    bench.submit(store, ["b1", "b2", "b3"], user="b", max_running=4, run_at=LONG_AGO + 100)
    bench.submit(store, ["c1", "c2"], run_at=LONG_AGO + 200)
    assert [keys_of(store.acquire(1, 100)) for _ in range(3)] == [["b1"], ["a1"], ["b2"]]


def test_at_equal_weights_the_user_who_has_waited_longest_comes_first(bench: QueueBench, store: TaskStore) -> None:
    for n, user in enumerate(["c", None, "a", "b"]):
        bench.submit(store, [f"key{n}"], user=user, run_at=LONG_AGO + n)
    assert [keys_of(store.acquire(1, 100)) for _ in range(4)] == [["key0"], ["key1"], ["key2"], ["key3"]]


def test_tasks_without_user_and_users_share_in_turn(ours: QueueBench) -> None:
    store = ours.queue()
    ours.submit(store, [f"none{n}" for n in range(50)])
    ours.submit(store, [f"user{n}" for n in range(50)], user="u", run_at=LONG_AGO + 999)
    assert users_of(store.acquire(10, 100)) == {None: 5, "u": 5}
    assert users_of([claim for _ in range(10) for claim in store.acquire(1, 100)]) == {None: 5, "u": 5}


def test_a_share_that_is_not_used_goes_to_the_others(ours: QueueBench) -> None:
    store = ours.queue()
    ours.submit(store, ["none0", "none1"])
    ours.submit(store, [f"user{n}" for n in range(50)], user="u")
    ours.submit(store, ["v0"], user="v")
    assert users_of(store.acquire(20, 100)) == {None: 2, "u": 17, "v": 1}


@pytest.mark.parametrize("user", [None, "u"])
def test_of_one_user_the_highest_priority_comes_first(ours: QueueBench, user: str | None) -> None:
    store = ours.queue()
    for n, priority in enumerate([0, -100, 5, 0, 100]):
        ours.submit(store, [f"key{n}"], user=user, priority=priority, run_at=LONG_AGO + n)
    ours.submit(store, ["later"], user=user, priority=50, run_at=FAR_OFF)
    assert keys_of(store.acquire(10, 100)) == ["key4", "key2", "key0", "key3", "key1"]


def test_a_new_priority_or_user_is_seen_at_once(ours: QueueBench) -> None:
    store, other = ours.queue(), ours.queue()
    ours.submit(other, ["a"])
    assert keys_of(store.acquire(5, 100)) == ["a"]
    ours.submit(other, ["b"], priority=7)
    assert keys_of(store.acquire(5, 100)) == ["b"]
    ours.submit(other, ["c"], user="u")
    assert keys_of(store.acquire(5, 100)) == ["c"]


def test_a_lower_priority_is_seen_while_each_acquire_finds_other_tasks(ours: QueueBench) -> None:
    store = ours.queue()
    ours.submit(store, ["first"])
    assert keys_of(store.acquire(10, 100)) == ["first"]
    ours.submit(store, ["low"], priority=-7)
    numbers = itertools.count()

    def low_is_acquired() -> bool:
        ours.submit(store, [key := f"usual{next(numbers)}"])
        found = keys_of(store.acquire(10, 100))
        assert found[0] == key
        return found[1:] == ["low"]

    assert eventually(low_is_acquired)


def test_the_first_task_of_a_higher_priority_goes_before_a_backlog(ours: QueueBench) -> None:
    store, other = ours.queue(), ours.queue()
    ours.submit(other, ["a", "b", "c"])
    assert keys_of(store.acquire(1, 100)) == ["a"]
    ours.submit(other, ["urgent"], priority=7)
    assert keys_of(store.acquire(2, 100)) == ["urgent", "b"]


def test_only_tasks_of_the_wanted_types_are_taken(ours: QueueBench) -> None:
    store = ours.queue()
    for n, user in enumerate([None, "u"]):
        ours.submit(store, [f"red{n}"], type="red", user=user)
        ours.submit(store, [f"blue{n}"], type="blue", user=user)
    assert sorted(keys_of(store.acquire(9, 100, types=["blue", "green"]))) == ["blue0", "blue1"]
    assert sorted(keys_of(store.acquire(9, 100))) == ["red0", "red1"]


def test_each_wanted_type_counts_once_and_the_empty_one_is_no_tasks(ours: QueueBench) -> None:
    store = ours.queue()
    ours.submit(store, ["a", "b"], type="red", user="u", max_running=1)
    assert store.acquire(9, 100, types=[""]) == []
    assert store.next_due([""]) is None
    assert keys_of(store.acquire(9, 100, types=["red", "red", ""])) == ["a"]


def test_types_that_come_and_go_are_looked_at_by_few_statements(ours: QueueBench) -> None:
    """A client keeps each statement that it has compiled.

    A statement for each choice of types with rows could mean millions.
    """
    store = ours.queue()
    types = ["red", "green", "blue", "grey"]
    with watched(ours) as watch:
        for choice in range(1, 16):
            chosen = [type_ for place, type_ in enumerate(types) if choice >> place & 1]
            for place, type_ in enumerate(chosen):
                ours.submit(store, [type_], type=type_, run_at=FAR_OFF + place, priority=place)
            earliest = store.next_due(types)
            assert earliest is not None
            assert abs(earliest - (FAR_OFF - store.now())) < 60
            for type_ in chosen:
                store.delete(type_)
        looks = {statement for statement in watch.statements if statement.count("band") > len(types)}
    assert len(looks) <= 4, "one each for none, 1, 2 and up to 4 bands that had rows last time"


def test_a_dead_run_of_a_type_that_nobody_serves_keeps_no_others_of_its_user(ours: QueueBench) -> None:
    """The run's lease ends nevertheless, and workers that acquire other types release its place."""
    store, other = ours.queue(), ours.queue()
    ours.submit(store, ["a"], type="unserved", user="u", max_running=1)
    ours.claim(store, "a", 0.2)
    ours.submit(store, ["b"], type="served", user="u", max_running=1)

    def poll() -> list[str]:
        return keys_of(other.acquire(5, 100, ["served"]) if other.next_due(["served"]) == 0.0 else [])

    assert (poll() or eventually(poll)) == ["b"]


def test_a_lease_that_has_ended_does_not_come_to_life_beside_its_successors(ours: QueueBench) -> None:
    store, other = ours.queue(), ours.queue()
    ours.submit(store, ["a", "b"], user="u", max_running=1)
    late = ours.claim(store, "a", 0.1)
    claims = eventually(lambda: other.acquire(5, 100))
    assert keys_of(claims) == ["b"], "which has been due longer than the lease of the other has ended"
    assert store.extend([late.lease], 100) == [None]
    with pytest.raises(PreemptedError):
        store.release(late.lease, soon())


def test_a_lease_that_has_ended_and_was_renewed_in_time_counts(ours: QueueBench) -> None:
    store, other = ours.queue(), ours.queue()
    ours.submit(store, ["a", "b"], user="u", max_running=1)
    claim = ours.claim(store, "a", 0.05)
    eventually(lambda: store.now() > claim.lease.expires_at)
    assert store.extend([claim.lease], 100) != [None], "nobody had taken it"
    assert other.acquire(5, 100) == []


def test_workers_acquire_each_task_once_where_some_have_a_user(ours: QueueBench) -> None:
    """A user's row is locked for the user's tasks. Tasks without a user are locked one by one."""
    keys = [f"{user}{number:02}" for user in ("a", "b", "none") for number in range(60)]
    ours.queue().submit([NewTask(key, "t", user=None if key.startswith("none") else key[0]) for key in keys])
    taken: list[str] = []

    def work() -> None:
        store = ours.queue()
        while store.next_due() == 0.0:
            taken.extend(keys_of(store.acquire(7, 100)))

    threads = [threading.Thread(target=work) for _ in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(50)
        assert not thread.is_alive()
    assert sorted(taken) == keys


def test_however_many_claim_at_once_no_more_run_than_may(ours: QueueBench) -> None:
    """Workers acquire batches, extend, retry and finish at the same time. Prefetched tasks count as running."""
    store = ours.queue()
    store.submit([NewTask(f"{user}{n}", "t", user=user, max_running=3) for user in "ab" for n in range(60)])
    watch = Watch(ours)
    threads = [threading.Thread(target=watch.work, args=(seed,)) for seed in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(50)
        assert not thread.is_alive()
    assert watch.errors == []
    assert watch.most == {"a": 3, "b": 3}, "more ran than may, or never as many"
    assert {row_of(store, f"{user}{n}").status for user in "ab" for n in range(60)} == {"finished"}


class Watch:
    """Workers that count how many tasks of a user they run at a time, until all are done.

    They hold their first tasks until the limits are reached.
    """

    def __init__(self, bench: QueueBench) -> None:
        self.errors: list[BaseException] = []
        self.most = {"a": 0, "b": 0}
        self._bench = bench
        self._running: Counter[str] = Counter()
        self._done = 0
        self._lock = threading.Lock()

    def work(self, seed: int) -> None:
        store = self._bench.queue()
        end = time.monotonic() + 40
        try:
            while self._done < 120 and time.monotonic() < end:
                claims = store.acquire(1 + seed, 100)
                for claim in claims:
                    self._count(claim.row.key[0], +1)
                for claim in claims:
                    self._run(store, claim, seed)
        except BaseException as error:  # noqa: BLE001 – told by the test's own thread
            self.errors.append(error)

    def _run(self, store: TaskStore, claim: Claim, seed: int) -> None:
        (lease,) = store.extend([claim.lease], 100)
        assert lease is not None
        user = claim.row.key[0]
        eventually(lambda: self.most[user] >= 3)
        time.sleep(0.001 * seed)
        self._count(user, -1)
        if seed % 2 and claim.row.attempts == 1:
            store.retry(lease, 0, None, boottime() + 10)
        else:
            store.retire(claim, "finished", None, 100, boottime() + 10)
            with self._lock:
                self._done += 1

    def _count(self, user: str, more: int) -> None:
        with self._lock:
            self._running[user] += more
            self.most[user] = max(self.most[user], self._running[user])
