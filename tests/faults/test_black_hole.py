"""A network that loses everything: each call ends within its timeouts, with a transient error."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
import sqlalchemy as sa

from faultlab.proxy import Proxy
from faultlab.servers import Server
from psched.backends.sql import open_database
from psched.clock import boottime
from psched.model import Claim
from psched.store import ScheduleStore
from tests.stores.bench import FAR_OFF, HOURLY, Bench, eventually

pytestmark = pytest.mark.slow

SHORT = {"connect_timeout": "0.5", "read_timeout": "0.5"}
LIMIT = 20
"""Seconds after which a call counts as one that never ends. The timeouts are half a second."""


def test_every_call_into_a_black_hole_ends(server: Server, bench: Bench) -> None:
    with Proxy(server.port) as proxy:
        store = open_through(proxy, bench)
        bench.add(bench.open(), "key")
        bench.add(bench.open(), "doomed", due=FAR_OFF)
        claim = bench.take(store, "key")
        calls = calls_of(store, claim)
        outcomes = run_each_with_a_store_of_its_own(proxy, bench, calls, warm=True)
        assert set(outcomes) == set(calls), "a call hangs"
        assert all(store.is_unavailable(error) for error in outcomes.values()), outcomes
        proxy.pass_on()
        assert store.get("key") is not None


def test_connecting_into_a_black_hole_ends(server: Server, bench: Bench) -> None:
    """The server's port accepts the connection, but the server's greeting never comes."""
    with Proxy(server.port) as proxy:
        outcomes = run_each_with_a_store_of_its_own(proxy, bench, {"now": lambda store: store.now()}, warm=False)
        assert list(outcomes) == ["now"], "connecting hangs"
        assert bench.open().is_unavailable(outcomes["now"])


@pytest.mark.parametrize("bench", [("rdb", "mariadb"), ("rdb", "postgresql")], indirect=True, ids="-".join)
def test_whose_network_went_in_a_transaction_keeps_no_row_locked(bench: Bench) -> None:
    bench.add(bench.open(), "key")
    url = sa.make_url(bench.url).update_query_dict({"read_timeout": "1"})
    database = open_database(url.render_as_string(hide_password=False), {})

    def stand_still(connection: sa.Connection, uncertain: bool) -> None:
        connection.exec_driver_sql(database.dialect.begin)
        connection.execute(sa.text(f"SELECT * FROM {bench.table} FOR UPDATE"))
        assert unlocked(bench) == 0
        eventually(lambda: unlocked(bench) == 1, within=LIMIT)
        connection.invalidate()

    database.run(stand_still)
    database.close()


def unlocked(bench: Bench) -> int:
    """Return the number of rows that no transaction has locked."""
    with bench.connect() as outside:
        return len(outside.execute(sa.text(f"SELECT * FROM {bench.table} FOR UPDATE SKIP LOCKED")).all())


Call = Callable[[ScheduleStore], object]


def calls_of(store: ScheduleStore, claim: Claim) -> dict[str, Call]:
    """Return a call of each method. Calls that settle a run have a deadline in half a second."""
    return {
        "now": lambda store: store.now(),
        "acquire": lambda store: store.acquire(1, 100),
        "extend": lambda store: store.extend([claim.lease], 100),
        "release": lambda store: store.release(claim.lease, boottime() + 0.5),
        "retry": lambda store: store.retry(claim.lease, 5, None, boottime() + 0.5),
        "advance": lambda store: store.advance(claim, FAR_OFF, FAR_OFF, boottime() + 0.5),
        "give_back": lambda store: store.give_back("host/1/gone", [], 10),
        "add": lambda store: store.add("new", "t", HOURLY, FAR_OFF, FAR_OFF, {}),
        "get": lambda store: store.get("key"),
        "list": lambda store: list(store.list()),
        "delete": lambda store: store.delete("doomed"),
        "check_tables": lambda store: store.check_tables(),
    }


def run_each_with_a_store_of_its_own(
    proxy: Proxy, bench: Bench, calls: dict[str, Call], warm: bool
) -> dict[str, Exception]:
    """Make all calls, each in a thread and with a store of its own, through a black hole.

    Return the errors of those that ended.
    """
    if bench.compat:
        calls.pop("give_back", None)  # it asks nothing of the database
    stores = {name: open_through(proxy, bench) for name in calls}
    if warm:
        for store in stores.values():
            store.now()
    proxy.black_hole()
    outcomes: dict[str, Exception] = {}

    def run(name: str) -> None:
        try:
            calls[name](stores[name])
        except Exception as error:  # noqa: BLE001 - the test judges it
            outcomes[name] = error

    threads = [threading.Thread(target=run, args=(name,), daemon=True) for name in calls]
    for thread in threads:
        thread.start()
    deadline = boottime() + LIMIT
    for thread in threads:
        thread.join(max(0, deadline - boottime()))
    return outcomes


def open_through(proxy: Proxy, bench: Bench) -> ScheduleStore:
    url = sa.make_url(bench.url).set(port=proxy.port).update_query_dict(SHORT)
    return bench.open(url=url.render_as_string(hide_password=False))
