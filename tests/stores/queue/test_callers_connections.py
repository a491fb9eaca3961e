"""Submitting in a caller's transaction, on every kind of connection: task and work are both stored or neither."""

from __future__ import annotations

import sqlite3
from collections.abc import Awaitable, Callable, Iterator
from contextlib import closing
from functools import cache
from pathlib import Path
from typing import Any

import psycopg
import pymysql
import pytest
import sqlalchemy as sa
from psycopg.pq import TransactionStatus
from psycopg.rows import dict_row

from faultlab.laboratory import Lab
from psched.errors import AlreadyExistsError, NotSupportedError
from psched.model import LeaseTimes, NewTask
from psched.queue.queue import Queue
from tests.stores.bench import FAR_OFF, eventually
from tests.stores.databases import KINDS, PGBOUNCER, STORES, SharedDatabases
from tests.stores.queue.bench import QueueBench, keys_in, row_of
from tests.stores.queue.callers import (
    CALLERS,
    AsyncConnectionCaller,
    AsyncpgCaller,
    Caller,
    ConnectionCaller,
    DjangoCaller,
    PsycopgCaller,
    PyMySQLCaller,
    Sqlite3Caller,
)
from tests.stores.queue.conftest import made_bench, open_bench

Place = tuple[QueueBench, Queue, Caller]

_ON_COMPAT = {ConnectionCaller, Sqlite3Caller, PyMySQLCaller, PsycopgCaller, AsyncpgCaller}
"""One caller for each style of parameters. That is enough, because the code for callers does not know the table's type.
"""
_ALL = [
    (type_, database, kind)
    for database in CALLERS
    for type_ in STORES
    for kind in CALLERS[database]
    if type_ == "rdb" or kind in _ON_COMPAT
]


def _id(value: Any) -> str:
    type_, database, kind = value
    return f"{type_}-{database}-{kind.__name__.removesuffix('Caller')}"


def callers(*kinds: type[Caller], on: tuple[str, ...] = tuple(CALLERS)) -> pytest.MarkDecorator:
    """Parametrise a test with these kinds of callers (default: all) of `rdb`, on these databases."""
    chosen = [each for each in _ALL if each[0] == "rdb" and each[1] in on and each[2] in (kinds or CALLERS[each[1]])]
    return pytest.mark.parametrize("place", chosen, indirect=True, ids=_id)


@pytest.fixture(params=_ALL, ids=_id)
def place(request: pytest.FixtureRequest, databases: SharedDatabases, tmp_path: Path) -> Iterator[Place]:
    """A queue, and a caller on its database, where the table `orders` belongs to the caller."""
    type_, database, kind = request.param
    with made_bench(databases, type_, database, tmp_path) as bench:
        with bench.sql.connect() as connection:
            orders = f"{bench.table}_orders"
            connection.execute(
                sa.text(f"CREATE TABLE IF NOT EXISTS {orders} (number VARCHAR(50) NOT NULL PRIMARY KEY)")
            )
            connection.execute(sa.text(f"DELETE FROM {orders}"))
        yield bench, Queue(bench.queue(), LeaseTimes(100, 1, 100)), kind(bench.sql.plain_url)


@pytest.fixture(scope="session")
def elsewhere(lab: Lab) -> Callable[[str, str, str], str]:
    """A function that returns the URL of another database on a server. It makes the table there."""

    @cache
    def url(database: str) -> str:
        server = lab.shared(KINDS[database])
        return server.url(server.create_database())

    @cache
    def made(database: str, type_: str, table: str) -> str:
        with closing(QueueBench(type_, url(database), table)) as bench:
            bench.make()
        return url(database)

    return made


def orders(bench: QueueBench) -> list[str]:
    with bench.sql.connect() as connection:
        return sorted(connection.scalars(sa.text(f"SELECT number FROM {bench.table}_orders")))


def test_a_task_is_there_once_its_caller_has_committed_and_never_after_a_rollback(place: Place) -> None:
    bench, queue, caller = place

    async def work() -> None:
        await caller.execute(f"INSERT INTO {bench.table}_orders VALUES ('1')")
        task = await caller.submit(queue, "one", "type1")
        assert task.key == "one"
        assert keys_in(queue.store) == []
        await caller.commit()
        assert keys_in(queue.store) == ["one"]
        await caller.execute(f"INSERT INTO {bench.table}_orders VALUES ('2')")
        await caller.submit(queue, "two", "type1")
        await caller.rollback()
        await caller.submit(queue, "three", "type1")

    caller.run(work)
    assert (keys_in(queue.store), orders(bench)) == (["one"], ["1"])


def test_a_key_that_exists_leaves_the_transaction_usable(place: Place) -> None:
    bench, queue, caller = place
    queue.submit("old", "type1", {"n": 1})
    before = bench.raw("old")

    async def work() -> None:
        await caller.execute(f"INSERT INTO {bench.table}_orders VALUES ('1')")
        with pytest.raises(AlreadyExistsError, match="'old'"):
            await caller.submit(queue, "old", "type2")
        assert await caller.execute("SELECT 1") == 1
        await caller.submit(queue, "new", "type1")
        with pytest.raises(AlreadyExistsError, match="'new'"):
            await caller.submit(queue, "new", "type2")
        await caller.execute(f"INSERT INTO {bench.table}_orders VALUES ('2')")
        await caller.commit()

    caller.run(work)
    assert orders(bench) == ["1", "2"]
    assert keys_in(queue.store) == ["new", "old"]
    assert (bench.raw("old"), row_of(queue.store, "new").type) == (before, "type1")


def test_many_tasks_are_written_in_the_transaction_and_existing_keys_are_returned(place: Place) -> None:
    _, queue, caller = place
    queue.submit("key3", "type1")
    tasks = [NewTask(f"key{n}", "type2", {"n": n, "text": "% %s $1 ? :a"}, FAR_OFF, f"ü{n % 3}", 2) for n in range(9)]

    async def work() -> tuple[list[str], list[str]]:
        present = await caller.submit_many(queue, tasks)
        assert keys_in(queue.store) == ["key3"]
        again = await caller.submit_many(queue, tasks[:4])
        await caller.commit()
        return present, again

    present, again = caller.run(work)
    assert (present, sorted(again)) == (["key3"], ["key0", "key1", "key2", "key3"])
    assert keys_in(queue.store) == [f"key{n}" for n in range(9)]
    row = row_of(queue.store, "key7")
    assert (row.type, row.data, row.user, row.max_running) == ("type2", tasks[7].data, "ü1", 2)


def test_a_task_is_stored_as_it_is_without_a_connection(place: Place) -> None:
    bench, queue, caller = place
    options: dict[str, Any] = {"run_at": FAR_OFF, "user": "u", "max_running": 3, "compression": "gzip"}
    if not bench.compat:
        options |= {"priority": -7, "max_attempts": 4, "headers": {"trace": "ä"}}
    queue.submit("own", "type1", {"text": "ä\\'\"%" * 50}, **options)

    async def work() -> None:
        await caller.submit(queue, "callers", "type1", {"text": "ä\\'\"%" * 50}, **options)
        await caller.commit()

    caller.run(work)
    own, theirs = bench.raw("own"), bench.raw("callers")
    assert own is not None
    assert theirs is not None
    differing = {name for name in own if own[name] != theirs[name]}
    clocked = {"key", "nonce", "fence", "created", "updated"}
    assert differing <= ({"id", "created_at"} if bench.compat else clocked), differing


@callers()
def test_a_database_error_of_the_caller_s_is_the_driver_s_own(place: Place) -> None:
    """If the table was dropped, the caller gets the driver's error, and none of psched's."""
    bench, queue, caller = place
    queue.submit("first", "type1")
    bench.execute("ALTER TABLE {table} RENAME TO {table}_gone")

    async def work() -> BaseException:
        with pytest.raises(Exception) as caught:  # noqa: PT011 – each driver has its own
            await caller.submit(queue, "key", "type1")
        return caught.value

    error = caller.run(work)
    bench.execute("ALTER TABLE {table}_gone RENAME TO {table}")
    bench.sql.as_made = True
    module = type(error).__module__
    assert module.startswith(("sqlalchemy", "django", "sqlite3", "pymysql", "MySQLdb", "psycopg", "asyncpg", "psched"))
    if module.startswith("psched"):  # PostgreSQL has said that there is no such table, without failing
        assert bench.database == "postgresql"


def test_a_caller_on_another_database_is_refused_and_may_go_on(
    place: Place, elsewhere: Callable[[str, str, str], str], tmp_path: Path
) -> None:
    bench, queue, caller = place
    if bench.database == "sqlite":
        another = QueueBench(bench.type, f"sqlite:///{tmp_path}/other.db", bench.table)
        another.make()
    else:
        name = {"mysql": "mariadb"}.get(bench.database, bench.database)
        another = QueueBench(bench.type, elsewhere(name, bench.type, bench.table), bench.table)
    stranger = type(caller)(another.plain_url)
    names = (another.plain_url.database, bench.sql.plain_url.database)

    async def work() -> None:
        expected = f"connection: it is on the database '{names[0]}', but the table {bench.table} .* in '{names[1]}'; "
        with pytest.raises(NotSupportedError, match=expected):
            await stranger.submit(queue, "key", "type1")
        assert await stranger.execute("SELECT 1") == 1
        await stranger.commit()

    stranger.run(work)
    assert (keys_in(queue.store), keys_in(another.queue())) == ([], [])
    another.close()


@callers(PsycopgCaller, AsyncpgCaller, ConnectionCaller, DjangoCaller, on=("postgresql",))
def test_a_caller_whose_search_path_finds_another_table_is_refused(place: Place) -> None:
    bench, queue, caller = place
    schema = f"schema_{bench.table}"
    bench.execute(f"CREATE SCHEMA {schema}")
    bench.execute(f"CREATE TABLE {schema}.{{table}} (LIKE public.{{table}} INCLUDING ALL)")

    async def work() -> None:
        await caller.execute(f"SET LOCAL search_path = {schema}")
        with pytest.raises(NotSupportedError, match=f"the name {bench.table} does not mean the table of the queue"):
            await caller.submit(queue, "key", "type1")
        assert await caller.execute(f"SELECT COUNT(*) FROM {bench.table}") == 0
        await caller.execute("SET LOCAL search_path = public")
        await caller.submit(queue, "key", "type1")
        await caller.commit()

    caller.run(work)
    assert keys_in(queue.store) == ["key"]


@callers(Sqlite3Caller, ConnectionCaller, AsyncConnectionCaller, DjangoCaller, on=("sqlite",))
def test_a_caller_whose_temporary_table_hides_that_of_the_queue_is_refused(place: Place) -> None:
    bench, queue, caller = place

    async def work() -> None:
        await caller.execute(f"CREATE TEMP TABLE {bench.table.upper()} AS SELECT * FROM {bench.table}")
        with pytest.raises(
            NotSupportedError, match=f"{bench.table} does not mean the table of the queue; .* temporary tables"
        ):
            await caller.submit(queue, "key", "type1")
        await caller.execute(f"DROP TABLE temp.{bench.table}")
        await caller.submit(queue, "key", "type1")
        await caller.commit()

    caller.run(work)
    assert keys_in(queue.store) == ["key"]


def test_a_closed_raw_connection_is_refused(databases: SharedDatabases, tmp_path: Path) -> None:
    bench = open_bench(databases, "rdb", "sqlite", tmp_path)
    bench.queue().create_tables()
    engine = sa.create_engine(bench.plain_url)
    raw = engine.raw_connection()
    raw.close()
    with pytest.raises(NotSupportedError, match="connection: it is already closed; submit before closing it"):
        Queue(bench.queue(), LeaseTimes(100, 1, 100)).submit("key", "type1", connection=raw)
    engine.dispose()
    bench.close()


@callers(PsycopgCaller, AsyncpgCaller, ConnectionCaller, AsyncConnectionCaller, DjangoCaller, on=("postgresql",))
def test_a_transaction_that_cannot_be_serialized_leaves_no_task(place: Place) -> None:
    bench, queue, caller = place
    table = f"{bench.table}_orders"
    bench.execute("INSERT INTO {table}_orders VALUES ('1')")

    async def conflict(last: Callable[[], Awaitable[object]]) -> None:
        with pytest.raises(Exception, match="could not serialize access") as caught:
            await last()
        assert not type(caught.value).__module__.startswith("psched")
        await caller.rollback()
        assert keys_in(queue.store) == ["theirs"]

    async def begin() -> None:
        await caller.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        assert await caller.execute(f"SELECT number FROM {table}") in ("1", "2")

    async def work() -> None:
        await begin()
        queue.submit("theirs", "type1")  # after the snapshot, so that the INSERT cannot skip it
        await conflict(lambda: caller.submit(queue, "theirs", "type1"))
        await begin()
        await caller.submit(queue, "key", "type1")
        bench.execute("UPDATE {table}_orders SET number = '2'")
        await conflict(lambda: caller.execute(f"UPDATE {table} SET number = '3'"))
        await begin()
        await caller.submit(queue, "key", "type1")
        await caller.commit()

    caller.run(work)
    assert sorted(keys_in(queue.store)) == ["key", "theirs"]


@callers(PsycopgCaller, AsyncpgCaller, PyMySQLCaller, Sqlite3Caller)
def test_a_table_that_was_made_anew_is_found_again(place: Place) -> None:
    bench, queue, caller = place

    async def submit(key: str) -> None:
        await caller.submit(queue, key, "type1")
        await caller.commit()

    caller.run(lambda: submit("one"))
    bench.execute("DROP TABLE {table}")
    bench.queue().create_tables()
    caller.run(lambda: submit("two"))
    assert keys_in(queue.store) == ["two"]


_AUTOCOMMIT: dict[type[Caller], Any] = {
    Sqlite3Caller: lambda connection: setattr(connection, "isolation_level", None),
    PyMySQLCaller: lambda connection: connection.autocommit(True),
    PsycopgCaller: lambda connection: setattr(connection, "autocommit", True),
    DjangoCaller: lambda connection: connection.set_autocommit(True),
    ConnectionCaller: lambda connection: connection.execution_options(isolation_level="AUTOCOMMIT"),
}


@callers(*_AUTOCOMMIT)
def test_a_connection_in_autocommit_writes_at_once_and_stays_so(place: Place) -> None:
    bench, queue, caller = place

    async def work() -> None:
        _AUTOCOMMIT[type(caller)](caller.connection)
        await caller.submit(queue, "key", "type1")
        assert keys_in(queue.store) == ["key"]
        await caller.execute(f"INSERT INTO {bench.table}_orders VALUES ('1')")
        assert orders(bench) == ["1"]

    caller.run(work)


@callers(Sqlite3Caller, PyMySQLCaller, PsycopgCaller)
def test_row_factories_and_open_cursors_stay_as_they_are(place: Place) -> None:
    bench, queue, caller = place
    queue.submit("old", "type1")
    numbers = [f"{n:03}" for n in range(300)]

    async def work() -> list[Any]:
        for number in numbers:
            await caller.execute(f"INSERT INTO {bench.table}_orders VALUES ('{number}')")
        connection = caller.connection
        if bench.database == "sqlite":
            connection.row_factory, connection.text_factory = sqlite3.Row, bytes
            cursor = connection.cursor()
        elif bench.database == "mysql":
            connection.cursorclass = pymysql.cursors.DictCursor
            cursor = connection.cursor()
        else:
            connection.row_factory = dict_row
            cursor = connection.cursor("named")
        cursor.execute(f"SELECT number FROM {bench.table}_orders ORDER BY number")
        found = [cursor.fetchone()["number"]]
        assert await caller.submit_many(queue, [NewTask(key, "type1") for key in ("new", "old")]) == ["old"]
        found += [row["number"] for row in cursor.fetchall()]
        cursor.close()
        connection.commit()
        return found

    found = caller.run(work)
    assert [number.decode() if isinstance(number, bytes) else number for number in found] == numbers
    assert keys_in(queue.store) == ["new", "old"]


def test_a_pooler_of_transactions_may_stand_before_the_caller(databases: SharedDatabases, tmp_path: Path) -> None:
    """No statement is prepared, although psycopg and asyncpg would prepare statements that are executed often."""
    bench = open_bench(databases, "rdb", PGBOUNCER, tmp_path)
    bench.queue().create_tables()
    queue = Queue(bench.queue(), LeaseTimes(100, 1, 100))
    for kind in (PsycopgCaller, AsyncpgCaller):
        one, other = kind(bench.plain_url), PsycopgCaller(bench.plain_url)

        async def work(caller: Caller = one, neighbour: Caller = other) -> None:
            for n in range(8):
                await neighbour.open()  # takes the session that the caller had
                await neighbour.execute("SELECT 1")
                await caller.submit(queue, f"{type(caller).__name__}{n}", "type1")
                await caller.commit()
                assert await neighbour.execute("SELECT count(*) FROM pg_prepared_statements") == 0
                await neighbour.close()

        one.run(work)
    assert len(keys_in(queue.store)) == 16
    bench.close()


@callers(PsycopgCaller)
def test_a_transaction_that_has_failed_is_reported_by_the_driver_and_is_left_as_it_is(place: Place) -> None:
    _, queue, caller = place

    async def work() -> None:
        with pytest.raises(psycopg.errors.UndefinedTable):
            await caller.execute("SELECT * FROM nowhere")
        with pytest.raises(psycopg.errors.InFailedSqlTransaction):
            await caller.submit(queue, "key", "type1")
        assert caller.connection.info.transaction_status == TransactionStatus.INERROR

    caller.run(work)


@callers(on=("sqlite", "postgresql"))
def test_workers_are_woken_by_the_commit_and_not_before(place: Place) -> None:
    bench, queue, caller = place
    wakeup = queue.store.open_wakeup()
    assert wakeup is not None

    async def work() -> None:
        wakeup.listen(60)
        if bench.database == "postgresql":
            eventually(lambda: not wakeup.is_notified() and wakeup.proven)
        while wakeup.is_notified():
            pass
        await caller.submit(queue, "key", "type1")
        if bench.database == "postgresql":  # on SQLite it may be woken too early
            assert not wakeup.is_notified()
        await caller.commit()
        eventually(wakeup.is_notified)

    try:
        caller.run(work)
    finally:
        wakeup.close()


@callers()
def test_a_blocking_connection_is_refused_by_asubmit_and_an_awaited_one_by_submit(place: Place) -> None:
    _, queue, caller = place

    async def work() -> None:
        if caller.awaited:
            with pytest.raises(NotSupportedError, match="is asynchronous; call `await queue.asubmit"):
                queue.submit("key", "type1", connection=caller.connection)
        else:
            with pytest.raises(NotSupportedError, match="blocks the event loop; call `submit` instead of `asubmit`"):
                await queue.asubmit("key", "type1", connection=caller.connection)
        await caller.submit(queue, "right", "type1")
        await caller.commit()

    caller.run(work)
    assert keys_in(queue.store) == ["right"]


@pytest.mark.parametrize("database", list(CALLERS))
@pytest.mark.parametrize("type_", STORES)
def test_a_connection_of_another_kind_of_database_is_refused_by_name(
    databases: SharedDatabases, tmp_path: Path, type_: str, database: str
) -> None:
    bench, sqlite = (open_bench(databases, type_, name, tmp_path) for name in (database, "sqlite"))
    kinds = {"sqlite": (PsycopgCaller, "postgresql"), "mariadb": (Sqlite3Caller, "sqlite")}
    kind, other = kinds.get(database, (Sqlite3Caller, "sqlite"))
    url = open_bench(databases, type_, other, tmp_path).plain_url if other != "sqlite" else sqlite.plain_url
    queue = Queue(bench.queue(), LeaseTimes(100, 1, 100))
    caller = kind(url)

    async def work() -> None:
        kind_of_ours = {"mariadb": "mysql"}.get(database, database)
        with pytest.raises(
            NotSupportedError, match=f"it belongs to a {other} database, but the table .* in {kind_of_ours}"
        ):
            await caller.submit(queue, "key", "type1")

    caller.run(work)
    bench.close()


@pytest.mark.parametrize("awaited", [False, True], ids=["submit", "asubmit"])
def test_a_queue_in_memory_or_on_redis_joins_no_transaction(
    databases: SharedDatabases, tmp_path: Path, awaited: bool
) -> None:
    redis = open_bench(databases, "redis", "redis", tmp_path)
    memory = QueueBench("rdb", "sqlite://", "queue")
    file = open_bench(databases, "rdb", "sqlite", tmp_path)
    file.make()
    caller = AsyncConnectionCaller(file.plain_url) if awaited else Sqlite3Caller(file.plain_url)
    for bench, expected in ((redis, "a queue on Redis cannot join"), (memory, "is in memory, where only the")):
        queue = Queue(bench.queue(), LeaseTimes(100, 1, 100))
        queue.store.create_tables()

        async def work(queue: Queue = queue, expected: str = expected) -> None:
            with pytest.raises(NotSupportedError, match=expected):
                await caller.submit(queue, "key", "type1")

        caller.run(work)
        assert keys_in(queue.store) == []
    for bench in (redis, memory, file):
        bench.close()


_STYLES: dict[str, list[tuple[type[Caller], str | None]]] = {
    "sqlite": [(Sqlite3Caller, None), (Sqlite3Caller, "named"), (Sqlite3Caller, "numeric")],
    "mariadb": [(PyMySQLCaller, None), (PyMySQLCaller, "pyformat")],
    "postgresql": [(PsycopgCaller, None), (PsycopgCaller, "format"), (AsyncpgCaller, "numeric_dollar")],
}


@pytest.mark.parametrize("database", list(CALLERS))
@pytest.mark.parametrize("type_", STORES)
def test_the_sql_of_a_task_creates_it_on_any_connection(
    databases: SharedDatabases, tmp_path: Path, type_: str, database: str
) -> None:
    bench = open_bench(databases, type_, database, tmp_path)
    bench.make()
    queue = Queue(bench.queue(), LeaseTimes(100, 1, 100))
    for n, (kind, style) in enumerate(_STYLES[database]):
        caller = kind(bench.plain_url)
        task = NewTask(f"key{n}", "type1", {"text": "% %s $1 ? :a ä"}, FAR_OFF, "u", 2)

        async def work(caller: Caller = caller, task: NewTask = task, style: str | None = style) -> None:
            sql, parameters = queue.submit_sql(task, style)
            assert await created(caller, sql, parameters)
            assert not await created(caller, *queue.submit_sql(task, style))
            await caller.commit()

        caller.run(work)
        row = row_of(queue.store, task.key)
        assert (row.type, row.data, row.user, row.max_running) == ("type1", task.data, "u", 2)
    with pytest.raises(ValueError, match="paramstyle must be one of format, named, .* got 'dollar'"):
        queue.submit_sql(NewTask("k", "t"), "dollar")
    with pytest.raises(ValueError, match="key"):
        queue.submit_sql(NewTask("", "t"))
    bench.close()


async def created(caller: Caller, sql: str, parameters: Any) -> bool:
    """Execute the statement of a task. Return whether its key was new, according to the row count or to error 1062."""
    if isinstance(caller, AsyncpgCaller):
        return bool((await caller.connection.execute(sql, *parameters)).endswith(" 1"))
    cursor = caller.connection.cursor()
    try:
        cursor.execute(sql, parameters)
    except pymysql.err.IntegrityError as error:
        assert error.args[0] == 1062
        return False
    return bool(cursor.rowcount == 1)


def test_redis_has_no_sql(databases: SharedDatabases, tmp_path: Path) -> None:
    bench = open_bench(databases, "redis", "redis", tmp_path)
    with pytest.raises(NotSupportedError, match="Redis has no SQL"):
        Queue(bench.queue(), LeaseTimes(100, 1, 100)).submit_sql(NewTask("k", "t"))
    bench.close()
