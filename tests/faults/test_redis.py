"""Calls succeed although Redis ends, restarts, forgets its scripts, kills clients, is full or is read-only."""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from redis.exceptions import RedisError

from faultlab.laboratory import Lab
from faultlab.proxy import Proxy
from faultlab.redis import Redis
from faultlab.servers import PASSWORD
from psched.clock import boottime
from psched.model import TaskFilter
from tests.faults.dead_connections import Held, see_that_it_is_unavailable
from tests.stores.bench import FAR_OFF, HOURLY, LONG_AGO, Bench, keys_of, soon, unless_away
from tests.stores.queue.bench import QueueBench
from tests.stores.rows import RedisRows


@pytest.fixture
def own(lab: Lab) -> Iterator[Redis]:
    """A private Redis, which the test may break."""
    with lab.private(Redis) as server:
        assert isinstance(server, Redis)
        yield server


@pytest.fixture
def bench(own: Redis, tmp_path: Path) -> Iterator[Bench]:
    """A store on the private Redis, with five rows that are due."""
    bench = Bench("redis", own.url(own.create_database()))
    try:
        bench.open().create_tables()
        bench.fill(bench.open(), [f"key{n}" for n in range(5)], lambda i: LONG_AGO + i)
        yield bench
    finally:
        bench.close()


def test_a_server_that_was_restarted_and_knows_no_script_is_no_error(own: Redis, bench: Bench) -> None:
    held = Held(bench)
    own.kill()
    own.start()
    held.use_every_verb()


def test_scripts_that_were_flushed_are_loaded_again(own: Redis, bench: Bench) -> None:
    held = Held(bench)
    own.command("SCRIPT", "FLUSH")
    held.use_every_verb()


def test_clients_that_were_killed_connect_anew(own: Redis, bench: Bench) -> None:
    held = Held(bench)
    own.command("CLIENT", "KILL", "TYPE", "normal")
    held.use_every_verb()


def test_clients_killed_at_any_moment_lose_nothing_and_do_nothing_twice(own: Redis, bench: Bench) -> None:
    store = bench.open()
    ran: list[str] = []
    with killing_clients(own) as kills:
        deadline = time.monotonic() + 20
        while len(ran) < 5 or kills[0] < 5:
            assert time.monotonic() < deadline, f"{len(ran)} ran with {kills[0]} kills"
            for claim in unless_away(store, lambda: store.acquire(2, 100)) or []:
                store.advance(claim, FAR_OFF, FAR_OFF, boottime() + 10)
                ran.append(claim.row.key)
    assert sorted(ran) == [f"key{n}" for n in range(5)]


@contextlib.contextmanager
def killing_clients(server: Redis) -> Iterator[list[int]]:
    """Kill every client again and again. Yield a list whose only item counts how often."""
    over, kills = threading.Event(), [0]

    def kill() -> None:
        while not over.wait(0.005):
            server.command("CLIENT", "KILL", "TYPE", "normal")
            kills[0] += 1

    thread = threading.Thread(target=kill)
    thread.start()
    try:
        yield kills
    finally:
        over.set()
        thread.join()


def test_a_server_that_is_away_is_reported_as_such_and_settling_waits_for_it(own: Redis, bench: Bench) -> None:
    store = bench.open()
    a, b = store.acquire(2, 100)
    own.kill()
    see_that_it_is_unavailable(store, store.acquire, 1, 100)
    see_that_it_is_unavailable(store, store.get, "a")
    see_that_it_is_unavailable(store, store.extend, [a.lease, b.lease], 100)
    see_that_it_is_unavailable(store, store.release, a.lease, boottime() + 0.3)
    see_that_it_is_unavailable(bench.open(), store.check_tables)
    later = threading.Timer(0.5, own.start)
    later.start()
    assert store.advance(b, FAR_OFF, FAR_OFF, boottime() + 20) is None
    later.join()
    store.release(a.lease, soon())
    assert keys_of(store.acquire(1, 100)) == ["key2"]


@contextlib.contextmanager
def read_only(server: Redis) -> Iterator[None]:
    """Make the server a replica, like a demoted primary. It keeps its connections and refuses writes."""
    server.set_read_only()
    try:
        yield
    finally:
        server.command("REPLICAOF", "NO", "ONE")


def test_a_server_that_became_read_only_counts_as_away_and_settling_waits_for_it(own: Redis, bench: Bench) -> None:
    store = bench.open()
    (a,) = store.acquire(1, 100)
    outcome: list[Any] = []
    thread = threading.Thread(target=lambda: outcome.append(store.advance(a, FAR_OFF, FAR_OFF, boottime() + 15)))
    old = clients(bench)
    with read_only(own):
        see_that_it_is_unavailable(store, store.add, "c", "t", HOURLY, FAR_OFF, FAR_OFF, {})
        see_that_it_is_unavailable(store, store.acquire, 1, 100)
        see_that_it_is_unavailable(store, store.release, a.lease, boottime() + 0.2)
        assert old - clients(bench), "a connection to a demoted primary was kept"
        thread.start()
        time.sleep(0.2)
        assert outcome == []
    thread.join(20)
    assert outcome == [None]
    row = store.get("key0")
    assert row is not None
    assert row.next_time == FAR_OFF


def clients(bench: Bench) -> set[str]:
    """Return the server's ids of its clients."""
    rows = bench.rows
    assert isinstance(rows, RedisRows)
    return {client["id"] for client in rows.client.client_list()}


def test_a_full_server_counts_as_away_but_what_runs_is_renewed_and_settled(own: Redis, bench: Bench) -> None:
    store = bench.open()
    claims = store.acquire(4, 100)
    own.command("CONFIG", "SET", "maxmemory", "1")
    see_that_it_is_unavailable(store, store.add, "c", "t", HOURLY, FAR_OFF, FAR_OFF, {})
    see_that_it_is_unavailable(store, store.acquire, 1, 100)
    assert None not in store.extend([claim.lease for claim in claims], 200)
    assert store.advance(claims[0], FAR_OFF, FAR_OFF, soon()) is None
    store.retry(claims[1].lease, 100, "error", soon())
    store.release(claims[2].lease, soon())
    assert store.give_back(claims[3].row.node or "", [], 100) == 1
    own.command("CONFIG", "SET", "maxmemory", "0")
    assert keys_of(store.acquire(9, 100)) == ["key3", "key4", "key2"], "key3, given back unstarted, keeps its place"


def test_a_full_server_lets_tasks_of_a_queue_end(own: Redis) -> None:
    bench = QueueBench("redis", own.url(own.create_database()))
    queue = bench.queue()
    queue.create_tables()
    bench.submit(queue, ["a", "b", "c"], user="u")
    done, gone, _ = queue.acquire(3, 100)
    own.command("CONFIG", "SET", "maxmemory", "1")
    assert None not in queue.extend([done.lease, gone.lease], 200)
    queue.retire(done, "failed", "error", 0, soon())
    assert queue.purge(5) == 1
    queue.delete("b")
    queue.force_finish("c", 100)
    assert [row.status for row in queue.list(TaskFilter())] == ["finished"]
    bench.close()


def test_too_many_clients_pass_by_themselves(own: Redis, bench: Bench) -> None:
    store = bench.open()
    assert bench.rows.raw("key0") is not None  # by one client, which stays
    own.command("CONFIG", "SET", "maxclients", "1")
    see_that_it_is_unavailable(store, store.get, "key0")


def test_a_wrong_password_does_not_pass_by_itself_and_is_not_told(own: Redis, bench: Bench) -> None:
    store = bench.open(url=bench.url.replace(PASSWORD, "guessed"))
    with pytest.raises(RedisError) as caught:
        store.get("key0")
    assert not store.is_unavailable(caught.value)
    assert "guessed" not in f"{caught.value} {caught.value!r}"


def test_an_error_of_our_own_making_does_not_pass_by_itself(bench: Bench) -> None:
    store = bench.open()
    bench.rows.drop()
    with pytest.raises(RedisError, match="schedules") as caught:
        store.acquire(1, 100)
    assert not store.is_unavailable(caught.value)
    assert not store.is_unavailable(ValueError("no database error"))


class InterruptedCallError(Exception):
    """Raised in the main thread during a call."""


def test_a_call_that_is_interrupted_leaves_no_answer_to_the_next_one(own: Redis, bench: Bench) -> None:
    """An exception may stop a handler at any moment, even while it waits for an answer."""

    def interrupt(*_: object) -> None:
        raise InterruptedCallError

    bench.write("key2", data='{"the": "right one"}')
    before = signal.signal(signal.SIGALRM, interrupt)
    with Proxy(own.port) as proxy:
        store = bench.open(url=bench.url.replace(str(own.port), str(proxy.port)))
        store.get("key1")
        held = proxy.hold(b"key1")
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        with pytest.raises(InterruptedCallError):
            store.get("key1")
        signal.signal(signal.SIGALRM, before)
        held.release()
        row = store.get("key2")
        store.close()
    assert row is not None
    assert row.data == {"the": "right one"}
