"""A configured ledger beside the originals' table: it records what psched does, and the audit can prove it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest
import sqlalchemy as sa

from psched.backends import open_stores
from psched.config import load
from psched.errors import ConfigError, NotSupportedError
from psched.model import LeaseTimes, Rule, ScheduleRow
from psched.schedules.collection import Defaults, ScheduleCollection, open_schedules
from psched.store import ScheduleStore, StoreSettings
from psched.store.ledger import LedgerFilter, Output
from tests.stores.bench import FAR_OFF, LONG_AGO, Bench, soon
from tests.stores.databases import KINDS, SharedDatabases

HOUR = 3600
on_sqlite = pytest.mark.parametrize("bare", ["sqlite"], indirect=True)
"""The parameter for tests on which databases do not differ."""


@pytest.fixture(params=["sqlite", *KINDS])
def bare(request: pytest.FixtureRequest, databases: SharedDatabases, tmp_path: Path) -> Iterator[Bench]:
    """A table of the original on each database. The table does not exist yet."""
    bench = databases.bench("rdb_compat", request.param, tmp_path)
    try:
        yield bench
    finally:
        bench.close()


@pytest.fixture
def store(bare: Bench) -> Iterator[ScheduleStore]:
    """psched's store on a table of the original, with a ledger."""
    settings = StoreSettings(bare.url, "host/1/h", bare.table, reckoning="perfectsched 2026a", ledger=bare.table)
    store = open_stores("rdb_compat", settings).schedules
    assert store is not None
    with pytest.raises(ConfigError, match="psched init"):
        store.check_tables()
    bare.open().create_tables()
    assert [finding.subject for finding in store.diagnose() if not finding.ok] == ["ledger"]
    store.create_tables()
    store.create_tables()
    store.check_tables()
    assert [finding for finding in store.diagnose() if not finding.ok] == []
    yield store
    store.close()


def test_what_ran_of_it_is_proved(store: ScheduleStore) -> None:
    schedules = ScheduleCollection(store, LeaseTimes(300, 300, 15), Defaults("UTC"))
    begin = int(store.now()) // HOUR * HOUR - 3 * HOUR
    schedules.add("key", "t", cron="0 * * * *", next_time=begin)
    schedules.add("key2", "t", cron="0 0 1 1 *")
    for n in range(2):
        [task] = schedules.source.poll_multi(5, ahead=n > 0)  # a shorter lease, that ends before the last one
        assert task.scheduled_time == begin + n * HOUR
        task.finish()
    schedules["key"].modify(cron="30 * * * *", data={"n": 1})
    [task] = schedules.poll_multi(1)
    task.finish()
    schedules["key"].delete()
    found = [(row.scheduled_time, row.previous, row.attempts, row.node) for row in schedules.history("key")]
    times = [begin, begin + HOUR, begin + 2 * HOUR]
    assert found == [(time, before, 1, "host/1/h") for time, before in zip(times, [None, *times], strict=False)]
    [verdict] = schedules.audit(begin, times[-1], keys=["key"])
    assert (verdict.violations, verdict.ran) == ([], 3)
    assert list(schedules.ledger.keys()) == ["key", "key2"]
    actions = [change.action for change in schedules.ledger.changes("key")]
    assert actions == ["add", "modify", "delete"]
    assert not schedules.ledger.trim(1e9, 100, 10, "key")


@on_sqlite
def test_what_ruby_adds_and_changes_is_entered_when_psched_comes_to_it(bare: Bench, store: ScheduleStore) -> None:
    columns, values = "id, timeout, next_time, cron, delay, data", "'key', :due, :due, '0 * * * *', 0, :data"
    bare.execute(f"INSERT INTO {{table}} ({columns}) VALUES ({values})", due=LONG_AGO, data=b'{"type": "t"}')
    store.advance(bare.take(store, "key"), LONG_AGO + HOUR, LONG_AGO + HOUR, soon())
    bare.execute("UPDATE {table} SET cron = '5 * * * *'")
    store.advance(bare.take(store, "key"), FAR_OFF, FAR_OFF, soon())
    assert store.ledger is not None
    changes = store.ledger.changes("key")
    assert [(change.action, change.node, change.rule.cron) for change in changes] == [
        ("upgrade", None, "0 * * * *"),
        ("modify", None, "5 * * * *"),
    ]
    assert [row.version for row in store.ledger.rows(LedgerFilter("key"))] == [change.version for change in changes]


@pytest.mark.parametrize("type_", ["t" * 256, "a\\u0000b", "\\ud800"])
def test_a_type_that_the_ledger_cannot_have_stops_no_run(bare: Bench, store: ScheduleStore, type_: str) -> None:
    columns, values = "id, timeout, next_time, cron, delay, data", "'key', :due, :due, '0 * * * *', 0, :data"
    data = f'{{"type": "{type_}"}}'.encode()
    bare.execute(f"INSERT INTO {{table}} ({columns}) VALUES ({values})", due=LONG_AGO, data=data)
    assert store.advance(bare.take(store, "key"), FAR_OFF, FAR_OFF, soon()) is None
    store.delete("key")
    assert store.ledger is not None
    assert [change.action for change in store.ledger.changes("key")] == ["upgrade", "delete"]


@on_sqlite
def test_an_end_and_its_entry_are_one(bare: Bench, store: ScheduleStore) -> None:
    bare.add(store, "key")
    claim = bare.take(store, "key")

    def fail(connection: sa.Connection) -> None:
        connection.exec_driver_sql("SELECT nothing FROM nowhere")

    before = bare.raw("key")
    with pytest.raises(Exception, match="nowhere"):
        store.advance(claim, FAR_OFF, FAR_OFF, soon(), fail)
    assert bare.raw("key") == before
    assert store.ledger is not None
    assert list(store.ledger.rows(LedgerFilter())) == []
    wrong = claim._replace(row=replace(cast("ScheduleRow", claim.row), rule=Rule("7 * * * *", "UTC")))
    assert store.advance(wrong, FAR_OFF, FAR_OFF, soon()) is not None
    assert list(store.ledger.rows(LedgerFilter())) == []
    store.advance(claim, FAR_OFF, FAR_OFF, soon())
    assert [row.scheduled_time for row in store.ledger.rows(LedgerFilter())] == [LONG_AGO]


def test_it_has_neither_policies_nor_pauses(tmp_path: Path) -> None:
    config = tmp_path / "psched.yml"
    config.write_text("development:\n  type: rdb_compat\n  url: sqlite:///x.db\n  ledger: proof\n")
    section = load(config, "development").schedules
    assert section is not None
    with open_schedules(section, "host/1/h") as schedules:
        schedules.store.create_tables()
        with pytest.raises(NotSupportedError, match="catch_up, owner; use `type: rdb`"):
            schedules.add("key", "t", cron="* * * * *", catch_up="latest", owner="me")
        with pytest.raises(NotSupportedError, match="keeps no start, spread; use `type: rdb`"):
            schedules.add("key", "t", cron="* * * * *", start=5, spread=5)
        with pytest.raises(NotSupportedError, match="PerfectSched knows only"):
            schedules.add("key", "t", cron="@every 5m")
        schedules.add("key", "t", cron="* * * * *")
        with pytest.raises(NotSupportedError, match="keeps no tags; use `type: rdb`"):
            schedules["key"].modify(tags=["mail"])
        with pytest.raises(NotSupportedError, match="keeps no owner and no tags"):
            schedules.list(owner="me")
        backfills = schedules.backfills
        for refused in (lambda: backfills.start("key", 0, 1), backfills.list, lambda: backfills.pause("key")):
            with pytest.raises(
                NotSupportedError, match="this store keeps no backfills; use `type: rdb` or `type: redis`"
            ):
                refused()
        for refused in (schedules["key"].pause, schedules["key"].run_now):
            with pytest.raises(NotSupportedError, match="use `type: rdb` or `type: redis`"):
                refused()
        assert len(schedules.ledger.changes("key")) == 1
    config.write_text("development:\n  type: rdb\n  url: sqlite:///x.db\n  ledger: proof\n")
    with pytest.raises(ConfigError, match="always has a ledger"):
        load(config, "development")


def test_a_ledger_of_another_version_is_refused(bare: Bench, store: ScheduleStore) -> None:
    bare.execute("UPDATE psched_meta SET schema_hash = 'another' WHERE table_name = :name", name=f"{bare.table}_ledger")
    for refused in (store.check_tables, store.create_tables):
        with pytest.raises(ConfigError, match=f"{bare.table}_changes and {bare.table}_output .*another version"):
            refused()
    assert [finding.subject for finding in store.diagnose() if not finding.ok] == ["ledger"]


def test_output_is_kept_in_a_table_of_the_ledger(bare: Bench, store: ScheduleStore) -> None:
    ledger = store.ledger
    assert ledger is not None
    bare.add(store, "key")
    claim = bare.take(store, "key")
    ledger.keep_output(claim, Output("written", "ended with exit status 0", False), HOUR)
    [output] = ledger.outputs("key")
    assert (output.scheduled_time, output.attempt, output.text) == (LONG_AGO, 1, "written")
    renewed = claim.lease._replace(fence=claim.lease.fence + 1)
    ledger.keep_output(claim._replace(lease=renewed), Output("later", "ended with exit status 0", False), HOUR)
    assert [output.text for output in ledger.outputs("key")] == ["written", "later"]


@on_sqlite
def test_output_is_refused_by_name_without_a_ledger(bare: Bench) -> None:
    bare.make()
    schedules = ScheduleCollection(bare.open(), LeaseTimes(300, 300, 15), Defaults("UTC"))
    schedules.add("key", "t", cron="0 * * * *", next_time=LONG_AGO)
    task = schedules.poll()
    assert task is not None
    assert task.output_problem == "rdb_compat keeps output only with `ledger:` in the configuration"
    with pytest.raises(NotSupportedError, match="'key': rdb_compat keeps output only with `ledger:`"):
        task.keep_output("written", "ended")
    with pytest.raises(NotSupportedError, match="rdb_compat with `ledger:`"):
        schedules.outputs("key")
