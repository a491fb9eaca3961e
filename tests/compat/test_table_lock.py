"""psched takes the table lock of the Ruby workers that share a table, so that these workers drop no tasks."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from psched.backends import open_stores
from psched.config import from_mapping
from psched.errors import ConfigError, ScheduleError
from psched.queue.queue import open_queue
from psched.store import StoreSettings, TaskStore
from tests.compat.original_queue import OriginalQueue
from tests.stores.bench import eventually, keys_of
from tests.stores.databases import DATABASES, SharedDatabases
from tests.stores.queue.bench import QueueBench
from tests.stores.queue.conftest import open_bench
from tests.stores.sent_statements import after_each

LONG_AGO = 1_600_000_000


@dataclass
class Shared:
    """A queue table on MariaDB, made by PerfectQueue."""

    bench: QueueBench
    original: OriginalQueue

    def store(self, **settings: bool) -> TaskStore:
        opened = open_stores("rdb_compat", StoreSettings(self.bench.url, "h", queue=self.bench.table, **settings))
        assert opened.queue is not None
        self.bench._queues.append(opened.queue)
        return opened.queue

    def fill(self, count: int) -> list[str]:
        keys = [f"key{n:03}" for n in range(count)]
        for n, key in enumerate(keys):
            self.original.submit(key, timeout=LONG_AGO + n)
        return keys

    def is_free(self) -> bool:
        with self.bench.connect() as connection:
            return bool(connection.scalar(sa.text("SELECT IS_FREE_LOCK(:table)"), {"table": self.bench.table}) == 1)

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        with self.bench.connect() as connection:
            assert connection.scalar(sa.text("SELECT GET_LOCK(:table, 10)"), {"table": self.bench.table}) == 1
            yield
            connection.execute(sa.text("DO RELEASE_LOCK(:table)"), {"table": self.bench.table})


@pytest.fixture
def shared(databases: SharedDatabases, tmp_path: Path) -> Iterator[Shared]:
    bench = open_bench(databases, "rdb_compat", "mariadb", tmp_path)
    original = OriginalQueue(bench)
    original.make_table()
    try:
        yield Shared(bench, original)
    finally:
        bench.close()


def test_nothing_is_claimed_between_the_two_statements_of_a_batch(
    shared: Shared, caplog: pytest.LogCaptureFixture
) -> None:
    keys = shared.fill(6)
    store = shared.store()
    seen: list[list[Any]] = []
    assert shared.original.acquire_batch(4, lambda: seen.append(store.acquire(2, 100))) == keys[:4]
    assert seen == [[]], "it claimed while somebody else held the lock"
    assert "this worker waits until it is free" in caplog.text
    assert keys_of(store.acquire(10, 100)) == keys[4:]
    assert shared.is_free()


def test_no_batch_is_dropped_and_each_task_is_taken_once(shared: Shared) -> None:
    keys = shared.fill(240)
    taken: list[str] = []
    dropped: list[None] = []

    def theirs() -> None:
        while (batch := shared.original.acquire_batch(7)) != []:
            taken.extend(batch or ())
            dropped.extend([None] * (batch is None))

    def ours() -> None:
        store = shared.store()
        while claims := store.acquire(5, 100):
            taken.extend(keys_of(claims))

    threads = [threading.Thread(target=work, daemon=True) for work in (ours, theirs, ours)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not dropped
    assert sorted(taken) == keys


def test_a_task_is_preempted_under_the_lock_too(shared: Shared) -> None:
    shared.fill(1)
    store = shared.store()
    with shared.held(), pytest.raises(ScheduleError, match="timed out waiting for the table lock"):
        store.preempt("key000", 100)
    assert store.preempt("key000", 100).row.key == "key000"
    assert shared.is_free()


def test_the_lock_is_free_after_an_error(shared: Shared) -> None:
    shared.fill(1)
    store = shared.store()
    shared.bench.execute("ALTER TABLE {table} RENAME COLUMN resource TO away")
    with pytest.raises(sa.exc.DBAPIError):
        store.acquire(1, 100)
    assert shared.is_free()
    shared.bench.execute("ALTER TABLE {table} RENAME COLUMN away TO resource")
    assert keys_of(store.acquire(1, 100)) == ["key000"]


class StoppedError(Exception):
    """Raised while tasks are claimed."""


def test_the_lock_is_free_after_a_claim_that_was_stopped(shared: Shared) -> None:
    shared.fill(1)
    store = shared.store()

    def stop(statement: str) -> None:
        if statement.startswith("UPDATE"):
            raise StoppedError

    with pytest.raises(StoppedError), after_each(stop):
        store.acquire(1, 100)
    assert eventually(shared.is_free)


def test_a_claim_counts_although_the_connection_is_lost_before_the_lock_is_released(shared: Shared) -> None:
    shared.fill(1)
    store = shared.store()

    def kill(connection: Any, cursor: Any, statement: str, *_: Any) -> None:
        if "RELEASE_LOCK" in statement:
            with shared.bench.connect() as other:
                other.exec_driver_sql(f"KILL {cursor.connection.thread_id()}")

    sa.event.listen(sa.Engine, "before_cursor_execute", kill)
    try:
        claims = store.acquire(1, 100)
    finally:
        sa.event.remove(sa.Engine, "before_cursor_execute", kill)
    assert keys_of(claims) == ["key000"]
    assert eventually(shared.is_free)
    assert store.extend([claim.lease for claim in claims], 100) != [None]


def test_without_limits_and_with_pooling_there_is_no_lock(shared: Shared) -> None:
    keys = shared.fill(3)
    with shared.held():
        for number, settings in enumerate([{"disable_resource_limit": True}, {"use_connection_pooling": True}]):
            assert shared.store(**settings).acquire(1, 100) == [], number
        free = shared.store(disable_resource_limit=True, use_connection_pooling=True)
        assert keys_of(free.acquire(10, 100)) == keys


@pytest.mark.parametrize("database", DATABASES)
def test_without_limits_users_are_not_limited(database: str, databases: SharedDatabases, tmp_path: Path) -> None:
    bench = open_bench(databases, "rdb_compat", database, tmp_path)
    shared = Shared(bench, OriginalQueue(bench))
    shared.original.make_table()
    for n in range(3):
        shared.original.submit(f"key{n}", resource="u", max_running=1, timeout=LONG_AGO + n)
    assert keys_of(shared.store().acquire(10, 100)) == ["key0"]
    assert keys_of(shared.store(disable_resource_limit=True).acquire(10, 100)) == ["key1", "key2"]
    bench.close()


def test_the_keys_are_read_for_the_originals_tables_and_refused_elsewhere(shared: Shared) -> None:
    flat = {"type": "rdb_compat", "url": shared.bench.url, "table": shared.bench.table}
    given = {"disable_resource_limit": True, "use_connection_pooling": "true"}
    section = from_mapping({**flat, **given}, reader="queue").queue
    assert section is not None
    shared.fill(1)
    with shared.held(), open_queue(section, "h") as queue:
        assert queue.poll() is not None
    for key in given:
        for type_, url in (("rdb", "sqlite:///x.db"), ("redis", "redis://h")):
            with pytest.raises(ConfigError, match=rf"queue: {key}: the key is for rdb_compat"):
                from_mapping({"type": type_, "url": url, key: True}, reader="queue")
        with pytest.raises(ConfigError, match=f"{key}: expected true or false"):
            from_mapping({**flat, key: 1.5}, reader="queue")
