"""If the configuration requests it, each task's end is put into the outbox in the transaction that ends the task."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import sqlalchemy as sa

from psched.store import TaskStore
from psched.store.outbox import EventOutbox
from tests.stores.bench import LONG_AGO, eventually, soon
from tests.stores.databases import DATABASES
from tests.stores.queue.bench import QueueBench
from tests.stores.statements import watched

ODD = "ÄÖ 😀 '; --"


@pytest.fixture
def store(ours: QueueBench) -> Iterator[TaskStore]:
    return ours.queue(keeps_endings=True, keeps_failures=True)


@pytest.fixture
def outbox(store: TaskStore) -> EventOutbox:
    assert store.outbox is not None
    return store.outbox


def ends(outbox: EventOutbox) -> list[tuple[str, str]]:
    return sorted((event.facts["key"], event.facts["outcome"]) for event in outbox.page(1000))


def test_all_ends_of_a_batch_are_kept_and_no_other(ours: QueueBench, store: TaskStore, outbox: EventOutbox) -> None:
    before = store.now()
    ours.submit(store, [ODD, "deleted", "preempted", "released", "retried", "z"])
    claims = {claim.row.key: claim for claim in store.acquire(6, 100)}
    ours.queue().preempt("preempted", 100)
    store.delete("deleted")
    store.release(claims["released"].lease, soon())
    store.retry(claims["retried"].lease, 50, "later", soon())
    assert ends(outbox) == []
    rest = [claims[key] for key in claims if key not in ("released", "retried")]
    store.retire_many(rest, "finished", 100, soon())
    assert ends(outbox) == [("z", "finished"), (ODD, "finished")]
    [odd] = [event for event in outbox.page(10) if event.facts["key"] == ODD]
    assert before - 0.01 <= odd.at <= store.now()
    fence, node = claims[ODD].lease.fence, claims[ODD].row.node
    known = {"event": "task", "key": ODD, "type": "type1", "scheduled_time": LONG_AGO, "fence": fence, "node": node}
    assert odd.facts == {**known, "outcome": "finished", "attempts": 1, "error": None}


def test_more_than_fit_into_one_statement_are_kept(ours: QueueBench, store: TaskStore, outbox: EventOutbox) -> None:
    ours.submit(store, [f"key{n:03}" for n in range(503)])
    assert store.retire_many(store.acquire(503, 100), "finished", 100, soon()) == [None] * 503
    assert len(ends(outbox)) == 503


def test_failures_and_what_an_operator_ends_are_kept_too(
    ours: QueueBench, store: TaskStore, outbox: EventOutbox
) -> None:
    ours.submit(store, ["failed"])
    store.retire(ours.claim(store, "failed"), "failed", "it\0broke" + "!" * 3000, None, soon())
    ours.submit(store, ["cancelled", "forced", "asked"])
    store.cancel_request("cancelled", 100)
    store.force_finish("forced", 100)
    ours.claim(store, "asked")
    store.cancel_request("asked", 100)
    assert ends(outbox) == [("cancelled", "cancelled"), ("failed", "failed"), ("forced", "finished")]
    [failed] = [event.facts for event in outbox.page(10) if event.facts["key"] == "failed"]
    assert failed["error"].startswith("it")
    assert len(failed["error"]) <= 2000
    assert store.failures is not None
    assert store.failures.claim(100) is not None


def test_without_the_wish_nothing_is_kept(ours: QueueBench) -> None:
    store = ours.queue()
    ours.submit(store, ["a", "b"])
    store.retire(ours.claim(store, "a"), "finished", None, 100, soon())
    store.force_finish("b", 100)
    assert store.outbox is not None
    assert store.outbox.page(10) == []


def test_the_outbox_is_emptied_from_its_oldest_event_on(store: TaskStore, outbox: EventOutbox) -> None:
    for number in range(5):
        outbox.put({"event": "late", "number": number})
    first = outbox.page(2)
    outbox.remove(first)
    outbox.remove(first)
    outbox.remove([])
    left = outbox.page(10)
    assert len(left) == 3
    assert {event.facts["number"] for event in (*first, *left)} == set(range(5))
    assert outbox.trim(100, 10) == 0
    assert eventually(lambda: outbox.trim(0.001, 2)) == 2
    assert eventually(lambda: outbox.trim(0.001, 2)) == 1
    assert outbox.page(10) == []


@pytest.mark.new_table
@pytest.mark.parametrize("ours", DATABASES, indirect=True)
def test_removing_some_of_many_events_reads_only_these(ours: QueueBench, outbox: EventOutbox) -> None:
    """When the database gathered statistics, all events had been written at the same time."""
    name = f"{ours.table}_outbox"
    with ours.connect() as connection:
        table = sa.Table(name, sa.MetaData(), autoload_with=connection)
        connection.execute(table.insert(), [{"at": LONG_AGO, "number": n, "facts": "{}"} for n in range(2000)])
    words = {"sqlite": "ANALYZE", "mysql": f"ANALYZE TABLE {name}", "postgresql": f"ANALYZE {name}"}
    ours.execute(words[ours.database])
    ours.execute(f"UPDATE {name} SET at = at + number")
    with watched(ours, table=name) as watch:
        outbox.remove(outbox.page(1))
    assert sum(watch.reads) <= 20, watch.plans
    assert not any("ANY(at)" in plan for plan in watch.plans), watch.plans
    assert len(outbox.page(2000)) == 1999
