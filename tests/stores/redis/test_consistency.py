"""After any calls in any order every row is in the sets in which it belongs, and no user has too many running tasks."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress

import pytest

from psched.errors import ScheduleError
from psched.model import Claim, NewTask
from psched.store import TaskStore
from tests.stores.bench import FAR_OFF, LONG_AGO, soon
from tests.stores.queue.bench import QueueBench
from tests.stores.redis.consistency import Snapshot
from tests.stores.rows import RedisRows
from tests.stores.sent_statements import after_each

STEPS = 120
SEEDS = 5
USERS = [None, "u:1", "v", "w", "{x}:🙂"]
MOST = {"u:1": 1, "v": 2, "w": None}
"""The `max_running` of each user's tasks. None: each of this user's tasks has a different value."""
TYPES = ["a", "b:b", "ü", ":"]


class AnswerLostError(Exception):
    """Raised instead of an answer."""


class Chaos:
    """One queue with two holders, and calls in an order that a seed decides."""

    def __init__(self, bench: QueueBench, seed: int) -> None:
        self.rng = random.Random(seed)
        self.stores = [bench.queue("host/1/one"), bench.queue("host/2/two")]
        self.claims: list[Claim] = []
        self.numbers = iter(range(10_000))

    @property
    def store(self) -> TaskStore:
        return self.rng.choice(self.stores)

    def step(self) -> None:
        verbs: list[Callable[[], object]] = [
            *[self.submit] * 4, *[self.acquire] * 5, *[self.settle] * 5, self.extend, self.steer, self.give_back,
            self.lose,
        ]  # fmt: skip
        with suppress(ScheduleError):
            self.rng.choice(verbs)()

    def submit(self) -> None:
        user, run_at = self.rng.choice(USERS), self.rng.choice([None, LONG_AGO, FAR_OFF, time.time() + 0.05])
        priority = self.rng.choice([0, 0, 5, -100, 100])
        keys = [f"key{next(self.numbers)}" for _ in range(self.rng.randrange(1, 5))]
        mosts = [MOST[user]] if user in MOST else [None] if user is None else [None, 1, 2, 5]
        self.store.submit(
            [NewTask(key, self.rng.choice(TYPES), {}, run_at, user, self.rng.choice(mosts), priority) for key in keys]
        )

    def acquire(self) -> None:
        types = self.rng.choice([None, None, ["a"], ["b:b", "ü"], TYPES])
        lease = self.rng.choice([0.01, 100, 100])
        self.claims += self.store.acquire(self.rng.choice([1, 2, 9]), lease, types)

    def lose(self) -> None:
        """Acquire rows, and lose the answer. The holder's next acquire first releases these rows."""

        def lose(command: str) -> None:
            if command.startswith("EVAL"):
                raise AnswerLostError

        store = self.store
        with suppress(AnswerLostError), after_each(lose):
            store.acquire(self.rng.choice([1, 9]), 100, self.rng.choice([None, TYPES[:2]]))
        self.claims += store.acquire(2, 100)

    def settle(self) -> None:
        claim = self.claims.pop(self.rng.randrange(len(self.claims))) if self.claims else None
        if claim is None:
            return
        store = self.store
        self.rng.choice(
            [
                lambda: store.release(claim.lease, soon()),
                lambda: store.retry(claim.lease, self.rng.choice([-1, 0, 0.02, 500]), "error", soon()),
                lambda: store.retire(claim, "finished", None, self.rng.choice([0, 100]), soon()),
                lambda: store.retire(claim, "failed", "error", None, soon()),
            ]
        )()

    def extend(self) -> None:
        self.store.extend([claim.lease for claim in self.claims], self.rng.choice([0.01, 100]))

    def steer(self) -> None:
        key, store = f"key{self.rng.randrange(60)}", self.store
        verbs: list[Callable[[], object]] = [
            lambda: store.cancel_request(key, 100),
            lambda: store.force_finish(key, 0),
            lambda: self.claims.append(store.preempt(key, 100)),
            lambda: store.retry_failed(key),
            lambda: store.delete(key),
            lambda: store.purge(3),
        ]
        self.rng.choice(verbs)()

    def give_back(self) -> None:
        self.stores[0].give_back("host/2/two", [claim.row.key for claim in self.claims[:2]], 1)


@pytest.mark.in_suite_on("0", "1")
@pytest.mark.parametrize("seed", range(SEEDS))
def test_every_row_stands_where_it_belongs(tasks: QueueBench, seed: int) -> None:
    chaos = Chaos(tasks, seed)
    assert isinstance(tasks.rows, RedisRows)
    seen: set[str] = set()
    for number in range(STEPS):
        chaos.step()
        snapshot = Snapshot(tasks.rows)
        assert snapshot.faults() == [], f"seed {seed}, step {number}"
        seen |= {row["status"] for row in snapshot.rows.values()}
    assert seen >= {"waiting", "running"}, "next to nothing was done"
    see_that_all_can_be_run(tasks)


def see_that_all_can_be_run(tasks: QueueBench) -> None:
    """Check that all waiting tasks run in the end, and that no user ever has too many running tasks."""
    assert isinstance(tasks.rows, RedisRows)
    store = tasks.queue()
    for holder in ("host/1/one", "host/2/two"):
        store.give_back(holder, [], 1)
    waiting = {key for key, row in Snapshot(tasks.rows).rows.items() if row["status"] == "waiting"}
    later = {
        key for key, row in Snapshot(tasks.rows).rows.items() if int(row.get("due", 0)) > (time.time() + 60) * 1000
    }
    ran: set[str] = set()
    while (wait := store.next_due()) is not None and wait < 60:
        claims = store.acquire(7, 100)
        users = Counter(getattr(claim.row, "user") for claim in claims)  # noqa: B009 – of a TaskRow
        assert all(users[user] <= most for user, most in MOST.items() if most is not None)
        for claim in claims:
            ran.add(claim.row.key)
            store.retire(claim, "finished", None, None, soon())
    assert ran == waiting - later
    assert Snapshot(tasks.rows).faults() == []
