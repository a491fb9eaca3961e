"""A pooler between psched and PostgreSQL: refused before anything is set, unless sessions are psched's own."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest

from faultlab.pgbouncer import PgBouncer
from faultlab.servers import Server
from psched import ConfigError
from psched.backends import open_stores
from psched.store import Stores, StoreSettings
from tests.stores.databases import STORES

SHARING = ["transaction", "statement"]
REMEDY = "connect to PostgreSQL directly, or set `pooler: session`"


@pytest.fixture
def pooler(postgresql: Server, request: pytest.FixtureRequest) -> Iterator[PgBouncer]:
    """A PgBouncer in the mode that the test asks for, with one session for all clients of a database."""
    with PgBouncer(postgresql, request.param) as pooler:
        yield pooler


@pytest.fixture
def database(pooler: PgBouncer) -> Iterator[str]:
    """The name of an empty database behind the pooler."""
    name = pooler.create_database()
    yield name
    pooler.drop_database(name)


def opened(type_: str, url: str, pooler: str | None = None) -> Stores:
    settings = StoreSettings(url=url, holder="host/1/x", schedules="schedules", queue="queue", pooler=pooler)
    return open_stores(type_, settings)


def session_of(neighbour: psycopg.Connection[Any]) -> list[tuple[Any, ...]]:
    """Return what is set in the session that a client is given, and what is prepared there."""
    settings = neighbour.execute("SELECT pg_backend_pid()::text, name, setting FROM pg_settings ORDER BY name")
    prepared = neighbour.execute("SELECT name FROM pg_prepared_statements")
    return [*settings.fetchall(), *prepared.fetchall()]


@pytest.mark.parametrize("type_", STORES)
@pytest.mark.parametrize("pooler", [*SHARING, "session"], indirect=True)
def test_a_pooler_is_refused_with_the_remedy_and_its_other_clients_sessions_stay_as_they_are(
    type_: str, pooler: PgBouncer, database: str
) -> None:
    with pooler.connect(database) as neighbour:
        before = session_of(neighbour)
        if pooler.mode == "session":
            neighbour.close()  # which sets the only session free
        for call in ways_to_connect(opened(type_, pooler.url(database))):
            with pytest.raises(ConfigError, match=REMEDY):
                call()
    with pooler.connect(database) as neighbour:
        assert session_of(neighbour) == before


def ways_to_connect(stores: Stores) -> list[Callable[[], object]]:
    """Return calls that each make a connection: SQLAlchemy's, the driver's own, and the one that listens."""
    schedules, queue = stores.schedules, stores.queue
    assert schedules is not None
    assert queue is not None
    calls = [schedules.create_tables, schedules.check_tables, lambda: list(schedules.list()), schedules.now, queue.now]
    wakeup = queue.open_wakeup()
    return calls if wakeup is None else [*calls, lambda: wakeup.listen(1)]


@pytest.mark.parametrize("type_", STORES)
@pytest.mark.parametrize("pooler", ["session"], indirect=True)
def test_sessions_of_ones_own_are_used_when_the_configuration_says_so(
    type_: str, pooler: PgBouncer, database: str
) -> None:
    pooler.stop()
    pooler.sessions = 4
    pooler.start()
    stores = opened(type_, pooler.url(database), "session")
    assert stores.queue is not None
    stores.queue.create_tables()
    stores.queue.check_tables()
    assert stores.queue.acquire(1, 10) == []
    assert ("pooler", True) in [(finding.subject, finding.ok) for finding in stores.queue.diagnose()]
    stores.queue.close()
    with pooler.connect(database) as neighbour:
        ((setting,),) = neighbour.execute("SHOW enable_seqscan").fetchall()
    assert setting == "on", "PgBouncer resets a session before it gives it to another client"


@pytest.mark.parametrize("type_", STORES)
@pytest.mark.parametrize("pooler", SHARING, indirect=True)
def test_doctor_finds_out_that_sessions_are_shared_all_the_same(type_: str, pooler: PgBouncer, database: str) -> None:
    queue = opened(type_, pooler.url(database), "session").queue
    assert queue is not None
    with contextlib.closing(queue):
        finding = next(finding for finding in queue.diagnose() if finding.subject == "pooler")
    assert not finding.ok
    assert "pool_mode = session" in finding.message
