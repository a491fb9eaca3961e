"""A listening worker is notified when a row becomes due, if the database can notify: on PostgreSQL."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
import sqlalchemy as sa
from psycopg import OperationalError

from psched.backends.sql.host_wakeup import WalWatch
from psched.model import NewTask
from psched.store import LeaseStore, TaskStore, Wakeup
from tests.stores.bench import FAR_OFF, HOURLY, LONG_AGO, Bench, eventually, soon
from tests.stores.databases import SharedDatabases
from tests.stores.queue.bench import QueueBench
from tests.stores.queue.conftest import made_bench

SILENCE = 0.15
"""Seconds after which a notification counts as not sent. A notification takes some milliseconds."""


@pytest.fixture
def bench(databases: SharedDatabases, tmp_path: Path) -> Iterator[QueueBench]:
    """A queue on PostgreSQL, with an empty table."""
    with made_bench(databases, "rdb", "postgresql", tmp_path) as bench:
        yield bench


@pytest.fixture
def store(bench: QueueBench) -> TaskStore:
    return bench.queue()


@pytest.fixture
def wakeup(store: TaskStore) -> Iterator[Wakeup]:
    """A wakeup of the queue that listens and has already received a notification."""
    with closing(open_wakeup(store)) as wakeup:
        wakeup.listen(60)
        eventually(lambda: not wakeup.is_notified() and wakeup.proven)
        yield wakeup


def open_wakeup(store: LeaseStore) -> Wakeup:
    wakeup = store.open_wakeup()
    assert wakeup is not None
    return wakeup


def rings(wakeup: Wakeup) -> bool:
    """Return whether the wakeup is notified within `SILENCE`."""
    end = time.monotonic() + SILENCE
    while time.monotonic() < end:
        if wakeup.is_notified():
            return True
        time.sleep(0.005)
    return False


def test_a_task_that_is_submitted_wakes_workers(store: TaskStore, wakeup: Wakeup) -> None:
    store.submit([NewTask("key", "t")])
    assert eventually(wakeup.is_notified)
    assert not wakeup.is_notified()


def test_it_wakes_workers_for_the_types_that_are_accepted_only(
    bench: QueueBench, store: TaskStore, wakeup: Wakeup
) -> None:
    choosy = store.open_wakeup(lambda type_: type_ == "a=b")
    assert choosy is not None
    with closing(choosy):
        choosy.listen(60)
        eventually(lambda: not choosy.is_notified() and choosy.proven)
        bench.submit(store, ["foreign", "more"], type="b")
        assert eventually(wakeup.is_notified)
        assert not rings(choosy)
        store.submit([NewTask("wanted", "a=b"), NewTask("other", "b")])
        assert eventually(choosy.is_notified)
        claim = store.acquire(1, 100, ["a=b"])[0]
        assert not rings(choosy)
        store.release(claim.lease, soon())
        assert eventually(choosy.is_notified)


def test_what_is_due_within_seconds_rings_and_what_is_due_later_does_not(store: TaskStore, wakeup: Wakeup) -> None:
    store.submit([NewTask("later", "t", run_at=FAR_OFF)])
    assert not rings(wakeup)
    store.submit([NewTask("soon", "t", run_at=store.now() + 5)])
    assert eventually(wakeup.is_notified)


def test_a_callers_transaction_wakes_workers_by_its_commit_and_not_by_a_rollback(
    bench: QueueBench, store: TaskStore, wakeup: Wakeup
) -> None:
    engine = sa.create_engine(bench.plain_url)
    try:
        with engine.connect() as connection:
            store.submit([NewTask("undone", "t")], connection)
            connection.rollback()
            store.submit([NewTask("done", "t")], connection)
            assert not rings(wakeup)
            connection.commit()
            assert eventually(wakeup.is_notified)
    finally:
        engine.dispose()


def test_what_is_given_back_or_tried_again_soon_wakes_workers(
    bench: QueueBench, store: TaskStore, wakeup: Wakeup
) -> None:
    bench.submit(store, ["key"])
    eventually(wakeup.is_notified)
    for begun in (True, False):
        store.release(bench.claim(store, "key").lease, soon(), begun)
        assert eventually(wakeup.is_notified)
    store.retry(bench.claim(store, "key").lease, 0, None, soon())
    assert eventually(wakeup.is_notified)
    claim = bench.claim(store, "key")
    store.give_back(claim.row.node or "", [], 10)
    assert eventually(wakeup.is_notified)
    store.retire(bench.claim(store, "key"), "failed", None, None, soon())
    assert not rings(wakeup)
    store.retry_failed("key")
    assert eventually(wakeup.is_notified)


def test_taking_renewing_and_finishing_call_nobody(bench: QueueBench, store: TaskStore, wakeup: Wakeup) -> None:
    bench.submit(store, ["key", "other"])
    eventually(wakeup.is_notified)
    done, late = store.acquire(2, 1)
    store.extend([done.lease, late.lease], 1)
    store.retire(done, "finished", None, 10, soon())
    store.retry(late.lease, 1000, None, soon())
    assert not rings(wakeup)


def test_rows_that_others_write_wake_workers_too(bench: QueueBench, store: TaskStore, wakeup: Wakeup) -> None:
    bench.submit(store, ["key"], run_at=FAR_OFF)
    bench.make_due("key")
    assert eventually(wakeup.is_notified)


def test_who_is_busy_is_not_called_and_hears_again_afterwards(store: TaskStore, wakeup: Wakeup) -> None:
    wakeup.stop_listening()
    store.submit([NewTask("unheard", "t")])
    wakeup.listen(60)
    assert not rings(wakeup)
    store.submit([NewTask("heard", "t")])
    assert eventually(wakeup.is_notified)
    assert wakeup.proven


def test_all_listeners_are_woken(store: TaskStore, wakeup: Wakeup) -> None:
    with closing(open_wakeup(store)) as other:
        other.listen(60)
        store.submit([NewTask("key", "t")])
        assert eventually(wakeup.is_notified)
        assert eventually(other.is_notified)


def test_a_schedule_wakes_workers_when_it_is_added_and_when_it_moves_on(
    databases: SharedDatabases, tmp_path: Path
) -> None:
    bench: Bench = databases.bench("rdb", "postgresql", tmp_path)
    store = bench.open()
    try:
        store.create_tables()
        with closing(open_wakeup(store)) as wakeup:
            wakeup.listen(60)
            store.add("later", "t", HOURLY, FAR_OFF, FAR_OFF, {})
            assert not rings(wakeup)
            bench.add(store, "key")
            assert eventually(wakeup.is_notified)
            store.advance(bench.take(store, "key"), LONG_AGO + 1, LONG_AGO + 1, soon())
            assert eventually(wakeup.is_notified)
            store.advance(bench.take(store, "key"), FAR_OFF, FAR_OFF, soon())
            assert not rings(wakeup)
    finally:
        bench.close()


def test_a_table_without_triggers_is_reported_and_its_wakeup_not_trusted(bench: QueueBench, store: TaskStore) -> None:
    assert not [finding for finding in store.diagnose() if not finding.ok]
    bench.execute("DROP TRIGGER psched_notify ON {table}")
    assert ["psched init" in finding.text for finding in store.diagnose() if not finding.ok] == [True]
    with closing(open_wakeup(store)) as wakeup:
        wakeup.listen(60)
        assert not rings(wakeup)
        assert not wakeup.proven


def test_a_lost_connection_is_an_error_and_is_made_anew(bench: QueueBench, store: TaskStore, wakeup: Wakeup) -> None:
    listening = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query LIKE 'LISTEN%{table}\"'"
    assert bench.execute(listening) == 1
    with pytest.raises(OperationalError):
        eventually(wakeup.is_notified)
    wakeup.listen(60)
    eventually(lambda: not wakeup.is_notified() and wakeup.proven)
    store.submit([NewTask("key", "t")])
    assert eventually(wakeup.is_notified)


@pytest.mark.skipif(sys.platform != "linux", reason="inotify is of Linux")
def test_on_sqlite_writes_of_other_processes_wake(databases: SharedDatabases, tmp_path: Path) -> None:
    with made_bench(databases, "rdb", "sqlite", tmp_path) as bench:
        store = bench.queue()
        store.next_due()  # a connection is open, and with it the file
        with closing(open_wakeup(store)) as wakeup:
            wakeup.listen(60)
            assert not rings(wakeup)
            subprocess.run([sys.executable, "-c", _SUBMIT, bench.url], check=True)
            assert eventually(wakeup.is_notified)
            assert not rings(wakeup), "a reader has woken it"
            wakeup.stop_listening()
            store.submit([NewTask("unheard", "t")])
            wakeup.listen(60)
            assert not rings(wakeup), "it was woken for what came before"
            store.submit([NewTask("heard", "t")])
            assert eventually(wakeup.is_notified)


_SUBMIT = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1].removeprefix("sqlite:///"), isolation_level=None)
connection.execute("BEGIN IMMEDIATE")
connection.execute("CREATE TABLE written (by_whom TEXT)")
connection.execute("COMMIT")
"""


def test_a_watched_file_that_is_gone_is_an_error_and_a_new_one_is_watched(tmp_path: Path) -> None:
    file = tmp_path / "wal"
    with closing(WalWatch(str(file))) as wakeup:
        with pytest.raises(FileNotFoundError):
            wakeup.listen(60)
        file.touch()
        wakeup.listen(60)
        file.unlink()
        assert eventually(wakeup.is_notified)
        file.touch()
        wakeup.listen(60)
        assert not rings(wakeup)
        file.write_text("more")
        assert eventually(wakeup.is_notified)


@pytest.mark.skipif(sys.platform != "linux", reason="abstract sockets are of Linux")
def test_on_mariadb_one_worker_of_the_host_is_woken_after_the_commit(
    databases: SharedDatabases, tmp_path: Path
) -> None:
    with made_bench(databases, "rdb", "mariadb", tmp_path) as bench:
        store, client = bench.queue(), bench.queue()
        with closing(open_wakeup(store)) as first, closing(open_wakeup(store)) as second:
            first.listen(60)
            second.listen(60)
            for number in range(300):  # more than the socket holds
                client.submit([NewTask(f"task-{number}", "t")])
            assert first.is_notified()
            assert not first.is_notified()
            assert not second.is_notified()
            first.stop_listening()
            second.listen(60)
            client.submit([NewTask("for the second", "t")])
            assert second.is_notified()
            assert not first.is_notified()
        client.submit([NewTask("unheard", "t")])


def test_other_databases_wake_no_worker(databases: SharedDatabases, tmp_path: Path) -> None:
    for type_, database in [("rdb_compat", "mariadb"), ("rdb_compat", "postgresql"), ("rdb_compat", "sqlite")]:
        bench = databases.bench(type_, database, tmp_path)
        assert bench.open().open_wakeup() is None
        bench.close()
