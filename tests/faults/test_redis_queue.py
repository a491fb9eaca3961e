"""A queue on Redis with lost requests and answers: each method takes effect once, and returns the right result."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from faultlab.laboratory import Lab
from faultlab.proxy import Proxy, Trap
from faultlab.redis import Redis
from psched.backends import open_stores
from psched.backends.redis.script_composer import compose
from psched.model import NewTask
from psched.store import StoreSettings, TaskStore
from tests.stores.bench import FAR_OFF, HOURLY, LONG_AGO, keys_of, soon, unless_away
from tests.stores.databases import SharedDatabases
from tests.stores.queue.bench import QueueBench, keys_in, row_of
from tests.stores.queue.conftest import open_bench

LOSSES: list[Callable[[Proxy, bytes], Trap]] = [Proxy.lose_request, Proxy.lose_answer]


@pytest.fixture
def bench(databases: SharedDatabases, tmp_path: Path) -> Iterator[QueueBench]:
    """A queue with a task in each state: waiting, running (leased by `near`), failed, and due to be purged."""
    bench = open_bench(databases, "redis", "redis", tmp_path)
    with closing(bench):
        near = bench.queue("host/1/near")
        near.create_tables()
        bench.submit(near, ["running", "failed", "purged"], priority=9)
        running, failed, purged = near.acquire(3, 100)
        near.retire(failed, "failed", "error", None, soon())
        near.retire(purged, "finished", None, 0, soon())
        bench.submit(near, ["waiting", "other"])
        assert running.row.key == "running"
        yield bench


def submit(far: TaskStore) -> None:
    assert far.submit([NewTask("new", "t"), NewTask("waiting", "t")]) == ["waiting"]


def acquire(far: TaskStore) -> None:
    claims = unless_away(far, lambda: far.acquire(1, 100)) or far.acquire(1, 100)
    assert (keys_of(claims), claims[0].row.attempts) == (["waiting"], 1)


def retire(far: TaskStore) -> None:
    (claim,) = far.acquire(1, 100)
    far.retire(claim, "finished", None, 100, soon())
    assert row_of(far, "waiting").status == "finished"


def fail(far: TaskStore) -> None:
    (claim,) = far.acquire(1, 100)
    far.retire(claim, "failed", "error", 100, soon())
    assert row_of(far, "waiting").status == "failed"


def update_data(far: TaskStore) -> None:
    (claim,) = far.acquire(1, 100)
    far.update_data(claim, {"n": 7}, soon())
    assert row_of(far, "waiting").data == {"n": 7}


def cancel_request(far: TaskStore) -> None:
    far.cancel_request("waiting", 100)
    assert row_of(far, "waiting").status == "cancelled"


def force_finish(far: TaskStore) -> None:
    far.force_finish("running", 100)
    assert row_of(far, "running").status == "finished"


def preempt(far: TaskStore) -> None:
    claim = far.preempt("running", 100)
    assert (claim.row.key, claim.row.attempts) == ("running", 2)
    assert far.extend([claim.lease], 100) != [None]


def retry_failed(far: TaskStore) -> None:
    far.retry_failed("failed")
    assert row_of(far, "failed").status == "waiting"


def delete(far: TaskStore) -> None:
    far.delete("waiting")
    assert far.get("waiting") is None


def give_back(far: TaskStore) -> None:
    far.give_back("host/1/near", ["running"], 100)
    assert (row_of(far, "running").status, row_of(far, "running").attempts) == ("waiting", 1)


def purge(far: TaskStore) -> None:
    far.purge(10)
    assert keys_in(far) == ["failed", "other", "running", "waiting"]


VERBS = [
    submit, acquire, retire, fail, update_data, cancel_request, force_finish, preempt, retry_failed, delete, give_back,
    purge,
]  # fmt: skip
SCRIPTS = {"retire": "retire_many", "fail": "retire_many"}
"""The scripts of methods whose script has another name."""


@pytest.mark.parametrize("lose", LOSSES, ids=["request", "answer"])
@pytest.mark.parametrize("verb", VERBS, ids=lambda verb: verb.__name__)
def test_a_lost_verb_is_done_once(
    lab: Lab, bench: QueueBench, verb: Callable[[TaskStore], None], lose: Callable[[Proxy, bytes], Trap]
) -> None:
    server = lab.shared(Redis)
    script = compose("queue", SCRIPTS.get(verb.__name__, verb.__name__))
    with Proxy(server.port) as proxy:
        url = bench.url.replace(str(server.port), str(proxy.port))
        settings = StoreSettings(url=url, holder="host/2/far", queue=bench.table)
        far = open_stores("redis", settings).queue
        assert far is not None
        far.now()
        trap = lose(proxy, script.digest.encode())
        verb(far)
        assert trap.sprung
        far.close()


@pytest.mark.parametrize("lose", LOSSES, ids=["request", "answer"])
def test_an_occurrence_whose_handing_over_is_lost_becomes_one_task(
    lab: Lab, bench: QueueBench, lose: Callable[[Proxy, bytes], Trap]
) -> None:
    server, table = lab.shared(Redis), bench.table.replace("queue", "schedules")
    with Proxy(server.port) as proxy:
        url = bench.url.replace(str(server.port), str(proxy.port))
        stores = open_stores("redis", StoreSettings(url=url, holder="h", schedules=table, queue=bench.table))
        schedules, queue = stores.schedules, stores.queue
        assert schedules is not None
        assert queue is not None
        schedules.create_tables()
        schedules.add("s", "t", HOURLY, LONG_AGO, LONG_AGO, {})
        (claim,) = schedules.acquire(1, 100)
        trap = lose(proxy, compose("schedules", "advance_and_submit").digest.encode())
        schedules.advance(claim, FAR_OFF, FAR_OFF, soon(), lambda given: queue.submit([NewTask("s@1", "t")], given))
        assert trap.sprung
        assert [row.next_time for row in schedules.list()] == [FAR_OFF]
        assert row_of(queue, "s@1").status == "waiting"
        schedules.close()
        queue.close()
