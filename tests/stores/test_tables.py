"""Tables are made once, by whichever process comes first, and wrong tables are never used."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from psched.backends import open_stores
from psched.errors import ConfigError
from psched.store import ScheduleStore, StoreSettings
from tests.stores.bench import Bench
from tests.stores.databases import DATABASES, STORES, on_sql
from tests.stores.sent_statements import before_each


@pytest.fixture(params=STORES)
def fresh(request: pytest.FixtureRequest, database: str) -> Iterator[Bench]:
    """A store in an empty database."""
    bench = Bench(request.param, database)
    try:
        yield bench
    finally:
        bench.close()


def test_a_missing_table_is_an_error_that_names_the_remedy(bare: Bench) -> None:
    if bare.database == "sqlite":
        Path(str(bare.plain_url.database)).touch()  # instead of the table, a missing file would be named
    with pytest.raises(ConfigError, match=f"(?s){bare.table}.*psched init"):
        bare.open().check_tables()


def test_an_empty_database_is_an_error_that_names_the_remedy(fresh: Bench) -> None:
    with pytest.raises(ConfigError, match="psched init"):
        fresh.open().check_tables()


def test_only_making_tables_makes_a_database_file(tmp_path: Path) -> None:
    for type_ in STORES:
        path = tmp_path / f"{type_}.db"
        bench = Bench(type_, f"sqlite:///{path}")
        with pytest.raises(ConfigError, match="psched init"):
            bench.open().check_tables()
        bench.close()
        assert not path.exists()
        bench.open().create_tables()
        bench.open().check_tables()
        bench.close()
        assert path.exists()


def test_a_database_file_that_is_made_meanwhile_is_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench("rdb", f"sqlite:///{tmp_path / 'new.db'}")
    connect = sqlite3.connect

    def overtaken(path: str, **options: Any) -> sqlite3.Connection:
        try:
            return connect(path, **options)
        except sqlite3.OperationalError:
            monkeypatch.undo()
            bench.open().create_tables()
            raise

    monkeypatch.setattr("sqlite3.connect", overtaken)
    bench.open().check_tables()
    bench.close()


def test_tables_may_be_made_again_and_keep_their_rows(bench: Bench, store: ScheduleStore) -> None:
    bench.add(store, "key")
    claim = bench.take(store, "key")
    before = bench.raw("key")
    store.create_tables()
    bench.open().create_tables()
    store.check_tables()
    assert bench.raw("key") == before
    assert store.extend([claim.lease], 100) != [None]


def test_tables_may_be_made_by_several_at_once(fresh: Bench) -> None:
    errors: list[BaseException] = []
    barrier = threading.Barrier(4)

    def create() -> None:
        store = fresh.open()
        barrier.wait(10)
        try:
            store.create_tables()
            store.check_tables()
        except BaseException as error:  # noqa: BLE001 - the test judges it
            errors.append(error)

    threads = [threading.Thread(target=create) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert errors == []
    fresh.add(fresh.open(), "key")


@on_sql
def test_a_table_of_something_else_is_not_taken_for_ours(bare: Bench) -> None:
    bare.execute("CREATE TABLE {table} (id VARCHAR(20) PRIMARY KEY, name VARCHAR(20))")
    with pytest.raises(ConfigError, match=bare.table):
        bare.open().check_tables()


def test_two_tables_of_one_database_are_apart(bench: Bench, store: ScheduleStore) -> None:
    second = Bench(bench.type, bench.url, table=f"{bench.table}_Twin")
    try:
        twin = second.open()
        twin.create_tables()
        twin.check_tables()
        bench.add(store, "key")
        second.add(twin, "key", data={"n": 2})
        assert second.take(twin, "key").row.data == {"n": 2}
        assert bench.take(store, "key").row.data == {"n": 1}
    finally:
        second.close()


def test_a_table_name_that_is_no_identifier_is_refused() -> None:
    for type_ in STORES:
        for name in ("a b", "x;drop table y", "", "1\x00", 'a"b', "a`b", "x" * 200, "ä'"):
            with pytest.raises(ConfigError):
                open_stores(type_, StoreSettings(url="sqlite://", holder="h", schedules=name))


def test_a_word_of_sql_is_a_name_like_any_other(bare: Bench) -> None:
    bench = Bench(bare.type, bare.url, table="order" if bare.compat else "select")
    try:
        store = bench.open()
        store.create_tables()
        store.check_tables()
        bench.add(store, "key")
        bench.take(store, "key")
        assert [row.key for row in store.list()] == ["key"]
    finally:
        bench.close()


@pytest.mark.parametrize("bare", [("rdb", database) for database in DATABASES], indirect=True, ids="-".join)
def test_tables_of_another_version_are_refused_and_left_as_they_are(bench: Bench, store: ScheduleStore) -> None:
    bench.add(store, "key")
    names = [
        bench.table,
        *(
            f"{bench.table}_{name}"
            for name in ("ledger", "changes", "output", "failures", "watermarks", "outbox", "calendars")
        ),
    ]
    ours = {"name": bench.table}
    for change in (
        "UPDATE psched_meta SET schema_hash = 'another' WHERE table_name = :name",
        "DELETE FROM psched_meta WHERE table_name = :name",
    ):
        assert bench.execute(change, **ours) == 1
        before = everything(bench)
        newcomer = bench.open()
        for refused in (newcomer.check_tables, newcomer.create_tables):
            with pytest.raises(
                ConfigError, match="(?s)another version of psched.*stop all workers.*psched init"
            ) as found:
                refused()
            assert all(name in str(found.value) for name in names)
        assert [(finding.subject, finding.ok) for finding in newcomer.diagnose()] == [("table", False)]
        assert everything(bench) == before

    for name in names:
        with pytest.raises(ConfigError, match=name):
            newcomer.create_tables()
        bench.execute(f"DROP TABLE {name}")
    newcomer.create_tables()
    newcomer.check_tables()
    assert [finding for finding in newcomer.diagnose() if not finding.ok] == []
    assert list(newcomer.list()) == []


@pytest.mark.parametrize("fresh", ["rdb"], indirect=True)
def test_an_entry_table_of_another_version_is_refused_too(fresh: Bench) -> None:
    fresh.execute("CREATE TABLE psched_meta (table_name VARCHAR(64) PRIMARY KEY, layout INTEGER NOT NULL)")
    for refused in (fresh.open().check_tables, fresh.open().create_tables):
        with pytest.raises(ConfigError, match="psched init"):
            refused()
    with pytest.raises(ConfigError, match=f"psched_meta, {fresh.table}.*another version"):
        fresh.open().create_tables()


def everything(bench: Bench) -> tuple[object, ...]:
    """Return the columns and indexes of a bench's tables, what is recorded about the tables, and the bench's row."""
    with bench.connect() as connection:
        found = sa.inspect(connection)
        tables = {name for name in found.get_table_names() if name.startswith(bench.table) or name == "psched_meta"}
        columns = {name: [str(column) for column in found.get_columns(name)] for name in tables}
        indexes = {
            name: sorted((index["name"], index["column_names"]) for index in found.get_indexes(name)) for name in tables
        }
        meta = sa.Table("psched_meta", sa.MetaData(), autoload_with=connection)
        hashes = connection.execute(sa.select(meta).where(meta.c.table_name == bench.table)).all()
    return columns, indexes, hashes, bench.raw("key")


def test_no_table_named_is_no_store_opened() -> None:
    for type_ in STORES:
        assert open_stores(type_, StoreSettings(url="sqlite://", holder="h")).schedules is None


def test_an_unknown_type_of_store_is_an_error_that_names_it() -> None:
    for type_ in ("rbd", "no.such.package", "os", ""):
        with pytest.raises(ConfigError, match=repr(type_)):
            open_stores(type_, StoreSettings(url="sqlite://", holder="h", schedules="schedules"))


def test_closing_twice_is_closing_once(bench: Bench, store: ScheduleStore) -> None:
    store.acquire(1, 100)
    store.close()
    store.close()


def test_a_fresh_table_has_nothing_to_complain_of(store: ScheduleStore) -> None:
    findings = list(store.diagnose())
    assert findings
    assert [finding for finding in findings if not finding.ok] == []


@on_sql
def test_tables_that_are_all_there_are_checked_together(bench: Bench, store: ScheduleStore) -> None:
    if bench.compat:
        return
    sent: list[str] = []
    opened = bench.open(read_only=True)
    opened.now()
    with before_each(sent.append):
        opened.check_tables()
    assert len([each for each in sent if "pg_backend_pid" not in each]) == 3, "all columns, and the layout twice"
    assert "psched_stats" in sent[0]


@on_sql
def test_a_missing_index_is_found(bench: Bench, store: ScheduleStore) -> None:
    with bench.connect() as connection:
        for index in sa.inspect(connection).get_indexes(bench.table):
            if bench.columns.due in index["column_names"]:
                of = f" ON {bench.table}" if bench.database == "mysql" else ""
                connection.execute(sa.text(f"DROP INDEX {index['name']}{of}"))
    assert any(not finding.ok and "index" in f"{finding.subject} {finding.message}" for finding in store.diagnose())


@on_sql
def test_making_tables_again_makes_a_missing_index(bench: Bench, store: ScheduleStore) -> None:
    test_a_missing_index_is_found(bench, store)
    store.create_tables()
    assert [finding for finding in store.diagnose() if not finding.ok] == []


_MYSQL = "ALTER TABLE {table} MODIFY `key` VARCHAR(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_general_ci NOT NULL"
_COLLATION = (
    "CREATE COLLATION IF NOT EXISTS caseless (provider = icu, locale = 'und-u-ks-level2', deterministic = false)"
)
_POSTGRESQL = 'ALTER TABLE {table} ALTER COLUMN "key" TYPE VARCHAR(255) COLLATE caseless'


@pytest.mark.new_table
@pytest.mark.parametrize(
    ("bare", "statements"),
    [(("rdb", "mariadb"), [_MYSQL]), (("rdb", "postgresql"), [_COLLATION, _POSTGRESQL])],
    indirect=["bare"],
    ids=["mariadb", "postgresql"],
)
def test_a_collation_under_which_keys_are_equal_is_a_failure_whose_remedy_works(
    bench: Bench, statements: list[str]
) -> None:
    for statement in statements:
        bench.execute(statement)
    [keys] = [finding for finding in bench.open().diagnose() if finding.subject == "keys"]
    assert not keys.ok
    bench.execute(keys.message[keys.message.index("ALTER TABLE") :])
    assert [finding for finding in bench.open().diagnose() if not finding.ok] == []
