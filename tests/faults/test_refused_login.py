"""A refused password is reported as such.

A store tries again after growing waits, and a settlement waits for the login.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing

import psycopg
import pytest
from sqlalchemy.exc import OperationalError

from faultlab.laboratory import Lab
from faultlab.login import Login, made_login
from faultlab.mariadb import MariaDB
from faultlab.postgresql import PostgreSQL
from faultlab.proxy import Proxy
from faultlab.redis import Redis
from faultlab.servers import Server
from psched.backends.sql import open_database
from psched.clock import boottime, monotonic
from psched.config import from_mapping
from psched.exporter.database import section_readers
from psched.insight import open_insight
from psched.web.status_poller import StatusPoller
from tests.stores.bench import Bench, eventually

KINDS: dict[str, type[Server]] = {"mariadb": MariaDB, "postgresql": PostgreSQL, "redis": Redis}


@pytest.fixture(params=KINDS)
def shared(request: pytest.FixtureRequest, lab: Lab) -> Server:
    """Each shared server that has users."""
    return lab.shared(KINDS[request.param])


@pytest.fixture
def bench(shared: Server) -> Iterator[Bench]:
    """A table, as its owner sees it."""
    name = shared.create_database()
    bench = Bench("redis" if isinstance(shared, Redis) else "rdb", shared.url(name))
    bench.make()
    yield bench
    bench.close()
    shared.drop_database(name)


@pytest.fixture
def login(shared: Server, bench: Bench) -> Iterator[Login]:
    """A user whose password the server refuses at first."""
    with made_login(shared, bench.url.rpartition("/")[2]) as login:
        yield login


def test_the_exporter_and_the_pages_report_a_refused_login_as_such(
    shared: Server, login: Login, caplog: pytest.LogCaptureFixture
) -> None:
    type_ = "redis" if isinstance(shared, Redis) else "rdb"
    with open_insight(from_mapping({"type": type_, "url": login.url, "schedules": {}})) as insight:
        [reader] = section_readers(insight)
        reader.begin()
        assert reader.facts(monotonic() + 30) is None
        with closing(StatusPoller(lambda: insight)) as poller:
            assert poller.status(30).problem.startswith("the database refuses this user: ")
    found = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert len(found) == 2
    assert all("the database refuses this user: " in message for message in found), found


def test_a_refused_login_is_reported_as_such_and_the_server_is_not_asked_again_at_once(
    shared: Server, bench: Bench, login: Login
) -> None:
    with Proxy(shared.port) as proxy:
        store = bench.open(url=login.url.replace(f":{shared.port}/", f":{proxy.port}/"))
        for away in (False, True):
            with pytest.raises(Exception) as caught:  # noqa: PT011 – each driver has its own
                store.now()
            assert store.is_refused(caught.value), repr(caught.value)
            assert not store.is_unavailable(caught.value)
            if not away:
                asked = proxy.lose_request(b"AUTH")  # of Redis, which a client has connected to before it logs in
                proxy.refuse()
                if isinstance(shared, Redis):
                    proxy.pass_on()
        assert not asked.sprung
        proxy.forget_traps()
        proxy.pass_on()
        login.accept()
        assert eventually(lambda: answer_of(store)) > 0
        store.close()


def answer_of(store: object) -> float:
    """Return the store's clock in unix seconds; 0 if the server refuses the login."""
    try:
        return float(store.now())  # type: ignore[attr-defined]
    except Exception as error:
        if not store.is_refused(error):  # type: ignore[attr-defined]
            raise
        return 0.0


def test_settling_outlasts_a_password_that_is_wrong_for_a_while(bench: Bench, login: Login) -> None:
    login.accept()
    store = bench.open(url=login.url)
    bench.add(store, "a")
    claim = bench.take(store, "a")
    login.refuse()
    outcomes: list[BaseException | None] = []

    def settle() -> None:
        try:
            store.release(claim.lease, boottime() + 30)
            outcomes.append(None)
        except BaseException as error:  # noqa: BLE001 – whatever it is, there must be none
            outcomes.append(error)

    thread = threading.Thread(target=settle)
    thread.start()
    eventually(lambda: pause_of(store) > 0)
    login.accept()
    thread.join(30)
    assert outcomes == [None]
    assert [row.status for row in store.list()] == ["waiting"]
    store.close()


def pause_of(store: object) -> float:
    """Return the seconds until the store tries to log in again."""
    holder = getattr(store, "_database", None) or getattr(store, "_server", None)
    return float(holder._logins.pause())


def test_a_missing_privilege_is_a_refusal_and_not_an_outage(shared: Server, bench: Bench, login: Login) -> None:
    login.accept()
    login.allow_nothing()
    store = bench.open(url=login.url)
    with pytest.raises(Exception) as caught:  # noqa: PT011 – each driver has its own
        store.acquire(1, 10)
    assert store.is_refused(caught.value), repr(caught.value)
    assert not store.is_unavailable(caught.value)
    store.close()


@pytest.mark.parametrize(
    ("part", "wrong", "state"),
    [("secret@", "wrong@", "28P01"), (":secret@", "@", "28P01"), ("/postgres", "/none", "3D000")],
)
def test_a_refusal_is_known_in_any_language(
    postgresql: Server, monkeypatch: pytest.MonkeyPatch, part: str, wrong: str, state: str
) -> None:
    for words in ("_REFUSED", "_TURNED_AWAY"):
        monkeypatch.setattr(f"psched.backends.sql.postgresql.{words}", ())  # so the error's words say nothing
    database = open_database(postgresql.url("postgres").replace(part, wrong), {})
    with pytest.raises(OperationalError) as caught:
        database.run(lambda connection, _: connection.exec_driver_sql("SELECT 1"))
    assert isinstance(caught.value.orig, psycopg.Error)
    assert caught.value.orig.sqlstate == state
    assert database.retry_reason(caught.value) is None
    assert database.is_refused(caught.value) is (state == "28P01")
    database.close()
