"""Tasks that PerfectQueue and psched share: each can read, finish and purge the other's rows. Each task runs once."""

from __future__ import annotations

import gzip
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from psched.errors import AlreadyFinishedError, PreemptedError
from psched.model import Claim, NewTask, TaskFilter, TaskRow
from psched.store import TaskStore
from tests.compat.original_queue import COLUMNS, OriginalQueue
from tests.stores.bench import FAR_OFF, LONG_AGO, keys_of, soon
from tests.stores.databases import DATABASES, SharedDatabases
from tests.stores.queue.bench import QueueBench, keys_in, row_of
from tests.stores.queue.conftest import open_bench
from tests.stores.statements import watched

PLAIN = b'{"key":"value","type":"type1"}'


@dataclass
class Shared:
    """A table that PerfectQueue has made, which PerfectQueue and psched both use."""

    bench: QueueBench
    original: OriginalQueue
    store: TaskStore

    def stored(self, key: str) -> tuple[Any, ...]:
        """Return a row as it is stored, byte for byte."""
        row = self.bench.raw(key)
        assert row is not None, f"{key!r} is gone"
        return tuple(bytes(row[name]) if name == "data" else row[name] for name in COLUMNS)


@pytest.fixture(params=DATABASES)
def shared(request: pytest.FixtureRequest, databases: SharedDatabases, tmp_path: Path) -> Iterator[Shared]:
    """The original's table, with the original and psched on it, on each database."""
    bench = open_bench(databases, "rdb_compat", request.param, tmp_path)
    try:
        original = OriginalQueue(bench)
        original.make_table()
        yield Shared(bench, original, bench.queue())
    finally:
        bench.close()


def packed(data: bytes) -> bytes:
    """Compress `data` as Ruby's Zlib does: one gzip member, which contains a time, at another level than psched's."""
    return gzip.compress(data, compresslevel=6, mtime=LONG_AGO)


READ: list[tuple[bytes, str, dict[str, Any], str | None]] = [
    (PLAIN, "type1", {"key": "value"}, None),
    (b'{"type":"a.b"}', "a.b", {}, None),
    ('{"名":"値/<ä>😀","type":"型"}'.encode(), "型", {"名": "値/<ä>😀"}, None),
    (packed(PLAIN), "type1", {"key": "value"}, "gzip"),
    (packed(b'{"no":"type"}'), "kind", {"no": "type"}, "gzip"),
    (b'{"key":"value"}', "kind", {"key": "value"}, None),
    (b'{"type":""}', "kind", {}, None),
    (b"no json", "kind", {}, None),
    (b"\x1f\x8bdamaged", "kind", {}, "gzip"),
    (b"", "kind", {}, None),
]


def test_the_originals_tasks_are_read_and_run(shared: Shared) -> None:
    for n, (data, type_, content, compression) in enumerate(READ):
        key = f"kind.of.key{n}"
        shared.original.submit(key, data=data, resource="user", max_running=20)
        claim = shared.bench.claim(shared.store, key)
        for row in (claim.row, row_of(shared.store, key)):
            assert isinstance(row, TaskRow)
            assert (row.type, row.data, row.compression, row.problem) == (type_, content, compression, None), data
            assert (row.user, row.max_running, row.run_at, row.created_at) == ("user", 20, LONG_AGO, LONG_AGO)
        assert shared.stored(key)[2:] == (data, LONG_AGO, "user", 20, 0)


WRITTEN: list[tuple[NewTask, bytes, str | None, int | None]] = [
    (NewTask("a", "type1", {"key": "value"}), PLAIN, None, None),
    (NewTask("b", "new", {"a": 1, "type": "old", "z": 2}, user="u"), b'{"a":1,"type":"new","z":2}', "u", None),
    (NewTask("c", "型", {"名": "ä/<😀"}, user="u", max_running=3), '{"名":"ä/<😀","type":"型"}'.encode(), "u", 3),
]


def test_what_psched_submits_is_byte_for_byte_the_originals_row(shared: Shared) -> None:
    since = time.time()
    for task, data, resource, max_running in WRITTEN:
        shared.store.submit([task])
        key, timeout, *rest = shared.stored(task.key)
        assert_between(since, timeout)
        assert (key, *rest) == (task.key, data, timeout, resource, max_running, 0)
    shared.store.submit([NewTask("later", "type1", {"key": "value"}, run_at=FAR_OFF)])
    assert shared.stored("later")[1:3] == (FAR_OFF, PLAIN)
    shared.store.submit([NewTask("packed", "type1", {"key": "value"}, compression="gzip")])
    data = shared.stored("packed")[2]
    assert data[:3] == b"\x1f\x8b\x08"
    assert gzip.decompress(data) == PLAIN


def test_each_verb_writes_the_columns_the_original_would_and_no_other(shared: Shared) -> None:
    store, spaced, since = shared.store, b'{ "spaced" : 1 }', time.time()
    shared.original.submit("key", data=spaced, resource="user", max_running=2, created_at=LONG_AGO + 5)
    columns = (spaced, LONG_AGO + 5, "user", 2, 0)
    claim = shared.bench.claim(store, "key", 100)
    see(shared, since, 100, columns)
    (lease,) = store.extend([claim.lease], 200)
    assert lease is not None
    see(shared, since, 200, columns)
    store.retry(lease, 50, "not kept", soon())
    see(shared, since, 50, columns)
    shared.bench.make_due("key")
    store.release(shared.bench.claim(store, "key").lease, soon())
    see(shared, since, 0, columns)
    store.cancel_request("key", 100)
    see(shared, since, 0, (spaced, 0, "user", 2, 0))
    claim = shared.bench.claim(store, "key", 100)
    store.update_data(claim, {"spaced": 2}, soon())
    see(shared, since, 100, (b'{"spaced":2,"type":"key"}', 0, "user", 2, 0))
    store.retire(claim, "finished", None, 300, soon())
    see(shared, since, -1_000_000_000 + 300, (b'{"spaced":2,"type":"key"}', None, None, 2, 0))


def see(shared: Shared, since: float, seconds: int, columns: tuple[Any, ...]) -> None:
    """Check that the stored timeout is `seconds` after a time between `since` and now. `columns`: the other columns."""
    _, timeout, *found = shared.stored("key")
    assert_between(since, timeout - seconds)
    assert tuple(found) == columns


def test_data_that_was_compressed_stays_so_and_keeps_its_type(shared: Shared) -> None:
    shared.original.submit("key", data=packed(PLAIN))
    shared.store.update_data(shared.bench.claim(shared.store, "key"), {"key": 2}, soon())
    data = shared.stored("key")[2]
    assert data[:3] == b"\x1f\x8b\x08"
    assert gzip.decompress(data) == b'{"key":2,"type":"type1"}'


def test_the_list_tells_what_the_originals_rows_are(shared: Shared) -> None:
    now = int(time.time())
    submit = shared.original.submit
    submit("waits")
    submit("runs", timeout=now + 100, resource="u")
    submit("cancelled", created_at=0)
    submit("finished", created_at=None, timeout=now - 1_000_000_000 + 300)
    rows = {row.key: row for row in shared.store.list(TaskFilter())}
    assert {key: row.status for key, row in rows.items()} == {
        "waits": "waiting", "runs": "running", "cancelled": "waiting", "finished": "finished",
    }  # fmt: skip
    assert [key for key, row in rows.items() if row.cancel_requested] == ["cancelled"]
    assert (rows["runs"].due, rows["waits"].due, rows["finished"].due) == (now + 100, LONG_AGO, None)
    assert (rows["waits"].created_at, rows["cancelled"].created_at, rows["finished"].created_at) == (
        LONG_AGO, None, None,
    )  # fmt: skip
    assert keys_in(shared.store, status="finished") == ["finished"]
    assert keys_in(shared.store, user="u", type="type1") == ["runs"]


def test_when_a_finished_task_ran_is_not_known_and_not_made_up(shared: Shared) -> None:
    shared.original.submit("key")
    assert shared.original.finish("key") == 1
    row = row_of(shared.store, "key")
    assert (row.run_at, row.due, row.created_at, row.finished_at) == (None, None, None, None)


def test_only_what_the_original_would_take_is_taken(shared: Shared) -> None:
    now = int(time.time())
    submit = shared.original.submit
    submit("finished", created_at=None)
    submit("too old", timeout=1_300_000_000)
    submit("held", timeout=now + 100)
    submit("oldest", timeout=1_300_000_001)
    submit("cancelled", timeout=LONG_AGO, created_at=0)
    assert keys_of(shared.store.acquire(10, 100)) == ["oldest", "cancelled"]


def test_both_take_in_the_same_order_and_respect_the_limit_of_a_user(shared: Shared) -> None:
    now = int(time.time())
    submit = shared.original.submit
    submit("full", resource="full", max_running=1)
    submit("full held", resource="full", max_running=1, timeout=now + 100)
    submit("one", resource="one", max_running=1, timeout=LONG_AGO + 3)
    submit("two", resource="two", max_running=2, timeout=LONG_AGO + 9)
    submit("nobody", timeout=LONG_AGO + 2)
    submit("busy", resource="busy", timeout=LONG_AGO)
    submit("busy held", resource="busy", timeout=now + 100)
    ours = keys_of(shared.store.acquire(10, 100))
    assert ours == ["two", "nobody", "one", "busy"]
    for key, timeout in zip(ours, (LONG_AGO + 9, LONG_AGO + 2, LONG_AGO + 3, LONG_AGO), strict=True):
        shared.bench.write(key, timeout=timeout)
    assert [row["id"] for row in shared.original.acquire(10)] == ours


def test_each_respects_the_others_lease_and_finish(shared: Shared) -> None:
    for n in range(4):
        shared.original.submit(f"key{n}", timeout=LONG_AGO + n)
    assert [row["id"] for row in shared.original.acquire(2)] == ["key0", "key1"]
    claims = shared.store.acquire(10, 100)
    assert keys_of(claims) == ["key2", "key3"]
    assert shared.original.acquire() == []
    assert shared.store.acquire(10, 100) == []
    shared.store.retire(claims[0], "finished", None, 300, soon())
    assert [shared.original.finish(f"key{n}") for n in range(4)] == [1, 1, 0, 1]
    with pytest.raises((AlreadyFinishedError, PreemptedError)):
        shared.store.retire(claims[1], "finished", None, 300, soon())
    assert len({shared.stored(f"key{n}")[2:] for n in range(4)}) == 1, "they differ by who has finished them"
    assert shared.store.submit([NewTask("key0", "type1")]) == ["key0"], "its key is kept for a while"


def test_a_cancelled_task_looks_to_the_original_like_any_other(shared: Shared) -> None:
    shared.store.submit([NewTask("key", "type1")])
    shared.store.cancel_request("key", 300)
    assert [row["id"] for row in shared.original.acquire()] == ["key"]
    assert shared.original.finish("key") == 1


def test_each_purges_what_the_other_has_finished_and_nothing_else(shared: Shared) -> None:
    for key in ("theirs over", "theirs kept", "ours over", "ours kept", "runs", "waits"):
        shared.original.submit(key)
    shared.original.finish("theirs over", -1)
    shared.original.finish("theirs kept")
    shared.store.force_finish("ours kept", 300)
    shared.store.force_finish("ours over", 0)
    before = shared.stored("ours over")
    assert shared.store.purge(100) == 2
    assert keys_in(shared.store) == ["ours kept", "runs", "theirs kept", "waits"]
    shared.original.submit("ours over")
    shared.bench.write("ours over", timeout=before[1], created_at=None)
    assert shared.original.purge() == 1
    assert shared.store.purge(100) == 0


def test_of_two_that_finish_a_task_one_does(shared: Shared) -> None:
    keys = [f"key{n:03}" for n in range(60)]
    for n, key in enumerate(keys):
        shared.original.submit(key, timeout=LONG_AGO + n)
    claims = shared.store.acquire(60, 100)
    theirs: list[str] = []
    thread = threading.Thread(target=lambda: theirs.extend(filter(shared.original.finish, reversed(keys))))
    thread.start()
    ours = [claim.row.key for claim in claims if finishes(shared.store, claim)]
    thread.join(30)
    assert sorted(ours + theirs) == keys


def finishes(store: TaskStore, claim: Claim) -> bool:
    """Finish the task of `claim`. Return False if another worker has finished or taken it."""
    try:
        store.retire(claim, "finished", None, 300, soon())
    except (AlreadyFinishedError, PreemptedError):
        return False
    return True


def test_finished_tasks_slow_no_poll(shared: Shared) -> None:
    now = int(time.time())
    done = {"data": PLAIN, "timeout": now - 1_000_000_000 + 240}
    with shared.bench.connect() as connection:
        insert = sa.text(f"INSERT INTO {shared.bench.table} (id, timeout, data) VALUES (:id, :timeout, :data)")
        connection.execute(insert, [{"id": f"done{n:04}", **done} for n in range(3000)])
    shared.original.submit("key", resource="u", max_running=1)
    with watched(shared.bench) as watch:
        assert keys_of(shared.store.acquire(10, 100)) == ["key"]
        assert shared.store.purge(100) == 0
    assert sum(watch.reads) <= 40, watch
    assert not [plan for plan in watch.plans if plan.startswith("SCAN queue") or "Seq Scan" in plan], watch


def assert_between(since: float, value: int) -> None:
    """Check that `value` is a whole number of seconds between `since` and now. The database's clock is this host's."""
    assert isinstance(value, int)
    assert since - 1 <= value <= time.time() + 1
