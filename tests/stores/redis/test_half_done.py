"""If another program has made a key invalid, a script that cannot do its whole work does nothing at all."""

from __future__ import annotations

from pathlib import Path

import pytest
from redis.exceptions import ResponseError

from psched.model import NewTask, Policy, TaskFilter
from psched.store.ledger import LedgerFilter
from tests.stores.bench import FAR_OFF, HOURLY, LONG_AGO, soon
from tests.stores.databases import SharedDatabases
from tests.stores.queue.conftest import made_bench
from tests.stores.rows import RedisRows


@pytest.mark.parametrize("name", ["alert", "alerted", "entries:key", "settled:0"])
def test_a_run_that_cannot_be_ended_leaves_its_schedule_as_it_is(
    databases: SharedDatabases, tmp_path: Path, name: str
) -> None:
    bench = databases.bench("redis", "redis", tmp_path)
    try:
        store = bench.open()
        store.create_tables()
        store.add("key", "type1", HOURLY, LONG_AGO, LONG_AGO, {}, Policy(alert_after=60))
        claim = store.acquire(1, 100)[0]
        rows = bench.rows
        assert isinstance(rows, RedisRows)
        spoilt = f"{rows.prefix}{name}"
        kept = rows.client.zrange(spoilt, 0, -1, withscores=True)
        rows.client.set(spoilt, "spoilt")
        before = bench.raw("key")
        with pytest.raises(ResponseError):
            store.advance(claim, FAR_OFF, FAR_OFF, soon())
        assert bench.raw("key") == before
        rows.client.delete(spoilt)
        if kept:
            rows.client.zadd(spoilt, dict(kept))
        assert store.advance(claim, FAR_OFF, FAR_OFF, soon()) is None
        assert store.ledger is not None
        assert [entry.scheduled_time for entry in store.ledger.rows(LedgerFilter())] == [LONG_AGO]
    finally:
        bench.close()


@pytest.mark.parametrize("name", ["keys", "line:1:t:bob", "turn:t", "blocked:bob", "later:t"])
def test_tasks_that_cannot_wait_are_not_there(databases: SharedDatabases, tmp_path: Path, name: str) -> None:
    with made_bench(databases, "redis", "redis", tmp_path) as bench:
        queue, rows = bench.queue(), bench.rows
        assert isinstance(rows, RedisRows)
        later = FAR_OFF if name.startswith("later") else LONG_AGO
        tasks = [NewTask("bob's", "t", user="bob", run_at=later), NewTask("other", "t2")]
        rows.client.set(f"{rows.prefix}{name}", "spoilt")
        with pytest.raises(ResponseError):
            queue.submit(tasks)
        assert [queue.get(task.key) for task in tasks] == [None, None]
        rows.client.delete(f"{rows.prefix}{name}")
        assert queue.submit(tasks) == []
        assert [row.key for row in queue.list(TaskFilter())] == ["bob's", "other"]


def test_a_key_that_is_no_hash_does_not_keep_the_other_tasks_from_waiting(
    databases: SharedDatabases, tmp_path: Path
) -> None:
    with made_bench(databases, "redis", "redis", tmp_path) as bench:
        queue, rows = bench.queue(), bench.rows
        assert isinstance(rows, RedisRows)
        rows.client.set(f"{rows.prefix}row:b", "spoilt")
        assert queue.submit([NewTask(key, "t") for key in ("a", "b", "c")]) == ["b"]
        assert [claim.row.key for claim in queue.acquire(10, 100)] == ["a", "c"]
