"""Values of other programs in the place of psched's sets stop no run, neither its acquire nor its end."""

from __future__ import annotations

from psched.model import NewTask
from psched.store import ScheduleStore, TaskStore
from tests.stores.bench import FAR_OFF, LONG_AGO, Bench, keys_of, soon
from tests.stores.queue.bench import QueueBench
from tests.stores.redis.test_tables import rows_of


def test_what_stands_in_the_place_of_a_holders_set_stops_no_run(
    bench: Bench, store: ScheduleStore, tasks: QueueBench, queue: TaskStore
) -> None:
    """A script that failed at such a set would have written only a half of its changes."""
    client, prefixes = rows_of(bench).client, (rows_of(bench).prefix, rows_of(tasks).prefix)

    def spoil() -> None:
        for prefix in prefixes:
            for name in client.keys(f"{prefix}held:*"):
                client.set(name, "spoilt")

    bench.add(store, "key")
    queue.submit([NewTask("key", "t")])
    claims = [store.acquire(1, 100)[0], queue.acquire(1, 100)[0]]
    spoil()
    store.advance(claims[0], FAR_OFF, FAR_OFF, soon())
    queue.retire(claims[1], "finished", None, 100, soon())
    row, task = store.get("key"), queue.get("key")
    assert (row and row.next_time, row and row.settled, task and task.status) == (FAR_OFF, True, "finished")
    bench.add(store, "next")
    queue.submit([NewTask("next", "t")])
    for prefix in prefixes:
        client.set(f"{prefix}held:me", "spoilt")
    mine = bench.open("me"), tasks.queue("me")
    assert [keys_of(opened.acquire(1, 100)) for opened in mine] == [["next"], ["next"]]
    spoil()
    assert [opened.give_back("me", (), 100) for opened in mine] == [0, 0]


def test_what_stands_in_the_place_of_those_who_were_cut_off_stops_no_acquire(
    tasks: QueueBench, queue: TaskStore
) -> None:
    queue.submit([NewTask(key, "t", run_at=LONG_AGO + n, user=key) for n, key in enumerate("abc", 1)])
    for key in "abc":
        tasks.write(key, size=15_000_000)
    client, name = rows_of(tasks).client, f"{rows_of(tasks).prefix}cut_off"
    client.set(name, "spoilt")
    assert keys_of(queue.acquire(5, 100)) == ["a"]
    assert client.zrange(name, 0, -1) == ["b", "c"]
    assert [keys_of(queue.acquire(5, 100)) for _ in range(2)] == [["b"], ["c"]]
    assert not client.exists(name)


def test_what_is_no_retired_task_is_not_purged(tasks: QueueBench, queue: TaskStore) -> None:
    """Another program has replaced a row, or has added the names of other rows to the set of retired rows."""
    queue.submit([NewTask(key, "t") for key in ("waits", "runs", "text", "other", "gone", "retired")])
    claims = {claim.row.key: claim for claim in queue.acquire(10, 100)}
    for key, claim in claims.items():
        if key == "waits":
            queue.retry(claim.lease, 100, None, soon())
        elif key != "runs":
            queue.retire(claim, "finished", None, 0, soon())
    client, prefix = rows_of(tasks).client, rows_of(tasks).prefix
    client.delete(*(f"{prefix}row:{key}" for key in ("text", "other", "gone")))
    client.set(f"{prefix}row:text", "not a row")
    client.hset(f"{prefix}row:other", "of", "another program")
    client.zadd(f"{prefix}purge", dict.fromkeys(claims, 1))
    assert queue.purge(10) == 2
    left = sorted(name.rpartition(":")[2] for name in client.keys(f"{prefix}row:*"))
    assert left == ["other", "runs", "text", "waits"]
    assert client.zcard(f"{prefix}purge") == 0
    queue.retire(claims["runs"], "finished", None, 0, soon())
    assert queue.purge(10) == 1
