"""Submits in the caller's transaction: the caller's work and its task are both stored, or neither, whatever happens."""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from psched.errors import AlreadyExistsError, NotSupportedError
from psched.model import LeaseTimes, NewTask
from psched.queue.queue import Queue
from tests.faults.killed_process import is_killed_before
from tests.stores.bench import eventually
from tests.stores.databases import DATABASES, STORES, SharedDatabases
from tests.stores.queue.bench import QueueBench, keys_in
from tests.stores.queue.conftest import open_bench

Caller = sa.Connection | Session


@pytest.fixture(params=[(type_, database) for database in DATABASES for type_ in STORES], ids="-".join)
def bench(request: pytest.FixtureRequest, databases: SharedDatabases, tmp_path: Path) -> Iterator[QueueBench]:
    """Each kind of queue on each database, with a table `orders`, which is the caller's."""
    type_, database = request.param
    bench = open_bench(databases, type_, database, tmp_path)
    try:
        bench.queue().create_tables()
        bench.execute("CREATE TABLE {table}_orders (number VARCHAR(50) NOT NULL PRIMARY KEY)")
        yield bench
    finally:
        bench.close()


@pytest.fixture
def kind(bench: QueueBench) -> type[Caller]:
    """The class of the caller's object: a Connection on `rdb_compat`, a Session on `rdb`."""
    return sa.Connection if bench.compat else Session


@contextmanager
def caller_on(bench: QueueBench, kind: type[Caller]) -> Iterator[Caller]:
    """Yield a connection or session of the caller's. What is not committed is rolled back."""
    engine = sa.create_engine(bench.plain_url)
    try:
        with engine.connect() if kind is sa.Connection else Session(engine) as caller:
            yield caller
    finally:
        engine.dispose()


def order(bench: QueueBench, caller: Caller, number: str) -> None:
    caller.execute(sa.text(f"INSERT INTO {bench.table}_orders VALUES (:number)"), {"number": number})


def orders(bench: QueueBench) -> list[str]:
    with bench.connect() as connection:
        return sorted(connection.scalars(sa.text(f"SELECT number FROM {bench.table}_orders")))


def queue_on(bench: QueueBench) -> Queue:
    return Queue(bench.queue(), LeaseTimes(100, 1, 100))


def test_a_killed_caller_leaves_both_its_work_and_its_task_or_neither(bench: QueueBench, kind: type[Caller]) -> None:
    def work(number: str, begin: Callable[[], None]) -> None:
        begin()
        queue = queue_on(bench)
        with caller_on(bench, kind) as caller:
            order(bench, caller, number)
            queue.submit(number, "type1", {"n": 1}, user="u", connection=caller)
            order(bench, caller, f"{number} too")
            caller.commit()

    bench.close()
    for statement in itertools.count():
        killed = is_killed_before(statement, partial(work, f"order{statement}"))
        if not killed:
            break
        assert (orders(bench), keys_in(bench.queue())) == ([], [])
    assert statement >= 4, "he was not killed between his statements"
    assert keys_in(bench.queue()) == [f"order{statement}"]
    assert orders(bench) == [f"order{statement}", f"order{statement} too"]


def test_a_task_goes_with_the_savepoint_it_was_submitted_in(bench: QueueBench, kind: type[Caller]) -> None:
    queue = queue_on(bench)
    with caller_on(bench, kind) as caller:
        order(bench, caller, "1")
        queue.submit("kept", "type1", connection=caller)
        with caller.begin_nested() as savepoint:
            order(bench, caller, "2")
            queue.submit("dropped", "type1", connection=caller)
            savepoint.rollback()
        with caller.begin_nested():
            queue.submit("also kept", "type1", connection=caller)
        caller.commit()
    assert keys_in(queue.store) == ["also kept", "kept"]
    assert orders(bench) == ["1"]


def test_a_refused_key_leaves_the_callers_transaction_usable(bench: QueueBench, kind: type[Caller]) -> None:
    queue = queue_on(bench)
    queue.submit("old", "type1", {"n": 1})
    before = bench.raw("old")
    with caller_on(bench, kind) as caller:
        order(bench, caller, "1")
        with pytest.raises(AlreadyExistsError):
            queue.submit("old", "type2", connection=caller)
        queue.submit("new", "type1", connection=caller)
        order(bench, caller, "2")
        caller.commit()
    assert orders(bench) == ["1", "2"]
    assert keys_in(queue.store) == ["new", "old"]
    assert bench.raw("old") == before


@pytest.mark.parametrize("commits", [True, False], ids=["commits", "rolls back"])
def test_a_key_that_another_caller_is_submitting_waits_for_its_commit(bench: QueueBench, commits: bool) -> None:
    if bench.database == "sqlite":  # where nobody else writes in the meantime
        return
    queue, looked, go_on = queue_on(bench), threading.Event(), threading.Event()
    present: list[str] = []

    def second() -> None:
        with caller_on(bench, sa.Connection) as caller:
            seen = caller.scalar(sa.text(f"SELECT COUNT(*) FROM {bench.table}"))  # he may go on seeing that
            looked.set()
            go_on.wait(10)
            order(bench, caller, str(seen))
            present.extend(queue.submit_many([NewTask("key", "type2")], caller))
            caller.commit()

    thread = threading.Thread(target=second)
    with caller_on(bench, sa.Connection) as first:
        thread.start()
        looked.wait(10)
        queue.submit("key", "type1", connection=first)
        go_on.set()
        eventually(lambda: waiting_for_locks(bench))
        if commits:
            first.commit()
    thread.join(10)
    assert (present, orders(bench)) == (["key"] if commits else [], ["0"])
    assert queue["key"].metadata().type == ("type1" if commits else "type2")


def waiting_for_locks(bench: QueueBench) -> bool:
    """Return whether a statement waits for another transaction."""
    question = {
        "mysql": "SELECT COUNT(*) FROM information_schema.processlist WHERE info LIKE 'INSERT%'",
        "postgresql": "SELECT COUNT(*) FROM pg_locks WHERE NOT granted",
    }[bench.database]
    with bench.connect() as connection:
        return bool(connection.execute(sa.text(question)).scalar())


def test_what_is_no_connection_is_named(bench: QueueBench) -> None:
    engine = sa.create_engine(bench.plain_url)
    queue = bench.queue()
    for given, name in ((engine, "sqlalchemy.engine.base.Engine"), (7, "builtins.int")):
        expected = f"connection: expected an SQLAlchemy Connection or Session, .* got {name}; .* `submit_sql`"
        with pytest.raises(NotSupportedError, match=expected):
            queue.submit([NewTask("k", "t", {})], given)
        with pytest.raises(NotSupportedError, match=expected):
            asyncio.run(queue.submit_async([NewTask("k", "t", {})], given))
    engine.dispose()
    assert queue.get("k") is None


def test_a_session_s_proxy_is_a_session(bench: QueueBench) -> None:
    engine = sa.create_engine(bench.plain_url)
    session = scoped_session(sessionmaker(engine))
    assert bench.queue().submit([NewTask("k", "t", {})], session) == []
    session.commit()
    session.remove()
    engine.dispose()
    assert bench.queue().get("k") is not None
