"""Fixtures of the unit tests."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from psched.application import App
from psched.backends import open_stores
from psched.process.run_outcome_log import log_runs
from psched.queue.queue import Queue
from psched.store import StoreSettings
from tests.prepared_sqlite import make_tables_in_memory
from tests.unit.fake_task import Ledger
from tests.unit.in_memory_queue import TIMES


@pytest.fixture(autouse=True)
def _logged_runs() -> None:
    """Log the outcomes of runs, as a worker does."""
    log_runs()


@pytest.fixture
def ledger(caplog: pytest.LogCaptureFixture) -> Ledger:
    caplog.set_level(logging.INFO)
    return Ledger()


@pytest.fixture
def app() -> Iterator[App]:
    app = App()
    yield app
    app.close()


@pytest.fixture
def queue() -> Iterator[Queue]:
    store = open_stores("rdb", StoreSettings("sqlite://", "host/test/1", queue="psched_queue")).queue
    assert store is not None
    make_tables_in_memory(store, "psched_queue")
    with Queue(store, TIMES, retention=100, max_attempts=None) as queue:
        yield queue
