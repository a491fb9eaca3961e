"""Tables of layout 1, which had no ledger, are upgraded by `psched init`, and refused before."""

from __future__ import annotations

import threading

import pytest
import sqlalchemy as sa

from psched.backends.redis.scripts import compose
from psched.dialects import mysql, postgresql, sqlite
from psched.dialects.base import ExactText, LongText
from psched.errors import ConfigError
from psched.ledger import LedgerFilter
from psched.model import Policy, Rule
from psched.store import ScheduleStore
from tests.stores.bench import FAR_OFF, LONG_AGO, Bench, soon
from tests.stores.rows import RedisRows

DIALECTS = mysql, postgresql, sqlite
"""Imported for the columns' types: each says how its database spells them."""

ROW = {
    "key": "old",
    "type": "t",
    "data": '{"n":1}',
    "cron": "0 * * * *",
    "timezone": "Asia/Tokyo",
    "delay_ms": 5000,
    "next_time": LONG_AGO * 1000,
    "due": LONG_AGO * 1000 + 5000,
    "status": "waiting",
    "fence": 41,
    "attempts": 1,
}


def make_first_layout(bench: Bench) -> None:
    """Make the tables as psched made them first, with one schedule."""
    if isinstance(bench.rows, RedisRows):
        client, prefix = bench.rows.client, bench.rows.prefix
        client.hset(f"{prefix}meta", mapping={"kind": "schedules", "layout": 1})
        client.hset(f"{prefix}row:old", mapping={name: value for name, value in ROW.items() if name != "key"})
        for name in ("due:", "due:t"):
            client.zadd(f"{prefix}{name}", {"old": str(ROW["due"])})
        return
    metadata = sa.MetaData()
    text, number = ExactText(255), sa.BigInteger
    table = sa.Table(
        bench.table,
        metadata,
        sa.Column("key", text, primary_key=True),
        sa.Column("type", text, nullable=False),
        sa.Column("data", LongText, nullable=False),
        sa.Column("cron", text, nullable=False),
        sa.Column("timezone", text, nullable=False),
        *(sa.Column(name, number, nullable=False) for name in ("delay_ms", "next_time", "due")),
        sa.Column("ready", number),
        sa.Column("status", sa.String(16), nullable=False, server_default="waiting"),
        sa.Column("fence", number, nullable=False, server_default="0"),
        sa.Column("claim", number),
        sa.Column("nonce", number, nullable=False, server_default="0"),
        sa.Column("holder", text),
        sa.Column("node", text),
        sa.Column("attempts", sa.Integer, nullable=False, server_default="0"),
        sa.Column("crashes", sa.Integer, nullable=False, server_default="0"),
        sa.Column("last_error", LongText),
        sa.Column("created", number, nullable=False, server_default="0"),
        sa.Column("updated", number, nullable=False, server_default="0"),
        mysql_engine="InnoDB",
        mysql_charset="utf8mb4",
    )
    for name, columns in (("due", ["due", "key"]), ("type_due", ["type", "due", "key"]), ("holder", ["holder"])):
        sa.Index(f"{bench.table}_{name}", *(table.c[column] for column in columns))
    versions = sa.Table(
        "psched_meta",
        metadata,
        sa.Column("table_name", ExactText(64), primary_key=True),
        sa.Column("layout", sa.Integer, nullable=False),
    )
    if bench.database == "sqlite":
        bench.open().create_tables()  # makes the file
        bench.execute("DROP TABLE {table}")
        bench.execute("DROP TABLE {table}_ledger")
        bench.execute("DROP TABLE {table}_changes")
        bench.execute("DELETE FROM psched_meta WHERE table_name = :name", name=bench.table)
    with bench.connect() as connection:
        metadata.create_all(connection)
        connection.execute(table.insert(), ROW)
        connection.execute(versions.insert(), {"table_name": bench.table, "layout": 1})


def see_that_it_is_upgraded(store: ScheduleStore) -> None:
    store.check_tables()
    assert [finding for finding in store.diagnose() if not finding.ok] == []
    row = store.get("old")
    assert row is not None
    assert (row.rule, row.policy, row.attempts) == (Rule("0 * * * *", "Asia/Tokyo", 5), Policy(), 1)
    assert (row.next_time, row.previous, row.paused) == (LONG_AGO, None, False)
    assert store.ledger is not None
    [change] = store.ledger.changes("old")
    assert (change.action, change.rule, change.first, change.reckoning) == ("upgrade", row.rule, LONG_AGO, None)


def test_an_older_table_is_refused_until_it_is_upgraded(bare: Bench) -> None:
    make_first_layout(bare)
    store = bare.open()
    with pytest.raises(ConfigError, match="psched init"):
        store.check_tables()
    store.create_tables()
    see_that_it_is_upgraded(store)
    store.create_tables()
    see_that_it_is_upgraded(store)
    claim = bare.take(store, "old")
    assert claim.lease.fence == 42
    store.advance(claim, FAR_OFF, FAR_OFF, soon())
    assert store.ledger is not None
    [entry] = store.ledger.rows(LedgerFilter(key="old"))
    assert (entry.scheduled_time, entry.version) == (LONG_AGO, store.ledger.changes("old")[0].version)


def test_several_may_upgrade_at_once(bare: Bench) -> None:
    make_first_layout(bare)
    stores = [bare.open() for _ in range(3)]
    errors: list[Exception] = []

    def upgrade(store: ScheduleStore) -> None:
        try:
            store.create_tables()
        except Exception as error:  # noqa: BLE001 – the test judges it
            errors.append(error)

    threads = [threading.Thread(target=upgrade, args=[store]) for store in stores]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert errors == []
    see_that_it_is_upgraded(stores[0])


def test_an_upgrade_that_was_cut_short_is_taken_up_again(bare: Bench) -> None:
    make_first_layout(bare)
    if isinstance(bare.rows, RedisRows):
        bare.rows.client.eval(compose("schedules", "adopt").text, 1, f"{bare.rows.prefix}meta", 0, "old")
    else:
        bare.execute("ALTER TABLE {table} ADD COLUMN version BIGINT NOT NULL DEFAULT 0")
        bare.execute("ALTER TABLE {table} ADD COLUMN last_time BIGINT")
    bare.open().create_tables()
    see_that_it_is_upgraded(bare.open())
