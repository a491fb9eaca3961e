"""Fixtures of the unit tests."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from psched.application import App
from tests.unit.ledger import Ledger


@pytest.fixture
def ledger(caplog: pytest.LogCaptureFixture) -> Ledger:
    caplog.set_level(logging.INFO)
    return Ledger()


@pytest.fixture
def app() -> Iterator[App]:
    app = App()
    yield app
    app.close()
