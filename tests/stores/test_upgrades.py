"""Upgrades of tables to the next layout, which exists only in tests, while programs of the former layout still run."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import sqlalchemy as sa

from faultlab import next_layout
from psched.backends.common import layout_version
from psched.errors import ConfigError
from psched.store import ScheduleStore
from psched.store.node_registry import Announcement
from tests.stores.bench import LONG_AGO, Bench, soon
from tests.stores.databases import DATABASES, on_our_tables
from tests.stores.sent_statements import before_each

pytestmark = pytest.mark.new_table

on_each_backend = pytest.mark.parametrize(
    "bare", [*(("rdb", database) for database in DATABASES), ("redis", "redis")], indirect=True, ids="-".join
)


@pytest.fixture
def patch() -> Iterator[pytest.MonkeyPatch]:
    """A patch by which this process becomes the version with the next layout, until it is undone."""
    with pytest.MonkeyPatch.context() as patch:
        yield patch


@on_our_tables
def test_tables_are_upgraded_while_old_programs_go_on(
    bench: Bench, store: ScheduleStore, patch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    bench.fill(store, [f"key{n:02}" for n in range(50)], lambda i: LONG_AGO + i)
    held = store.acquire(1, 100)[0]
    next_layout.install(patch)
    new = bench.open()
    with pytest.raises(ConfigError, match="layout 1, but this version of psched needs 2; upgrade .* psched init"):
        new.check_tables()
    assert [finding.ok for finding in new.diagnose() if finding.subject == "table"] == [False]
    pending = new.pending_statements()
    assert pending
    assert bench.open().pending_statements() == pending, "asking changes nothing"

    upgrade_at_once(bench, 2)

    assert new.pending_statements() == []
    new.check_tables()
    assert [finding for finding in new.diagnose() if not finding.ok] == []
    assert_made_anew_is_the_same(bench)
    assert new.acquire(1, 100)[0].row.key == "key01"
    with patch.context():
        patch.undo()
        store.advance(held, LONG_AGO + 3600, LONG_AGO + 3600, soon())
        bench.add(store, "added by the old")
        old = bench.open()
        old.create_tables()
        with caplog.at_level(logging.WARNING):
            old.check_tables()
        assert "layout 2 of a newer psched, which this version can use; upgrade psched on this host" in caplog.text
        assert [(each.ok, each.warning) for each in old.diagnose() if each.subject == "layout"] == [(True, True)]
        assert len(old.acquire(100, 100)) == 50
    values = [bench.raw(key) or {} for key in ("key07", "added by the old")]
    assert [value.get("weight", 8) for value in values] == [8, 7 if "weight" in values[1] else 8]


def upgrade_at_once(bench: Bench, number: int) -> None:
    """Upgrade the tables in `number` threads at the same time, each with a store of its own."""
    errors: list[BaseException] = []

    def upgrade(store: ScheduleStore) -> None:
        try:
            store.create_tables()
        except BaseException as error:  # noqa: BLE001 - the test judges it
            errors.append(error)

    threads = [threading.Thread(target=upgrade, args=(bench.open(),)) for _ in range(number)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert errors == []


def assert_made_anew_is_the_same(bench: Bench) -> None:
    """Check that upgraded tables equal tables that the new version makes."""
    if bench.database == "redis":
        return
    other = Bench(bench.type, bench.url, f"{bench.table}_anew", bench.pooler)
    other.open().create_tables()
    found = [shape(each) for each in (bench, other)]
    other.close()
    assert found[0] == found[1]


def shape(bench: Bench) -> tuple[dict[str, str], dict[str, list[str]]]:
    with bench.connect() as connection:
        inspector = sa.inspect(connection)
        columns: dict[str, str] = {
            each["name"]: f"{each['type']!r} {each['nullable']} {str(each['default']).strip(chr(39))}"
            for each in inspector.get_columns(bench.table)
        }
        indexes: dict[str, Any] = {
            str(each["name"]).removeprefix(bench.table): each["column_names"]
            for each in inspector.get_indexes(bench.table)
        }
    return columns, indexes


@on_each_backend
def test_an_upgrade_that_was_killed_goes_on(bench: Bench, store: ScheduleStore, patch: pytest.MonkeyPatch) -> None:
    """The upgrade is killed after each of its statements in turn."""
    bench.fill(store, [f"key{n:02}" for n in range(50)], lambda i: LONG_AGO + i)
    next_layout.install(patch)
    for done in range(100):
        seen = 0

        def kill(statement: str, done: int = done) -> None:
            nonlocal seen
            is_change = statement.startswith(("ALTER", "CREATE", "UPDATE", "EVALSHA", "EVAL ", "HSET"))
            seen += is_change
            if is_change and seen > done:
                raise KeyboardInterrupt

        try:
            with before_each(kill):
                bench.open().create_tables()
        except KeyboardInterrupt:
            if bench.database == "redis":
                end_lock(bench)
            with patch.context():
                patch.undo()
                bench.open().check_tables()
                next_layout.install(patch)
            continue
        break
    assert done > 2
    assert bench.open().pending_statements() == []
    bench.open().check_tables()
    assert_made_anew_is_the_same(bench)


def end_lock(bench: Bench) -> None:
    """End the lock of a killed process now, instead of in 30 s."""
    rows: Any = bench.rows
    rows.client.delete(f"{rows.prefix}init-lock")


@on_each_backend
def test_tables_that_are_too_new_are_refused(bench: Bench, store: ScheduleStore) -> None:
    record(bench, 9, 8)
    for refused in (bench.open().check_tables, bench.open().create_tables, bench.open().pending_statements):
        with pytest.raises(ConfigError, match="layout 9 of a newer psched; this version knows the layouts up to 2"):
            refused()
    if bench.database == "redis":
        with pytest.raises(Exception, match="psched doctor shows the remedy"):
            store.acquire(1, 100)
    record(bench, 9, 1)
    bench.open().check_tables()
    bench.open().create_tables()
    assert store.acquire(1, 100) == []


@pytest.mark.parametrize("bare", [("rdb", "sqlite")], indirect=True, ids="-".join)
def test_two_layouts_at_once_are_upgraded_only_without_workers(
    bench: Bench, store: ScheduleStore, patch: pytest.MonkeyPatch
) -> None:
    assert store.nodes is not None
    store.nodes.announce(Announcement("node", "schedules", '{"routes": null, "served": []}', "host", 1, "1.0", "tz", 1))
    next_layout.install(patch)
    patch.setattr(layout_version, "LAYOUT", 3)
    with pytest.raises(ConfigError, match="1 workers are alive; stop all of them"):
        bench.open().create_tables()
    store.nodes.withdraw("node")
    bench.open().create_tables()


@pytest.mark.parametrize("bare", [("rdb", "postgresql")], indirect=True, ids="-".join)
def test_an_index_whose_building_was_interrupted_is_built_again(bench: Bench, store: ScheduleStore) -> None:
    index = f"{bench.table}_owner"
    for key in ("one", "two"):
        bench.add(store, key)
    bench.execute(f"DROP INDEX {index}")
    engine = sa.create_engine(bench.plain_url, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection, pytest.raises(sa.exc.IntegrityError):
        connection.execute(sa.text(f"CREATE UNIQUE INDEX CONCURRENTLY {index} ON {bench.table} (type)"))
    engine.dispose()
    assert [finding.subject for finding in store.diagnose() if not finding.ok] == ["indexes"]
    assert [each.partition(" (")[0] for each in store.pending_statements()] == [
        f"DROP INDEX CONCURRENTLY IF EXISTS {index}",
        f"CREATE INDEX CONCURRENTLY {index} ON {bench.table}",
    ]
    store.create_tables()
    assert store.pending_statements() == []


def record(bench: Bench, layout: int, oldest: int) -> None:
    """Record a layout without psched."""
    if bench.database == "redis":
        rows: Any = bench.rows
        rows.client.hset(f"{rows.prefix}meta", mapping={"layout": f"{layout}.1", "oldest_layout": oldest})
        return
    bench.execute(
        "UPDATE psched_meta SET layout = :layout, oldest_layout = :oldest, schema_hash = 'h' WHERE table_name = :name",
        layout=layout,
        oldest=oldest,
        name=bench.table,
    )
