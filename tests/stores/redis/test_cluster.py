"""A Redis Cluster works: all keys are in one slot, and psched finds the slot's node, even after it has moved."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
import redis

from faultlab.laboratory import Lab
from faultlab.redis import RedisNode
from psched.backends import open_stores
from psched.model import NewTask
from psched.store import ScheduleStore, StoreSettings, TaskStore
from tests.stores.bench import FAR_OFF, HOURLY, LONG_AGO, Result, eventually, keys_of, soon


@pytest.fixture
def nodes(lab: Lab) -> Iterator[list[RedisNode]]:
    """Two nodes of one cluster. The first has no slot that psched uses."""
    with ExitStack() as stack:
        nodes = []
        for _ in range(2):
            node = stack.enter_context(lab.private(RedisNode))
            assert isinstance(node, RedisNode)
            nodes.append(node)
        first, second = nodes
        slot = int(first.command("CLUSTER", "KEYSLOT", "{psched}:any")[1:])
        first.serve(0, slot - 1)
        second.serve(slot, 16383)
        first.meet(second)
        eventually(lambda: all(node.is_up() for node in nodes))
        yield nodes


def stores_on(node: RedisNode, holder: str = "host/1/x", more: str = "") -> tuple[ScheduleStore, TaskStore]:
    settings = StoreSettings(url=node.url("0") + more, holder=holder, schedules="schedules", queue="queue")
    stores = open_stores("redis", settings)
    assert stores.schedules is not None
    assert stores.queue is not None
    return stores.schedules, stores.queue


@pytest.mark.parametrize("url", ["", "?cluster=true"])
def test_all_works_on_a_cluster_whichever_node_is_named(nodes: list[RedisNode], url: str) -> None:
    schedules, queue = stores_on(nodes[0], more=url)
    schedules.create_tables()
    queue.create_tables()
    schedules.check_tables()
    findings = list(schedules.diagnose())
    assert all(finding.ok for finding in findings)
    assert "cluster" in findings[1].message
    schedules.add("key", "t", HOURLY, LONG_AGO, LONG_AGO, {"n": 1})
    (claim,) = schedules.acquire(5, 100)
    assert schedules.shares_database(queue)
    schedules.advance(
        claim, FAR_OFF, FAR_OFF, soon(), lambda connection: queue.submit([NewTask("k@1", "t")], connection)
    )
    assert [row.next_time for row in schedules.list()] == [FAR_OFF]
    nodes[1].command("SCRIPT", "FLUSH")
    see_that_it_rings(queue)
    (first, second) = queue.acquire(2, 100)
    assert keys_of([first, second]) == ["k@1", "other"]
    queue.retire(first, "finished", None, 0, soon())
    assert queue.purge(5) == 1
    schedules.close()
    queue.close()


def see_that_it_rings(queue: TaskStore) -> None:
    """Submit a task "other", and check that a wakeup is notified."""
    wakeup = queue.open_wakeup()
    assert wakeup is not None
    wakeup.listen(10)
    assert queue.submit([NewTask("other", "t")]) == []
    assert eventually(wakeup.is_notified)
    wakeup.close()


def test_calls_whose_answers_are_lost_on_a_cluster_know_of_it(nodes: list[RedisNode]) -> None:
    """The store sends each call again. The Redis client must not do so, because the store would not learn of it."""
    queue, other = stores_on(nodes[0])[1], stores_on(nodes[0], "host/2/y")[1]
    queue.create_tables()
    queue.submit([NewTask("a", "t"), NewTask("b", "t")])

    (claim,) = losing(lambda: queue.acquire(1, 100))
    assert keys_of([claim, *other.acquire(5, 100)]) == ["a", "b"]
    losing(lambda: queue.retire(claim, "finished", None, 100, soon()))
    losing(lambda: queue.force_finish("b", 100))
    losing(lambda: queue.delete("b"))
    queue.close()
    other.close()


def losing(call: Callable[[], Result]) -> Result:
    """Return the result of `call`. The answer of its first script is lost after the script has run."""
    with pytest.MonkeyPatch.context() as patch:
        parse: Any = redis.Redis.parse_response

        def lose(client: redis.Redis, connection: Any, command: str, **options: Any) -> Any:
            answer = parse(client, connection, command, **options)
            if command.startswith("EVAL"):
                patch.undo()
                raise redis.ConnectionError("the answer is lost")
            return answer

        patch.setattr(redis.Redis, "parse_response", lose)
        return call()


def test_a_node_that_dies_and_comes_back_is_waited_for(nodes: list[RedisNode]) -> None:
    schedules, queue = stores_on(nodes[0])
    schedules.create_tables()
    schedules.add("key", "t", HOURLY, LONG_AGO, LONG_AGO, {})
    (claim,) = schedules.acquire(1, 100)
    nodes[1].kill()
    with pytest.raises(Exception) as caught:  # noqa: PT011 – the driver's own, whichever it is
        schedules.acquire(1, 100)
    assert schedules.is_unavailable(caught.value), repr(caught.value)
    nodes[1].start()
    schedules.advance(claim, FAR_OFF, FAR_OFF, soon() + 15)
    assert [row.next_time for row in schedules.list()] == [FAR_OFF]
    schedules.close()
    queue.close()
