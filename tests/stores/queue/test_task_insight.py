"""What insight returns about tasks, on every store."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from psched.errors import NotFoundError, NotSupportedError
from psched.insight import TaskInsight
from psched.model import LeaseTimes, NewTask
from psched.queue.queue import PRIORITIES, Queue
from psched.store import TaskStore
from psched.store.counts import Counted
from psched.store.type_filter import TypeFilter
from tests.announcements import announce
from tests.stores.bench import FAR_OFF, LONG_AGO, eventually, soon
from tests.stores.queue.bench import QueueBench


@pytest.fixture
def insight(bench: QueueBench, store: TaskStore) -> TaskInsight:
    """Insight with a read-only session. `store` has made the table."""
    return insight_of(bench)


def insight_of(bench: QueueBench) -> TaskInsight:
    return TaskInsight(Queue(bench.queue(read_only=True), LeaseTimes(300, 5)))


def numbers(insight: TaskInsight, most: int = 100) -> dict[str, str]:
    return {name: str(number) for name, number in insight.counts(most).items()}


def words(insight: TaskInsight, key: str) -> list[str]:
    return [reason.word for reason in insight.details(key).waits]


def test_an_empty_queue_has_nothing(bench: QueueBench, insight: TaskInsight) -> None:
    assert set(numbers(insight).values()) == {"0"}
    assert insight.page().rows == []
    with pytest.raises(NotFoundError, match="'none'"):
        insight.details("none")
    if not bench.compat:
        assert insight.types() == []


def test_counts_tell_the_statuses_apart(bench: QueueBench, store: TaskStore, insight: TaskInsight) -> None:
    bench.submit(store, [f"key{n}" for n in range(8)])
    store.submit([NewTask("later", "type1", run_at=FAR_OFF)])
    finished, other, *_ = store.acquire(4, 100)
    store.retire(finished, "finished", None, 100, soon())
    if bench.compat:
        assert numbers(insight) == {"waiting": "4", "due": "4", "running": "4", "finished": "1"}
        return
    store.retire(other, "failed", "boom", None, soon())
    store.cancel_request("key7", 100)
    expected = {"waiting": "4", "due": "3", "running": "2", "finished": "1", "failed": "1", "cancelled": "1"}
    assert numbers(insight) == expected


def test_an_ended_lease_is_due(bench: QueueBench, store: TaskStore, insight: TaskInsight) -> None:
    bench.submit(store, ["key"])
    bench.claim(store, "key", alive_time=bench.lease)
    eventually(lambda: numbers(insight)["running"] == "0")
    assert numbers(insight)["due"] == "1"


def test_a_count_ends_at_its_bound(bench: QueueBench, store: TaskStore, insight: TaskInsight) -> None:
    bench.submit(store, [f"key{n}" for n in range(6)])
    assert numbers(insight, most=5)["waiting"] == ("6" if bench.database == "redis" else "5+")
    assert insight.counts(6)["waiting"] == Counted(6)


def test_tasks_of_several_priorities_are_counted_up_to_one_bound(ours: QueueBench) -> None:
    store, insight = ours.queue(), insight_of(ours)
    for priority, count in ((0, 3), (1, 2), (2, 1)):
        store.submit([NewTask(f"{priority}-{n}", "type1", priority=priority) for n in range(count)])
    for most in range(1, 8):
        expected = Counted(6) if ours.database == "redis" else Counted.up_to(most, 6)
        assert [insight.counts(most)[status] for status in ("due", "waiting")] == [expected] * 2


def test_tasks_of_many_priorities_are_counted(ours: QueueBench) -> None:
    """Each priority in use makes the statements longer. SQLite refuses a deeply nested statement."""
    store, insight = ours.queue(), insight_of(ours)
    submit_to_bands(store, range(15))
    assert insight.counts(100)["waiting"] == Counted(30)
    assert insight.types(most=1)[0].type == "t"
    assert [user.due.count for user in insight.users().users] == [15, 15]
    assert len(insight.late(60, limit=5)) == 5


@pytest.mark.parametrize("ours", ["sqlite"], indirect=True)
def test_tasks_of_all_priorities_are_found(ours: QueueBench) -> None:
    """SQLite allows 500 SELECTs in a UNION."""
    store = ours.queue()
    submit_to_bands(store, PRIORITIES)
    assert store.next_due() == store.next_due(["t", "other"]) == 0
    [claim] = store.acquire(1, 100)
    row = store.get(claim.row.key)
    assert row is not None
    assert row.priority == PRIORITIES[-1]
    assert all(finding.ok for finding in store.diagnose(writing=False))


def submit_to_bands(store: TaskStore, priorities: Iterable[int]) -> None:
    """Submit two tasks of each priority, with user and without."""
    both = [(priority, user) for priority in priorities for user in (None, "ann")]
    store.submit([NewTask(f"{p}-{user}", "t", priority=p, user=user, run_at=LONG_AGO) for p, user in both])


def test_waiting_tasks_are_not_confused_with_many_running_ones(ours: QueueBench) -> None:
    store, insight = ours.queue(), insight_of(ours)
    ours.submit(store, [f"key{n:02}" for n in range(40)])
    assert len(store.acquire(25, 100)) == 25
    for most in (20, 25, 30):  # more are running than are counted; as many; fewer
        assert insight.counts(most)["waiting"] in (Counted(2, True), Counted(15))
        [found] = insight.types(most=most)
        assert found.waiting in (Counted(2, True), Counted(15))
    assert insight.counts(25)["waiting"] == insight.types(most=25)[0].waiting == Counted(15)


def test_due_tasks_whose_leases_have_ended_do_not_count_as_waiting(ours: QueueBench) -> None:
    store, insight = ours.queue(), insight_of(ours)
    ours.submit(store, [f"key{n}" for n in range(6)])
    store.acquire(1, ours.lease)
    eventually(lambda: numbers(insight)["running"] == "0")
    assert insight.counts(5)["waiting"] == Counted(5)


def test_types_come_with_their_numbers(ours: QueueBench) -> None:
    store, insight = ours.queue(), insight_of(ours)
    ours.submit(store, ["b0", "b1", "b2"], type="b")
    ours.submit(store, ["a0"], type="a", run_at=LONG_AGO + 10)
    ours.submit(store, ["a1"], type="a", run_at=LONG_AGO + 20, user="bob", priority=5)
    store.submit([NewTask("c0", "c", run_at=FAR_OFF)])
    store.acquire(2, 100, types=["b"])
    found = insight.types()
    assert {(each.type, str(each.waiting), str(each.due), str(each.running)) for each in found} == {
        ("b", "1", "1", "2"),
        ("a", "2", "2", "0"),
        ("c", "1", "0", "0"),
    }
    first, second, third = found
    assert [first.type, second.type, third.type] == ["b", "a", "c"]
    assert first.oldest is not None and second.oldest is not None and third.oldest is None
    assert first.oldest - second.oldest == pytest.approx(8, abs=0.5)


def test_users_take_turns_by_what_runs_of_theirs_and_what_may(ours: QueueBench) -> None:
    store, insight = ours.queue(), insight_of(ours)
    store.submit([NewTask("a0", "t", user="ann", run_at=LONG_AGO, max_running=1)])
    store.submit([NewTask("d0", "t", user="dan", run_at=LONG_AGO, max_running=4)])
    assert len(store.acquire(2, 100)) == 2
    store.submit([NewTask(f"a{n}", "t", user="ann", run_at=LONG_AGO + n, max_running=1) for n in (1, 2)])
    store.submit([NewTask("b0", "t", user="bob", run_at=LONG_AGO + 30)])
    store.submit([NewTask("c0", "t", run_at=LONG_AGO + 40), NewTask("c1", "t", run_at=FAR_OFF)])
    store.submit([NewTask("d1", "t", user="dan", run_at=LONG_AGO + 50, max_running=4, priority=5)])
    found, more = insight.users()
    assert not more
    assert [(each.user, str(each.due), each.running, each.max_running) for each in found] == [
        ("dan", "1", 1, 4),
        ("bob", "1", 0, None),
        (None, "1", 0, None),
        ("ann", "2", 1, 1),
    ]
    assert found[1].oldest - found[2].oldest == pytest.approx(10, abs=0.5)
    assert [each.weight for each in found] == [2, 1, 1, 0]
    first, more = insight.users(limit=1)
    assert ([each.user for each in first], more) == (["ann"], True)


def test_users_behind_the_tasks_that_are_looked_at_are_not_denied(ours: QueueBench) -> None:
    store, insight = ours.queue(), insight_of(ours)
    store.submit([NewTask(f"a{n}", "t", user="ann", run_at=LONG_AGO + n) for n in range(6)])
    store.submit([NewTask("b0", "t", user="bob", run_at=LONG_AGO + 100)])
    found = insight.users(most=5)
    assert found.more or [each.user for each in found.users] == ["ann", "bob"]
    found = insight.users()
    assert ([each.user for each in found.users], found.more) == (["ann", "bob"], False)


def test_types_on_the_originals_table_are_unknown(bench: QueueBench, insight: TaskInsight) -> None:
    if bench.compat:
        for ask in (insight.types, insight.users):
            with pytest.raises(NotSupportedError, match="rdb"):
                ask()


def test_late_tasks_come_by_due_time(bench: QueueBench, store: TaskStore, insight: TaskInsight) -> None:
    assert insight.late(60) == []
    bench.submit(store, ["c", "b"], user="ann")
    store.submit([NewTask("a", "type2", run_at=LONG_AGO + 100), NewTask("later", "type2", run_at=FAR_OFF)])
    store.submit([NewTask("first", "type1", run_at=LONG_AGO - 100)])
    assert [row.key for row in insight.late(60)] == ["first", "c", "b", "a"]
    assert [row.key for row in insight.late(60, limit=1)] == ["first"]
    assert insight.late(10**10) == []


def test_pages_of_tasks_pass_the_filter(bench: QueueBench, store: TaskStore, insight: TaskInsight) -> None:
    bench.submit(store, ["a1", "a2", "a3"], user="ann")
    bench.submit(store, ["b1", "b2"], type="type2", user="bob")
    page = insight.page(limit=2)
    assert ([row.key for row in page.rows], page.after) == (["a1", "a2"], "a2")
    assert [row.key for row in insight.page(after="a2").rows] == ["a3", "b1", "b2"]
    for wanted in ({"type": "type2"}, {"user": "bob"}, {"prefix": "b"}):
        for status in (None, "waiting"):
            found = insight.page(**wanted, status=status)  # type: ignore[arg-type]
            assert [row.key for row in found.rows] == ["b1", "b2"], (wanted, status)
    claim = bench.claim(store, "a1")
    assert [row.key for row in insight.page(status="running").rows] == ["a1"]
    store.retire(claim, "finished", None, 100, soon())
    assert [row.key for row in insight.page(status="finished").rows] == ["a1"]


def test_a_page_ends_where_too_many_rows_were_passed_over(
    bench: QueueBench, store: TaskStore, insight: TaskInsight, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("psched.insight.pages.LOOKED_AT", 3)
    bench.submit(store, [f"key{n}" for n in range(4)])
    store.submit([NewTask("last", "rare"), NewTask("zero", "rare")])
    first = insight.page(type="rare", limit=5)
    assert (first.rows, first.after) == ([], "key2")
    second = insight.page(type="rare", limit=5, after=first.after)
    assert ([row.key for row in second.rows], second.after) == (["last", "zero"], None)


def test_why_a_task_waits(ours: QueueBench) -> None:
    store, insight = ours.queue(), insight_of(ours)
    announce(store.nodes, "host/1", "queue", TypeFilter(("type1",)))
    ours.submit(store, ["one", "two"], user="bob", max_running=1)
    store.submit([NewTask("later", "type1", run_at=FAR_OFF), NewTask("other", "unknown", run_at=LONG_AGO + 100)])
    assert words(insight, "one") == ["busy"]
    assert words(insight, "later") == ["not due"]
    assert words(insight, "other") == ["no node"]
    claim = ours.claim(store, "one")
    assert words(insight, "one") == []
    assert words(insight, "two") == ["max_running"]
    assert "'bob'" in insight.details("two").waits[0].text
    store.retry(claim.lease, 100, "boom", soon())
    assert words(insight, "two") == ["busy"]
    (reason,) = insight.details("one").waits
    assert reason.word == "not due"
    assert "attempt 2" in reason.text
    store.force_finish("one", 100)
    assert words(insight, "one") == []
    assert [node.name for node in insight.nodes() or ()] == ["host/1"]
