"""Queues of layout 1, whose indexes of users had every task, are upgraded by `psched init`, and refused before."""

from __future__ import annotations

import threading

import pytest
import sqlalchemy as sa

from psched.errors import ConfigError
from tests.stores.places import DATABASES
from tests.stores.queue.bench import QueueBench, keys_in

pytestmark = pytest.mark.parametrize("ours", DATABASES, indirect=True)

OF_USERS = {"user_due": "(band, user_name, due, {key})", "user_run": "(user_name, holder)"}


def make_first_layout(bench: QueueBench) -> None:
    """Make the table as psched made it first, with one task."""
    for name, columns in OF_USERS.items():
        on_table = " ON {table}" if bench.database == "mysql" else ""
        bench.execute(f"DROP INDEX {{table}}_{name}{on_table}")
        bench.execute(f"CREATE INDEX {{table}}_{name} ON {{table}} {columns.format(key=bench.quoted_key)}")
    bench.execute("UPDATE psched_meta SET layout = 1 WHERE table_name = :name", name=bench.table)
    bench.submit(bench.queue(), ["old"])


def indexes_of_users(bench: QueueBench) -> dict[str, str]:
    """Return which rows each index of users has, as the database says it."""
    with bench.connect() as connection:
        found = sa.inspect(connection).get_indexes(bench.table)
        where = f"{connection.dialect.name}_where"
        return {
            str(index["name"]): str(index.get("dialect_options", {}).get(where, ""))
            for index in found
            if index["name"] in [f"{bench.table}_{name}" for name in OF_USERS]
        }


def see_that_it_is_upgraded(bench: QueueBench) -> None:
    store = bench.queue()
    store.check_tables()
    assert [finding for finding in store.diagnose() if not finding.ok] == []
    found = indexes_of_users(bench)
    assert len(found) == len(OF_USERS)
    if bench.database != "mysql":
        assert all("user_name" in rows for rows in found.values()), found
    assert keys_in(store) == ["old"]


def test_an_older_queue_is_refused_until_it_is_upgraded(ours: QueueBench) -> None:
    make_first_layout(ours)
    store = ours.queue()
    with pytest.raises(ConfigError, match="psched init"):
        store.check_tables()
    assert [finding.message for finding in store.diagnose() if not finding.ok]
    store.create_tables()
    see_that_it_is_upgraded(ours)
    store.create_tables()
    see_that_it_is_upgraded(ours)


def test_several_may_upgrade_a_queue_at_once(ours: QueueBench) -> None:
    make_first_layout(ours)
    errors: list[Exception] = []

    def upgrade() -> None:
        try:
            ours.queue().create_tables()
        except Exception as error:  # noqa: BLE001 – the test judges it
            errors.append(error)

    threads = [threading.Thread(target=upgrade) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert errors == []
    see_that_it_is_upgraded(ours)
