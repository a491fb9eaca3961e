"""Queues of older layouts, whose indexes had every task, are upgraded by `psched init`, and refused before."""

from __future__ import annotations

import threading

import pytest
import sqlalchemy as sa

from psched.errors import ConfigError
from tests.stores.bench import keys_of
from tests.stores.places import DATABASES
from tests.stores.queue.bench import QueueBench, keys_in

pytestmark = pytest.mark.parametrize("ours", DATABASES, indirect=True)

OF_USERS = {"user_due": "(band, user_name, due, {key})", "user_run": "(user_name, holder)"}
FORMER = {**OF_USERS, "purge": "(purge_at)", "holder": "(holder)"}
"""What MariaDB and MySQL had, up to layout 2."""
LATER = ("of_user_due", "of_user_run", "held")
COLUMNS = ("user_band", "user_due", "user_holder")


def make_former_layout(bench: QueueBench) -> None:
    """Make the table as psched made it before, with one task."""
    if bench.database == "mysql":
        for name in LATER:
            bench.execute(f"DROP INDEX {{table}}_{name} ON {{table}}")
        for column in COLUMNS:
            bench.execute(f"ALTER TABLE {{table}} DROP COLUMN {column}")
    else:
        for name in OF_USERS:
            bench.execute(f"DROP INDEX {{table}}_{name}")
    for name, columns in (FORMER if bench.database == "mysql" else OF_USERS).items():
        bench.execute(f"CREATE INDEX {{table}}_{name} ON {{table}} {columns.format(key=bench.quoted_key)}")
    layout = 2 if bench.database == "mysql" else 1
    bench.execute("UPDATE psched_meta SET layout = :old WHERE table_name = :name", name=bench.table, old=layout)
    bench.submit(bench.queue(), ["old"], user="one", max_running=1)


def indexes(bench: QueueBench) -> dict[str, str]:
    """Return the indexes, and which rows each has, as the database says it."""
    with bench.connect() as connection:
        found = sa.inspect(connection).get_indexes(bench.table)
        where = f"{connection.dialect.name}_where"
        return {
            str(index["name"]).removeprefix(f"{bench.table}_"): str(index.get("dialect_options", {}).get(where, ""))
            for index in found
        }


def see_that_it_is_upgraded(bench: QueueBench) -> None:
    store = bench.queue()
    store.check_tables()
    assert [finding for finding in store.diagnose() if not finding.ok] == []
    found = indexes(bench)
    if bench.database == "mysql":
        assert found.keys() == {"due", "type_due", *LATER}
    else:
        assert all("user_name" in found[name] for name in OF_USERS), found
    assert keys_in(store) == ["old"]


def test_an_older_queue_is_refused_until_it_is_upgraded(ours: QueueBench) -> None:
    make_former_layout(ours)
    store = ours.queue()
    with pytest.raises(ConfigError, match="psched init"):
        store.check_tables()
    assert [finding.message for finding in store.diagnose() if not finding.ok]
    store.create_tables()
    see_that_it_is_upgraded(ours)
    store.create_tables()
    see_that_it_is_upgraded(ours)
    assert keys_of(store.acquire(2, 100)) == ["old"]


def test_several_may_upgrade_a_queue_at_once(ours: QueueBench) -> None:
    make_former_layout(ours)
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
