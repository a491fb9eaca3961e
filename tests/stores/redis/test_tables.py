"""Tables of a Redis: kinds, layouts, an unfit server, and rows that another program made invalid or deleted."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import redis

from faultlab.laboratory import Lab
from faultlab.redis import Redis
from psched.backends import open_stores
from psched.errors import ConfigError, NotSupportedError, PreemptedError
from psched.model import NewTask
from psched.store import ScheduleStore, StoreSettings, TaskStore
from tests.stores.bench import FAR_OFF, LONG_AGO, Bench, eventually, keys_of, soon
from tests.stores.queue.bench import QueueBench, keys_in
from tests.stores.redis.consistency import Snapshot
from tests.stores.redis.test_consistency import AnswerLostError
from tests.stores.rows import RedisRows
from tests.stores.sent_statements import after_each


def rows_of(bench: Bench) -> RedisRows:
    assert isinstance(bench.rows, RedisRows)
    return bench.rows


@pytest.mark.parametrize("number", ["1", "99", "x"])
def test_a_table_of_another_version_is_refused_also_by_running_workers(
    bench: Bench, store: ScheduleStore, number: str
) -> None:
    bench.add(store, "key")
    rows = rows_of(bench)
    rows.client.hset(f"{rows.prefix}meta", "layout", number)
    before = (sorted(rows.client.keys(f"{rows.prefix}*")), rows.client.hgetall(f"{rows.prefix}meta"), bench.raw("key"))
    for refused in (bench.open().check_tables, bench.open().create_tables):
        with pytest.raises(ConfigError, match="another version of psched") as found:
            refused()
        assert f"{rows.prefix}*" in str(found.value)
    with pytest.raises(redis.ResponseError) as refusal:
        store.acquire(1, 100)
    assert str(refusal.value) == (
        f"the table {bench.table} was created by another version of psched; psched doctor shows the remedy"
    )
    assert [finding.ok for finding in store.diagnose()] == [False]
    after = (sorted(rows.client.keys(f"{rows.prefix}*")), rows.client.hgetall(f"{rows.prefix}meta"), bench.raw("key"))
    assert after == before
    rows.drop()
    store.create_tables()
    store.check_tables()
    assert store.acquire(1, 100) == []


def test_schedules_and_a_queue_are_not_taken_for_one_another(bench: Bench, store: ScheduleStore) -> None:
    settings = StoreSettings(url=bench.url, holder="h", queue=bench.table)
    queue = open_stores("redis", settings).queue
    assert queue is not None
    for refused in (queue.check_tables, queue.create_tables):
        with pytest.raises(ConfigError, match="holds schedules, not queue"):
            refused()
    with pytest.raises(redis.ResponseError) as refusal:
        queue.submit([NewTask("key", "t")])
    assert str(refusal.value) == f"the table {bench.table} holds schedules, not queue; configure another table"
    queue.close()


def test_a_table_that_is_gone_is_reported_in_plain_words(bench: Bench, store: ScheduleStore) -> None:
    rows_of(bench).drop()
    with pytest.raises(redis.ResponseError) as refusal:
        store.acquire(1, 100)
    assert str(refusal.value) == (
        f"the table {bench.table} does not exist; create it with: psched init (for a queue: psched queue init)"
    )


def test_an_old_server_is_refused(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redis.Redis, "info", lambda client, section: {"redis_version": "5.0.14"})
    for refused in (bench.open().check_tables, bench.open().create_tables):
        with pytest.raises(ConfigError, match="Redis 5.0.14 is too old: 6.0 or later"):
            refused()


def test_a_server_that_may_drop_rows_is_warned_about(lab: Lab, caplog: pytest.LogCaptureFixture) -> None:
    with lab.private(Redis) as server:
        assert isinstance(server, Redis)
        bench = Bench("redis", server.url("0"))
        store = bench.open()
        store.create_tables()
        server.command("CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
        server.command("CONFIG", "SET", "appendonly", "no")
        with caplog.at_level(logging.WARNING):
            store.check_tables()
        assert "table=schedules the server may evict rows" in caplog.text
        assert "maxmemory-policy noeviction" in caplog.text
        found = {finding.subject: finding for finding in store.diagnose()}
        assert not found["eviction"].ok
        assert not found["persistence"].ok
        server.command("CONFIG", "SET", "save", "60 1000")
        snapshots = next(finding for finding in store.diagnose() if finding.subject == "persistence")
        assert snapshots.ok
        assert "save 60 1000" in snapshots.message
        bench.close()


def test_a_key_that_comes_again_has_higher_fences_than_ever(bench: Bench, store: ScheduleStore) -> None:
    """This holds even if the clock shows the same time as before, or was set back."""
    bench.add(store, "key")
    bench.write("key", fence=FAR_OFF * 1000)
    stale = bench.take(store, "key")
    store.delete("key")
    bench.add(store, "key")
    again = bench.take(store, "key")
    assert again.lease.fence > stale.lease.fence
    with pytest.raises(PreemptedError):
        store.advance(stale, FAR_OFF, FAR_OFF, soon())


def test_a_purged_key_that_comes_again_has_higher_fences_than_ever(tasks: QueueBench, queue: TaskStore) -> None:
    tasks.submit(queue, ["key"])
    tasks.write("key", fence=FAR_OFF * 1000)
    stale = tasks.claim(queue, "key")
    queue.retire(stale, "finished", None, 0, soon())
    assert queue.purge(10) == 1
    tasks.submit(queue, ["key"])
    assert tasks.claim(queue, "key").lease.fence > stale.lease.fence


SPOILT: list[dict[str, Any]] = [
    {"next_time": "soon"}, {"delay_ms": "later"}, {"next_time": 10**18}, {"data": b"\xff\xfe"}, {"cron": b"\xff"},
    {"timezone": b"\xff"}, {"type": None}, {"next_time": None}, {"cron": None},
]  # fmt: skip
HARMLESS: list[dict[str, Any]] = [
    {"due": "soon"}, {"version": "x"}, {"attempts": "many"}, {"attempts": None}, {"status": None}, {"holder": None},
]  # fmt: skip
"""Invalid values of fields that an acquire or the ledger overwrites. Rows with such values run."""


@pytest.mark.parametrize("spoilt", [*SPOILT, *HARMLESS], ids=str)
def test_a_spoilt_field_is_a_problem_of_its_row_alone(
    bench: Bench, store: ScheduleStore, spoilt: dict[str, Any]
) -> None:
    bench.fill(store, ["bad", "good"], lambda i: LONG_AGO + i)
    spoil(bench, "bad", spoilt)
    claims = {claim.row.key: claim for claim in store.acquire(10, 100)}
    assert claims["good"].row.problem is None
    assert bool(claims["bad"].row.problem) == (spoilt in SPOILT)
    assert store.extend([claims["bad"].lease], 100) != [None]
    store.retry(claims["bad"].lease, 100, claims["bad"].row.problem, soon())
    assert sorted(bool(row.problem) for row in store.list()) == [False, spoilt in SPOILT]
    spoil(bench, "bad", spoilt)
    assert len(list(store.list())) == 2
    store.delete("bad")
    assert [row.key for row in store.list()] == ["good"]
    assert store.acquire(10, 100) == []


def spoil(bench: Bench, key: str, fields: dict[str, Any]) -> None:
    """Write these fields of a row; None deletes a field. Change nothing else."""
    rows = rows_of(bench)
    for name, value in fields.items():
        if value is None:
            rows.client.hdel(f"{rows.prefix}row:{key}", name)
        else:
            rows.client.hset(f"{rows.prefix}row:{key}", name, value)


def test_an_acquire_without_answer_is_undone_also_on_spoilt_rows(bench: Bench, store: ScheduleStore) -> None:
    bench.fill(store, ["a", "b"], lambda i: LONG_AGO + i)

    def lose(command: str) -> None:
        if command.startswith("EVAL"):
            raise AnswerLostError

    with pytest.raises(AnswerLostError), after_each(lose):
        store.acquire(10, 100)
    spoil(bench, "a", {"ready": "soon"})
    assert sorted(keys_of(store.acquire(10, 100))) == ["a", "b"]


def test_what_is_no_row_at_all_is_reported_once_and_can_be_deleted(
    bench: Bench, store: ScheduleStore, caplog: pytest.LogCaptureFixture
) -> None:
    bench.fill(store, ["bad", "good"], lambda i: LONG_AGO + i)
    rows = rows_of(bench)
    rows.client.delete(f"{rows.prefix}row:bad")
    rows.client.set(f"{rows.prefix}row:bad", "text")
    assert [row.key for row in store.list()] == ["good"]
    for expected in (["good"], []):
        assert keys_of(store.acquire(10, 100)) == expected
    message = f"key=bad cannot be run: the Redis key {rows.prefix}row:bad is missing or not a hash"
    assert caplog.text.count(message) == 1
    assert store.get("bad") is None
    store.delete("bad")
    bench.add(store, "bad")
    assert keys_of(store.acquire(10, 100)) == ["bad"]


def test_a_set_that_does_not_know_its_row_is_mended(bench: Bench, store: ScheduleStore) -> None:
    """Another program wrote only into the hashes.

    No row is acquired by its former type, and no row that is already leased.
    """
    bench.fill(store, ["typed", "taken"], lambda i: LONG_AGO + i)
    spoil(bench, "typed", {"type": "other"})
    spoil(bench, "taken", {"due": FAR_OFF * 1000})
    assert store.acquire(10, 100, ["type1"]) == []
    assert keys_of(store.acquire(10, 100, ["other"])) == ["typed"]
    assert (store.next_due(["type1"]) or 0) > 1000
    assert store.acquire(10, 100) == []


def test_schedules_whose_hash_is_gone_are_forgotten(bench: Bench, store: ScheduleStore) -> None:
    bench.fill(store, ["a", "gone", "z"], lambda i: LONG_AGO + i)
    rows_of(bench).client.delete(f"{rows_of(bench).prefix}row:gone")
    assert [row.key for row in store.list()] == ["a", "z"]
    assert keys_of(store.acquire(10, 100)) == ["a", "z"]
    assert store.acquire(10, 100, ["type1"]) == []
    assert store.give_back("host/1/none", [], 10) == 0


def test_tasks_whose_hash_is_gone_are_forgotten_wherever_they_were(tasks: QueueBench, queue: TaskStore) -> None:
    for user in (None, "u"):
        tasks.submit(queue, [f"{user} {n}" for n in range(3)], user=user)
    tasks.submit(queue, ["later"], run_at=queue.now() + 0.2)
    (held,) = queue.acquire(1, 0.2)
    rows = rows_of(tasks)
    for key in ("None 1", "u 0", "later", held.row.key):
        rows.client.delete(f"{rows.prefix}row:{key}")
    kept = {"None 0", "None 2", "u 1", "u 2"} - {held.row.key}
    assert set(keys_of(queue.acquire(10, 100))) == kept
    assert set(keys_in(queue)) == kept
    while queue.next_due(["type1"]) == 0.0 or (queue.next_due() or 0) < 1:
        assert queue.acquire(10, 100) == queue.acquire(10, 100, ["type1"]) == []
    assert queue.give_back(held.row.node or "", [], 10) == len(kept)


def test_who_had_a_run_whose_hash_is_gone_has_room_again(
    tasks: QueueBench, queue: TaskStore, caplog: pytest.LogCaptureFixture
) -> None:
    tasks.submit(queue, ["lost", "next"], user="u", max_running=1)
    tasks.submit(queue, ["other"], user="v", max_running=1)
    assert sorted(keys_of(queue.acquire(10, 0.1))) == ["lost", "other"]
    rows = rows_of(tasks)
    for key in ("lost", "other"):
        rows.client.delete(f"{rows.prefix}row:{key}")
    rows.client.set(f"{rows.prefix}row:other", "text")
    found = eventually(lambda: queue.acquire(10, 100))
    assert keys_of(found) == ["next"]
    assert [caplog.text.count(f"key={key} cannot be run") for key in ("lost", "other")] == [1, 1]
    queue.delete("other")
    queue.release(found[0].lease, soon())
    assert not {"run:u", "run:v", "leases:"} & set(Snapshot(rows).sets)
    assert keys_in(queue) == ["next"]


def test_a_type_that_is_named_twice_or_is_empty_takes_nothing_twice(
    bench: Bench, store: ScheduleStore, tasks: QueueBench, queue: TaskStore
) -> None:
    bench.fill(store, ["a", "b"], lambda i: LONG_AGO + i)
    tasks.submit(queue, ["a", "b"])
    for leases in (store, queue):
        assert leases.acquire(9, 100, [""]) == []
        assert leases.next_due([""]) is None
        assert keys_of(leases.acquire(9, 100, ["type1", "type1", ""])) == ["a", "b"]


def test_a_queue_takes_no_part_in_a_transaction_of_sql(queue: TaskStore) -> None:
    with pytest.raises(NotSupportedError, match="cannot join a database transaction"):
        queue.submit([NewTask("key", "t")], object())


def test_tables_in_two_databases_are_not_written_together(lab: Lab) -> None:
    server = lab.shared(Redis)
    stores = [
        open_stores("redis", StoreSettings(url=server.url(database), holder="h", schedules="s", queue="q"))
        for database in ("4", "5")
    ]
    one, other = stores
    assert one.schedules is not None
    assert one.queue is not None
    assert other.queue is not None
    assert one.schedules.shares_database(one.queue)
    assert not one.schedules.shares_database(other.queue)


def test_thousands_of_a_holder_are_given_back_in_parts(tasks: QueueBench, queue: TaskStore) -> None:
    dead = tasks.queue("host/9/dead")
    queue.submit([NewTask(f"key{n}", "t", user=f"u{n % 3}") for n in range(1203)])
    assert len(dead.acquire(1203, 100)) == 1203
    assert queue.give_back("host/9/dead", ["key7"], 100) == 1203
    taken = {claim.row.key for claim in queue.acquire(2000, 100)}
    assert len(taken - {"key7"}) == 1202  # which is due in a second


@pytest.mark.parametrize("field", ["type", "user", "priority", "due", "fence", "attempts", "max_running"])
def test_a_spoilt_field_of_a_task_stops_no_neighbour(tasks: QueueBench, queue: TaskStore, field: str) -> None:
    tasks.submit(queue, ["bad", "good", "best"], user="u", priority=3)
    tasks.submit(queue, ["later"], run_at=queue.now() + 0.05)
    rows = rows_of(tasks)
    for key in ("bad", "later"):
        rows.client.hset(f"{rows.prefix}row:{key}", field, b"\xff spoilt")
    taken: list[str] = []
    while len(taken) < 4:
        for claim in queue.acquire(10, 100):
            taken.append(claim.row.key)
            queue.retire(claim, "finished", None, None, soon())
    assert sorted(taken) == ["bad", "best", "good", "later"]


def test_a_task_whose_fence_is_spoilt_goes_as_others_do(tasks: QueueBench, queue: TaskStore) -> None:
    tasks.submit(queue, ["deleted", "purged", "other"])
    rows = rows_of(tasks)
    for key in ("deleted", "purged"):
        rows.client.hset(f"{rows.prefix}row:{key}", "fence", "spoilt")
    queue.delete("deleted")
    for claim in queue.acquire(10, 100):
        queue.retire(claim, "finished", None, 0, soon())
    rows.client.hset(f"{rows.prefix}row:purged", "fence", "spoilt")
    assert queue.purge(10) == 2
    assert keys_in(queue) == []
