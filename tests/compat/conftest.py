"""Fixtures of the shared table: made by the original, used by both."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from faultlab.laboratory import Lab
from psched.store import ScheduleStore
from tests.compat.original_schedules import Original
from tests.stores.bench import Bench
from tests.stores.places import DATABASES, Places


@pytest.fixture(scope="session")
def places(lab: Lab) -> Places:
    """The databases that the tests share."""
    return Places(lab)


@pytest.fixture(params=DATABASES)
def bench(request: pytest.FixtureRequest, places: Places, tmp_path: Path) -> Iterator[Bench]:
    """`rdb_compat` on each database, its table not made."""
    bench = places.bench("rdb_compat", request.param, tmp_path)
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
