"""Fixtures for tests that request the pages in this process, with SQLite."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from psched.config import Settings, from_mapping
from psched.queue.queue import Queue, open_queue
from psched.schedules.collection import ScheduleCollection, open_schedules
from psched.web import AccessFunction, app
from tests.prepared_sqlite import make_tables

OWN = {"Sec-Fetch-Site": "same-origin"}
"""The header by which a browser marks a form of the same site."""

Visit = Callable[..., TestClient]
"""The type of `visit`. Its arguments: an access function, the visitor's address, the host, and keys of `web:`."""


@pytest.fixture
def url(tmp_path: Path) -> str:
    """The URL of a SQLite database, in whose file `settings` makes the tables."""
    return f"sqlite:///{tmp_path}/psched.db"


@pytest.fixture
def settings(url: str, tmp_path: Path) -> Settings:
    """Settings with schedules and a queue, whose tables exist."""
    found = settings_of(url)

    def create() -> None:
        with schedules_of(found) as schedules, queue_of(found) as queue:
            schedules.store.create_tables()
            queue.store.create_tables()

    make_tables(tmp_path / "psched.db", ("web",), create)
    return found


@pytest.fixture
def schedules(settings: Settings) -> Iterator[ScheduleCollection]:
    with schedules_of(settings) as opened:
        yield opened


@pytest.fixture
def queue(settings: Settings) -> Iterator[Queue]:
    with queue_of(settings) as opened:
        yield opened


@pytest.fixture
def visit(settings: Settings, url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Visit]:
    """A function that opens the pages. They wait up to 60 s for each answer, because the machine may be busy."""
    monkeypatch.setattr("psched.web.shared_state._PATIENCE", 60.0)
    with ExitStack() as stack:

        def opened(
            access: AccessFunction | None = None,
            peer: str = "127.0.0.1",
            host: str = "127.0.0.1:9808",
            **web: Any,
        ) -> TestClient:
            made = app(settings_of(url, **web), access=access)
            client = TestClient(made, f"http://{host}", follow_redirects=False, client=(peer, 50000))
            return stack.enter_context(client)

        yield opened


def settings_of(url: str, **web: Any) -> Settings:
    return from_mapping({"type": "rdb", "url": url, "schedules": {}, "queue": {}, "web": web})


def schedules_of(settings: Settings) -> ScheduleCollection:
    assert settings.schedules is not None
    return open_schedules(settings.schedules, "test")


def queue_of(settings: Settings) -> Queue:
    assert settings.queue is not None
    return open_queue(settings.queue, "test")
