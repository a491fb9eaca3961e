"""Many runs are finished by one call whose request or answer is lost: each run is finished once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
import sqlalchemy as sa

from faultlab.laboratory import Lab
from faultlab.proxy import Proxy, Trap
from faultlab.redis import Redis
from psched.backends import open_stores
from psched.store import StoreSettings
from tests.faults.test_lost_answers import LOSSES
from tests.stores.bench import soon
from tests.stores.databases import KINDS, SERVER_PAIRS, SharedDatabases
from tests.stores.queue.bench import QueueBench, keys_in, row_of
from tests.stores.queue.conftest import made_bench
from tests.stores.sent_statements import before_each

KEYS = ["one", "three", "two"]


@pytest.fixture(params=[*SERVER_PAIRS, ("redis", "redis")], ids="-".join)
def tasks(request: pytest.FixtureRequest, databases: SharedDatabases, tmp_path: Path) -> Iterator[QueueBench]:
    """Each kind of queue on each database server."""
    with made_bench(databases, *request.param, tmp_path) as bench:
        yield bench


@pytest.mark.parametrize("lose", LOSSES, ids=["request", "answer"])
def test_runs_that_are_finished_together_are_finished_once_though_a_statement_is_lost(
    lab: Lab, tasks: QueueBench, lose: Callable[[Proxy, bytes], Trap]
) -> None:
    server = lab.shared(
        Redis if tasks.database == "redis" else KINDS["mariadb" if tasks.database == "mysql" else tasks.database]
    )
    for keeps_endings in (False,) if tasks.compat else (False, True):
        finish_together(server.port, tasks, lose, keeps_endings)


def finish_together(port: int, tasks: QueueBench, lose: Callable[[Proxy, bytes], Trap], keeps_endings: bool) -> None:
    near = tasks.queue()
    with Proxy(port) as proxy:
        url = sa.make_url(tasks.url).set(port=proxy.port).render_as_string(hide_password=False)
        settings = StoreSettings(url=url, holder="host/2/far", queue=tasks.table, keeps_endings=keeps_endings)
        far = open_stores(tasks.type, settings).queue
        assert far is not None
        with closing(far):
            for statement in statements_of(tasks, keeps_endings):
                tasks.submit(near, KEYS)
                claims = far.acquire(3, 100)
                near.delete("three")
                trap = lose(proxy, statement)
                found = far.retire_many(claims, "finished", 100, soon())
                assert trap.sprung, f"{statement!r} did not pass"
                assert [error is None for error in found] == [claim.row.key != "three" for claim in claims]
                assert keys_in(near, status="finished") == ["one", "two"]
                assert row_of(near, "one").due is None
                if near.outbox is not None:
                    events = near.outbox.page(10)
                    near.outbox.remove(events)
                    assert sorted(event.facts["key"] for event in events) == (["one", "two"] if keeps_endings else [])
                for key in ("one", "two"):
                    near.delete(key)


def statements_of(tasks: QueueBench, keeps_endings: bool) -> list[bytes]:
    """Return the constant beginning of each statement of `retire_many`, in order.

    One of its rows has been deleted before.
    """
    seen: list[bytes] = []

    def note(statement: str) -> None:
        fixed = statement.split()[1] if tasks.database == "redis" else statement.partition("%")[0]
        if fixed.encode() not in seen and not statement.startswith("EVAL "):
            seen.append(fixed.encode())

    store = tasks.queue(keeps_endings=keeps_endings)
    tasks.submit(store, KEYS)
    claims = store.acquire(3, 100)
    store.delete("three")
    with before_each(note):
        store.retire_many(claims, "finished", 100, soon())
    for key in ("one", "two"):
        store.delete(key)
    if store.outbox is not None:
        store.outbox.remove(store.outbox.page(10))
    assert seen
    return seen
