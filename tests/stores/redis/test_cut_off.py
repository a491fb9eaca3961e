"""The order of users who got no row because a batch had reached its maximum of bytes."""

from __future__ import annotations

from psched.model import NewTask
from psched.store import TaskStore
from tests.stores.bench import LONG_AGO, keys_of
from tests.stores.queue.bench import QueueBench
from tests.stores.redis.test_tables import rows_of

AHEAD = 10_000_000
"""Microseconds, like the scores: how far the server's clock goes back between two acquires."""


def test_users_who_were_cut_off_earlier_stay_first_also_when_the_clock_has_not_moved_on(
    tasks: QueueBench, queue: TaskStore
) -> None:
    keys = ["a1", "b1", "c1", "d1", "a2"]
    queue.submit([NewTask(key, "t", run_at=LONG_AGO + n, user=key[0]) for n, key in enumerate(keys, 1)])
    for key in keys:
        tasks.write(key, size=15_000_000)
    client, name = rows_of(tasks).client, f"{rows_of(tasks).prefix}cut_off"
    assert keys_of(queue.acquire(5, 100)) == ["a1"]
    for user in client.zrange(name, 0, -1):
        client.zincrby(name, AHEAD, user)
    assert keys_of(queue.acquire(5, 100)) == ["b1"]
    assert client.zrange(name, 0, -1) == ["c", "d", "a"]
    assert [keys_of(queue.acquire(5, 100)) for _ in range(3)] == [["c1"], ["d1"], ["a2"]]
