"""The cost of calls with many rows: the number of commands that scripts execute, whatever the load."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from psched.model import Claim, NewTask, ScheduleRow, TaskFilter, TaskRow
from psched.store import ScheduleStore, TaskStore
from tests.stores.bench import FAR_OFF, LONG_AGO, Bench, keys_of, soon
from tests.stores.queue.bench import QueueBench
from tests.stores.rows import RedisRows

MANY = 4000
USERS = 400
"""The number of users: more than one acquire looks at."""
TO_TAKE = 40
"""The maximum number of commands for each acquired row."""
TO_LOOK = 12
"""The maximum number of commands of an acquire, besides those for acquired rows, if no task has a user."""
TO_PASS_OVER = 2500
"""The maximum number of commands of an acquire that passes over all the users that it looks at."""


def cost(bench: Bench, call: Callable[[], object]) -> int:
    """Return the number of commands that the server has executed for `call`."""
    before = executed(bench)
    call()
    return executed(bench) - before - 1


def executed(bench: Bench) -> int:
    assert isinstance(bench.rows, RedisRows)
    return bench.rows.commands()


def test_acquiring_schedules_costs_what_it_takes(bench: Bench, store: ScheduleStore) -> None:
    bench.fill(store, [f"key{n:05}" for n in range(MANY)], lambda i: (LONG_AGO if i < MANY / 2 else FAR_OFF) + i)
    for limit in (1, 100):
        assert cost(bench, lambda: store.acquire(limit, 100)) <= TO_LOOK + TO_TAKE * limit  # noqa: B023 – called at once
    assert cost(bench, lambda: store.acquire(5, 100, ["none", "other"])) <= TO_LOOK
    assert cost(bench, store.next_due) <= TO_LOOK
    assert cost(bench, lambda: next(iter(store.list()))) <= 500 + 60, "one page is read, its place found by halving"


def test_giving_back_some_leases_of_a_holder_costs_what_is_given_back(tasks: QueueBench, queue: TaskStore) -> None:
    dead = tasks.queue("host/9/dead")
    queue.submit([NewTask(f"key{n}", "t") for n in range(MANY)])
    claims = {claim.row.key: claim.lease.claim for claim in dead.acquire(MANY, 100)}
    assert len(claims) == MANY
    assert cost(tasks, lambda: queue.held_claims("host/9/dead")) <= TO_LOOK + MANY
    named = {key: claims[key] for key in ("key7", "key77", "key777")}
    assert cost(tasks, lambda: queue.give_back("host/9/dead", [], 100, claims=named)) <= 2 * TO_LOOK + TO_TAKE * 3


def test_idle_polls_of_a_queue_cost_next_to_nothing(tasks: QueueBench, queue: TaskStore) -> None:
    queue.submit([NewTask(f"later{n}", "t", user=f"user{n}", run_at=FAR_OFF) for n in range(MANY)])
    assert queue.acquire(10, 100) == []
    assert cost(tasks, lambda: queue.acquire(10, 100)) <= TO_LOOK
    assert cost(tasks, queue.next_due) <= TO_LOOK


def test_wanted_types_without_rows_cost_nothing(
    bench: Bench, store: ScheduleStore, tasks: QueueBench, queue: TaskStore
) -> None:
    types = [f"type{n}" for n in range(64)]
    queue.submit([NewTask("key", "type7")])
    bench.add(store, "key")
    found: list[Claim] = []
    assert cost(tasks, lambda: queue.next_due(types)) <= TO_LOOK
    assert cost(tasks, lambda: found.extend(queue.acquire(10, 100, types))) <= TO_LOOK + TO_TAKE
    assert keys_of(found) == ["key"]
    assert cost(tasks, lambda: queue.acquire(10, 100, types)) <= 2 * TO_LOOK
    assert cost(bench, lambda: store.next_due(types)) <= TO_LOOK
    assert cost(bench, lambda: store.acquire(10, 100, types)) <= TO_LOOK + TO_TAKE


def test_taking_tasks_without_user_costs_what_it_takes(tasks: QueueBench, queue: TaskStore) -> None:
    queue.submit([NewTask(f"key{n}", f"t{n % 3}", priority=n % 5) for n in range(MANY)])
    for limit in (1, 100):
        assert cost(tasks, lambda: queue.acquire(limit, 100)) <= TO_LOOK + TO_TAKE * limit  # noqa: B023 – called at once
    (claim,) = queue.acquire(1, 100)
    assert cost(tasks, lambda: queue.retire(claim, "finished", None, 0, soon())) <= TO_TAKE
    assert cost(tasks, lambda: queue.purge(10)) <= TO_TAKE
    assert cost(tasks, lambda: queue.delete("key3777")) <= TO_TAKE


@pytest.mark.parametrize("types", [None, ["t"]])
def test_users_at_their_limit_are_passed_over_once_and_cost_nothing_then(
    tasks: QueueBench, queue: TaskStore, types: list[str] | None
) -> None:
    """The number of their waiting tasks makes no difference.

    A user who comes after all others is found in a few polls.
    """
    users = [f"user{n}" for n in range(USERS)]
    backlog = [NewTask(f"{user}/{n}", "t", run_at=n, user=user, max_running=1) for user in users for n in range(8)]
    queue.submit(backlog)
    running = [claim for _ in range(10) for claim in queue.acquire(50, 100)]
    assert len(running) == USERS
    for _ in range(4):
        assert cost(tasks, lambda: queue.acquire(10, 100, types)) <= TO_PASS_OVER
    assert cost(tasks, lambda: queue.acquire(10, 100, types)) <= TO_LOOK
    queue.submit([NewTask("one", "t", user="one")])
    found: list[str] = []
    assert cost(tasks, lambda: found.extend(keys_of(queue.acquire(10, 100, types)))) <= TO_LOOK + 2 * TO_TAKE
    assert found == ["one"]
    queue.retire(running[7], "finished", None, None, soon())
    user = str(getattr(running[7].row, "user"))  # noqa: B009 – of a TaskRow
    assert [claim.row.key.partition("/")[0] for claim in queue.acquire(10, 100, types)] == [user]


def test_a_page_of_a_list_has_no_more_than_4_mb_besides_its_last_row(
    bench: Bench, store: ScheduleStore, tasks: QueueBench, queue: TaskStore
) -> None:
    data = {"a": "x" * 1_500_000}
    for number in range(8):
        bench.add(store, f"key{number}", data=data)
        tasks.submit(queue, [f"key{number}"], data=data)
    pages: list[Callable[[], ScheduleRow | TaskRow]] = [
        lambda: next(iter(store.list())),
        lambda: next(iter(queue.list(TaskFilter()))),
    ]
    rows = bench.rows
    assert isinstance(rows, RedisRows)
    for page in pages:
        at_first = rows.bytes_sent()
        assert page().data == data
        assert 4_000_000 < rows.bytes_sent() - at_first < 5_600_000
