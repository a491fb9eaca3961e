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


def test_who_looks_for_no_types_has_nothing_to_prepare(store: ScheduleStore) -> None:
    store.prepare(())
