"""Fixtures of the shared table: made by the original, used by both."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from psched.store import ScheduleStore
from tests.compat.original import Original
from tests.stores.bench import Bench


@pytest.fixture
def bench(database: str) -> Iterator[Bench]:
    """`rdb_compat` on a database that has no table yet."""
    bench = Bench("rdb_compat", database)
    try:
        yield bench
    finally:
        bench.close()


@pytest.fixture
def original(bench: Bench) -> Original:
    """The original, which has made its table."""
    original = Original(bench)
    original.make_table()
    return original


@pytest.fixture
def store(bench: Bench, original: Original) -> ScheduleStore:
    """psched on the table that the original made."""
    return bench.open()
