"""Calls succeed although servers stop, restart, kill sessions, refuse writes or choose deadlock victims."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from typing import Any

import psycopg
import pymysql
import pytest
import sqlalchemy as sa

from faultlab.mariadb import MariaDB
from faultlab.servers import Server
from psched.clock import boottime
from psched.model import Claim, Lease
from psched.store import ScheduleStore
from tests.faults.dead_connections import Held, see_that_it_is_unavailable
from tests.stores.bench import FAR_OFF, HOURLY, LONG_AGO, Bench, eventually, keys_of, soon, unless_away
from tests.stores.databases import SERVER_PAIRS

TYPES = ["rdb", "rdb_compat"]

in_sql = pytest.mark.parametrize("bench", SERVER_PAIRS, indirect=True, ids="-".join)
"""The parameter of tests on SQL databases. The tests for Redis are in test_redis.py."""


def test_a_server_that_was_restarted_between_two_calls_is_no_error(own_server: Server) -> None:
    """Each method gets a connection that has died, takes a fresh one, and raises nothing."""
    with own_server.database() as url:
        benches = [Bench(type_, url, table=f"table_{type_}") for type_ in TYPES]
        for bench in benches:
            bench.open().create_tables()
            bench.fill(bench.open(), [f"key{n}" for n in range(5)], lambda i: LONG_AGO + i)
            bench.close()
        claims = {bench.type: Held(bench) for bench in benches}
        own_server.kill()
        own_server.start()
        for bench in benches:
            claims[bench.type].use_every_verb()
            bench.close()


def test_a_server_that_is_away_is_reported_as_such_and_settling_waits_for_it(own_server: Server) -> None:
    with own_server.database() as url:
        for type_ in TYPES:
            bench = Bench(type_, url, table=f"table_{type_}")
            store = bench.open()
            store.create_tables()
            bench.fill(store, ["a", "b"], lambda i: LONG_AGO + i)
            a, b = store.acquire(2, 100)
            own_server.kill()
            see_that_it_is_unavailable(store, store.acquire, 1, 100)
            see_that_it_is_unavailable(store, store.get, "a")
            see_that_it_is_unavailable(store, store.extend, [a.lease, b.lease], 100)
            see_that_it_is_unavailable(store, store.release, a.lease, boottime() + 0.3)
            later = threading.Timer(0.5, own_server.start)
            later.start()
            assert store.advance(b, FAR_OFF, FAR_OFF, boottime() + 20) is None
            later.join()
            store.release(a.lease, soon())
            bench.take(store, "a")
            bench.close()


@in_sql
def test_an_error_of_our_own_making_does_not_pass_by_itself(bench: Bench, store: ScheduleStore) -> None:
    bench.execute("DROP TABLE {table}")
    with pytest.raises(Exception) as caught:  # noqa: PT011 - the driver's own, whichever it is
        store.acquire(1, 100)
    assert not store.is_unavailable(caught.value)
    assert not store.is_unavailable(ValueError("no database error"))


@in_sql
def test_a_session_killed_by_the_server_is_replaced(server: Server, bench: Bench) -> None:
    bench.fill(bench.open(), [f"key{n}" for n in range(5)], lambda i: LONG_AGO + i)
    held = Held(bench)
    kill_sessions(server, bench)
    held.use_every_verb()


@in_sql
def test_sessions_killed_at_any_moment_lose_nothing_and_do_nothing_twice(
    server: Server, bench: Bench, store: ScheduleStore
) -> None:
    keys = [f"key{n:02}" for n in range(40)]
    bench.fill(store, keys, lambda i: LONG_AGO + i)
    with killing_sessions(server, bench) as kills:
        ran: list[str] = []
        deadline = time.monotonic() + 20
        while len(ran) < len(keys) or kills[0] < 3:
            assert time.monotonic() < deadline, f"{len(ran)} of {len(keys)} ran with {kills[0]} kills"
            for claim in acquire_in_spite_of_it(store, ran):
                store.advance(claim, FAR_OFF, FAR_OFF, boottime() + 10)
                ran.append(claim.row.key)
    assert sorted(ran) == keys
    assert {row.next_time for row in store.list()} == {FAR_OFF}


def acquire_in_spite_of_it(store: ScheduleStore, ran: list[str]) -> list[Claim]:
    """Acquire like a worker: after a transient error return nothing, because the next poll tries again."""
    return unless_away(store, lambda: store.acquire(3, 1)) or []


@contextlib.contextmanager
def killing_sessions(server: Server, bench: Bench) -> Iterator[list[int]]:
    """Kill every session of the database again and again. Yield a list whose only item counts the killed sessions."""
    over, kills = threading.Event(), [0]

    def kill() -> None:
        while not over.wait(0.01):
            kills[0] += kill_sessions(server, bench)

    thread = threading.Thread(target=kill)
    thread.start()
    try:
        yield kills
    finally:
        over.set()
        thread.join()


def kill_sessions(server: Server, bench: Bench) -> int:
    """Kill every session that is connected to the bench's database. Return the number of sessions."""
    found = sessions(server, bench)
    if isinstance(server, MariaDB):
        with server.admin() as cursor:
            for session in found:
                with contextlib.suppress(pymysql.Error):  # it ended by itself
                    cursor.execute("KILL %s", [session])
    else:
        with server.admin() as connection:  # type: ignore[attr-defined]
            connection.execute("SELECT pg_terminate_backend(pid) FROM unnest(%s::int[]) pid", [list(found)])
    return len(found)


def sessions(server: Server, bench: Bench) -> set[int]:
    """Return the server's ids of the sessions that are connected to the bench's database."""
    database = sa.make_url(bench.url).database
    if isinstance(server, MariaDB):
        with server.admin() as cursor:
            cursor.execute("SELECT id FROM information_schema.processlist WHERE db = %s", [database])
            return {session for (session,) in cursor.fetchall()}
    with server.admin() as connection:  # type: ignore[attr-defined]
        found = connection.execute("SELECT pid FROM pg_stat_activity WHERE datname = %s", [database])
        return {session for (session,) in found.fetchall()}


@in_sql
def test_the_victim_of_a_deadlock_tries_again(bench: Bench, store: ScheduleStore) -> None:
    """Another session locks the rows in the other order.

    It has changed more rows, so the server chooses the store as the victim.
    """
    keys = [f"key{n:02}" for n in range(30)]
    bench.fill(store, keys, lambda i: LONG_AGO + i)
    leases = [claim.lease for claim in store.acquire(2, 100)]
    for _ in range(5):
        stranger_was_victim, found = lock_in_other_order(bench, store, leases, keys)
        assert [lease and lease.key for lease in found] == ["key00", "key01"]
        if not stranger_was_victim:
            return
        leases = [lease for lease in found if lease is not None]
    pytest.fail("the store was never the victim")


def lock_in_other_order(
    bench: Bench, store: ScheduleStore, leases: list[Lease], keys: list[str]
) -> tuple[bool, list[Lease | None]]:
    """Extend `leases` while a stranger locks the rows. Return whether the stranger was the victim, and the new leases.

    PostgreSQL looks for a deadlock once, when a session has waited for a second. On a busy machine the stranger
    (another session) may not be waiting yet.
    """
    answers: list[list[Lease | None]] = []
    stranger = sa.create_engine(bench.plain_url, poolclass=sa.NullPool).connect()
    touch = f"UPDATE {bench.table} SET cron = cron || '' WHERE {bench.quoted_key} IN :keys"
    if bench.database == "mysql":
        touch = touch.replace("cron || ''", "CONCAT(cron, ' ')")
    statement = sa.text(touch).bindparams(sa.bindparam("keys", expanding=True))
    thread = threading.Thread(target=lambda: answers.append(store.extend(leases, 200)))
    was_victim = False
    with stranger, stranger.begin() as transaction:
        stranger.execute(statement, {"keys": ["key01", *keys[2:]]})
        thread.start()
        eventually(lambda: waits_for_a_lock(bench) or not thread.is_alive())
        try:
            stranger.execute(statement, {"keys": ["key00"]})
        except sa.exc.OperationalError as error:
            if not isinstance(error.orig, psycopg.errors.DeadlockDetected):
                raise
            was_victim = True
            transaction.rollback()
    thread.join(20)
    return was_victim, answers[0]


def waits_for_a_lock(bench: Bench) -> bool:
    """Return whether a session of the database waits for the lock of another session."""
    question = {
        "mysql": "SELECT count(*) FROM information_schema.processlist WHERE db = database() "
        "AND command = 'Query' AND (/*M! time_ms > 20 OR */ time > 0) AND id <> connection_id()",
        "postgresql": "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() "
        "AND wait_event_type = 'Lock'",
    }
    with bench.connect() as connection:
        return bool(connection.scalar(sa.text(question[bench.database])))


@in_sql
def test_a_row_that_somebody_else_has_locked_is_waited_for_or_passed_by(bench: Bench, store: ScheduleStore) -> None:
    bench.fill(store, ["locked", "free"], lambda i: LONG_AGO + i)
    taken: list[Claim] = []
    thread = threading.Thread(target=lambda: taken.extend(store.acquire(1, 100)))
    with bench.connect() as stranger:
        stranger.execute(sa.text(f"SELECT * FROM {bench.table} WHERE {bench.quoted_key} = 'locked' FOR UPDATE"))
        thread.start()
        eventually(lambda: not thread.is_alive() or waits_for_a_lock(bench))
        if bench.compat or bench.database == "postgresql":
            thread.join(5)
            assert keys_of(taken) == ["free"]
    thread.join(20)
    assert sorted(keys_of(taken + store.acquire(10, 100))) == ["free", "locked"]


@contextlib.contextmanager
def read_only(server: Server) -> Iterator[None]:
    """Make the server refuse writes of psched's user, like a demoted primary. Sessions stay connected."""
    server.set_read_only()
    try:
        yield
    finally:
        server.set_writable()


def read_only_to(bench: Bench) -> bool:
    """Return whether a new session cannot write. PostgreSQL needs a moment to apply changed settings."""
    question = {"mysql": "SELECT @@global.read_only", "postgresql": "SHOW default_transaction_read_only"}
    with bench.connect() as connection:
        return str(connection.scalar(sa.text(question[bench.database]))) in ("1", "on")


@in_sql
def test_a_server_that_became_read_only_counts_as_away(server: Server, bench: Bench, store: ScheduleStore) -> None:
    bench.fill(store, ["a", "b"], lambda i: LONG_AGO + i)
    (a,) = store.acquire(1, 100)
    with read_only(server):
        eventually(lambda: read_only_to(bench))
        old = sessions(server, bench)
        see_that_it_is_unavailable(store, store.acquire, 1, 100)
        see_that_it_is_unavailable(store, store.extend, [a.lease], 100)
        see_that_it_is_unavailable(store, store.add, "c", "t", HOURLY, FAR_OFF, FAR_OFF, {})
        see_that_it_is_unavailable(store, store.release, a.lease, boottime() + 0.2)
        assert old - sessions(server, bench), "a connection to a demoted primary was kept"
    eventually(lambda: not read_only_to(bench))
    assert keys_of(store.acquire(1, 100)) == ["b"]
    store.release(a.lease, soon())


@in_sql
def test_settling_outlasts_a_time_of_refused_writes(server: Server, bench: Bench, store: ScheduleStore) -> None:
    bench.add(store, "key")
    claim = bench.take(store, "key")
    outcome: list[Any] = []
    thread = threading.Thread(target=lambda: outcome.append(store.advance(claim, FAR_OFF, FAR_OFF, boottime() + 15)))
    with read_only(server):
        eventually(lambda: read_only_to(bench))
        thread.start()
        time.sleep(0.3)
        assert outcome == []
    thread.join(20)
    assert outcome == [None]
    row = store.get("key")
    assert row is not None
    assert row.next_time == FAR_OFF
