"""The connections on which a store calls scripts: kept while idle, checked before use, closed with the store."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from psched.backends.redis.client import RedisServer
from psched.model import NewTask
from psched.store import TaskStore
from tests.stores.bench import eventually
from tests.stores.queue.bench import QueueBench, keys_in
from tests.stores.rows import RedisRows

CALLS = 20


def clients_of(tasks: QueueBench) -> set[str]:
    """Return the numbers of the server's connections, except that of the test itself."""
    rows = tasks.rows
    assert isinstance(rows, RedisRows)
    return {client["id"] for client in rows.client.client_list() if client["id"] != str(rows.client.client_id())}


def test_calls_of_one_thread_share_one_connection(tasks: QueueBench, queue: TaskStore) -> None:
    queue.next_due()
    before = clients_of(tasks)
    for number in range(CALLS):
        queue.submit([NewTask(f"key{number}", "t")])
    assert clients_of(tasks) == before


def test_calls_of_several_threads_have_their_own_connections(tasks: QueueBench, queue: TaskStore) -> None:
    with ThreadPoolExecutor(4) as threads:
        list(threads.map(lambda number: queue.submit([NewTask(f"key{number}", "t")]), range(CALLS)))
    assert len(keys_in(queue)) == CALLS


def test_a_connection_that_the_server_has_closed_is_opened_again_before_the_call(
    tasks: QueueBench, queue: TaskStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue.next_due()
    rows = tasks.rows
    assert isinstance(rows, RedisRows)
    rows.client.client_kill_filter(_type="normal", skipme=True)
    monkeypatch.setattr(RedisServer, "_drop_idle", lambda server: pytest.fail("the call was sent in vain"))
    assert queue.submit([NewTask("key", "t")]) == []


def test_closing_a_store_closes_its_connections(tasks: QueueBench) -> None:
    before = clients_of(tasks)
    store = tasks.queue()
    store.submit([NewTask("key", "t")])
    assert len(clients_of(tasks) - before) > 0
    store.close()
    assert eventually(lambda: clients_of(tasks) == before)
    assert store.submit([NewTask("other", "t")]) == []
