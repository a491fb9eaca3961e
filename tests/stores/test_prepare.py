"""What a worker prepares before anything is due, so that its first runs are as quick as the later ones."""

from __future__ import annotations

from contextlib import closing
from typing import Any

import pytest
import sqlalchemy as sa

from faultlab.servers import Server
from psched.backends.sql import open_database
from psched.backends.sql.compiled_statements import CompiledText
from psched.store import ScheduleStore
from psched.store.ledger import LedgerFilter, Step
from tests.stores.bench import FAR_OFF, LONG_AGO, Bench, soon
from tests.stores.databases import on_sql

KEYS = ["a", "b", "c", "d"]
ROUNDS = 12
"""The number of rounds. Rows with equal values get a statement of their own after fewer rounds."""


def test_a_prepared_store_compiles_nothing_for_the_first_runs(
    bench: Bench, store: ScheduleStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    for key in KEYS:
        bench.add(store, key)
    store.prepare()

    def refuse(*_: Any) -> None:
        raise AssertionError("a statement is compiled during a run")

    monkeypatch.setattr(CompiledText, "of", refuse)
    (alone,) = store.acquire(1, 100)
    assert store.advance(alone, FAR_OFF, FAR_OFF, soon()) is None
    steps = [Step(claim, FAR_OFF + n, FAR_OFF) for n, claim in enumerate(store.acquire(9, 100))]
    assert store.advance_many(steps, soon()) == [None] * 3


def test_a_prepared_store_advances_alike_the_first_time_and_the_twelfth(bench: Bench, store: ScheduleStore) -> None:
    for key in KEYS:
        bench.add(store, key)
    store.prepare()
    for number in range(1, ROUNDS + 1):
        steps = [Step(claim, LONG_AGO + number, LONG_AGO + number) for claim in store.acquire(9, 100)]
        assert store.advance_many(steps, soon()) == [None] * 4
    if store.ledger is not None:
        entered = [(row.key, row.scheduled_time) for row in store.ledger.rows(LedgerFilter())]
        assert sorted(entered) == [(key, LONG_AGO + number) for key in KEYS for number in range(ROUNDS)]


def test_the_server_may_prepare_each_statement_at_its_first_execution(postgresql: Server) -> None:
    with postgresql.database() as url, closing(open_database(f"{url}?prepare_threshold=0", {})) as database:
        assert [database.scalar(sa.text("SELECT 1")) for _ in range(2)] == [1, 1]


def run_rounds(bench: Bench, store: ScheduleStore, first: int) -> None:
    """Run a schedule often enough that psycopg prepares each statement on the server."""
    for number in range(first, first + ROUNDS):
        claim = bench.take(store, "a")
        [lease] = store.extend([claim.lease], 100)
        assert lease is not None
        store.advance(claim._replace(lease=lease), LONG_AGO + number, LONG_AGO + number, soon())


@on_sql
def test_a_store_goes_on_after_another_program_has_added_a_column(bench: Bench, store: ScheduleStore) -> None:
    bench.add(store, "a")
    run_rounds(bench, store, 1)
    bench.execute("ALTER TABLE {table} ADD COLUMN not_of_psched BIGINT NOT NULL DEFAULT 0")
    run_rounds(bench, store, 1 + ROUNDS)
    store.check_tables()


@pytest.mark.parametrize(
    ("bare", "column"),
    [(("rdb", "postgresql"), "timezone"), (("rdb", "postgresql"), "type"), (("rdb_compat", "postgresql"), "timezone")],
    indirect=["bare"],
    ids=["rdb-postgresql-read", "rdb-postgresql-in-trigger", "rdb_compat-postgresql-read"],
)
def test_a_store_prepares_its_statements_anew_after_the_type_of_a_column_was_changed(
    bench: Bench, store: ScheduleStore, column: str
) -> None:
    """The triggers also read `type`, and the session keeps the plans of triggers, too."""
    bench.add(store, "a")
    run_rounds(bench, store, 1)
    claim = bench.take(store, "a")
    bench.execute(f"ALTER TABLE {{table}} ALTER COLUMN {column} TYPE TEXT")
    assert store.advance(claim, LONG_AGO + ROUNDS, LONG_AGO + ROUNDS, soon()) is None
    run_rounds(bench, store, 1 + ROUNDS)


def test_all_idle_connections_prepare_anew_after_one_has_met_a_changed_column(postgresql: Server) -> None:
    with (
        postgresql.database() as url,
        closing(open_database(f"{url}?prepare_threshold=0", {}, connections=3)) as database,
    ):
        database.run(lambda connection, _: connection.execute(sa.text("CREATE TABLE t (n) AS SELECT 1")))

        def on_each_connection(left: int) -> None:
            """Execute the statement on `left` connections: each is in use while the next is taken."""

            def work(connection: sa.Connection, _: bool) -> None:
                connection.scalar(sa.text("SELECT n FROM t"))
                if left > 1:
                    on_each_connection(left - 1)

            database.run(work)

        on_each_connection(3)
        with closing(database.dedicated()) as other:
            other.cursor().execute("ALTER TABLE t ALTER COLUMN n TYPE BIGINT")
        assert [database.scalar(sa.text("SELECT n FROM t")) for _ in range(2)] == [1, 1]


def test_who_looks_for_no_types_has_nothing_to_prepare(store: ScheduleStore) -> None:
    store.prepare(())
