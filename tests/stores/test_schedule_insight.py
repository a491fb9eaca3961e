"""What insight returns about schedules, on every store."""

from __future__ import annotations

import pytest

from psched.errors import NotFoundError, NotSupportedError
from psched.insight import ScheduleInsight
from psched.model import LeaseTimes, Retry, Rule, ScheduleFilter
from psched.schedules.collection import Defaults, ScheduleCollection
from psched.store import ScheduleStore
from psched.store.counts import Counted
from psched.store.ledger import Entry
from psched.store.type_filter import TypeFilter
from tests.announcements import announce
from tests.stores.bench import FAR_OFF, LONG_AGO, Bench, soon
from tests.stores.databases import on_our_tables
from tests.stores.sent_statements import before_each

TIMES = LeaseTimes(300, 5)


def collection(store: ScheduleStore) -> ScheduleCollection:
    return ScheduleCollection(store, TIMES, Defaults())


@pytest.fixture
def insight(bench: Bench, store: ScheduleStore) -> ScheduleInsight:
    """Insight with a read-only session. `store` has made the table."""
    return ScheduleInsight(collection(bench.open(read_only=True)))


def numbers(insight: ScheduleInsight, most: int = 100) -> dict[str, str]:
    return {name: str(number) for name, number in insight.counts(most).items()}


def test_an_empty_table_has_nothing(bench: Bench, insight: ScheduleInsight) -> None:
    assert set(numbers(insight).values()) == {"0"}
    assert insight.page().rows == []
    assert insight.page().after is None
    assert insight.overdue() == []
    assert insight.forecast(2).schedules == 0
    with pytest.raises(NotFoundError, match="'none'"):
        insight.details("none")
    if not bench.compat:
        assert insight.types() == []


def test_counts_tell_due_running_failing_and_paused_apart(
    bench: Bench, store: ScheduleStore, insight: ScheduleInsight
) -> None:
    for n in range(7):
        bench.add(store, f"due{n}", due=LONG_AGO + n)
    bench.add(store, "later", due=FAR_OFF)
    if bench.compat:
        assert numbers(insight) == {"total": "8", "due": "7"}
        return
    failed, *_ = store.acquire(3, 100)
    assert store.retry_many([Retry(failed.lease, 50, "boom")], soon()) == [None]
    assert collection(store)["later"].pause()
    assert numbers(insight) == {"total": "8", "due": "4", "running": "2", "failing": "1", "paused": "1", "ended": "0"}


def test_a_count_ends_at_its_bound(bench: Bench, store: ScheduleStore, insight: ScheduleInsight) -> None:
    for n in range(6):
        bench.add(store, f"due{n}", due=LONG_AGO + n)
    bounded = {"due": "6", "total": "6"} if bench.database == "redis" else {"due": "5+", "total": "5+"}
    assert bounded.items() <= numbers(insight, most=5).items()
    assert insight.counts(6)["due"] == Counted(6)


def test_overdue_schedules_are_read_together_with_their_data(bench: Bench, store: ScheduleStore) -> None:
    for n in range(20):
        bench.add(store, f"due{n}", due=LONG_AGO + n, data={"n": n})
    sent: list[str] = []
    with before_each(sent.append):
        assert [row.data["n"] for row in collection(store).late()] == [*range(20)]
    assert len(sent) < 15


def test_types_come_with_what_is_due_longest_first(
    bench: Bench, store: ScheduleStore, insight: ScheduleInsight
) -> None:
    for n, type_ in enumerate(["b", "b", "b", "a"]):
        bench.add(store, f"{type_}{n}", type=type_, due=LONG_AGO + n)
    bench.add(store, "later", type="c", due=FAR_OFF)
    if bench.compat:
        with pytest.raises(NotSupportedError):
            insight.types()
        return
    store.acquire(1, 100)
    b, a, c = insight.types()
    assert [(each.type, str(each.waiting), str(each.due), str(each.running)) for each in (b, a, c)] == [
        ("b", "2", "2", "1"),
        ("a", "1", "1", "0"),
        ("c", "1", "0", "0"),
    ]
    assert b.oldest is not None and a.oldest is not None
    assert b.oldest == pytest.approx(store.now() - LONG_AGO - 1, abs=60)
    assert b.oldest - a.oldest == pytest.approx(2, abs=0.1)
    assert c.oldest is None
    assert [each.type for each in insight.types(limit=1)] == ["b"]


def test_pages_follow_one_another_by_due_time(bench: Bench, store: ScheduleStore, insight: ScheduleInsight) -> None:
    for n in range(5):
        bench.add(store, f"key{n}", type="wanted" if n % 2 else "other", due=LONG_AGO + 10 - n)
    after, seen = None, []
    for _ in range(3):
        page = insight.page(limit=2, after=after)
        seen.append([row.key for row, _ in page.rows])
        after = page.after
    assert seen == [["key4", "key3"], ["key2", "key1"], ["key0"]]
    assert after is None
    assert [row.key for row, _ in insight.page(type="wanted").rows] == ["key3", "key1"]
    assert [row.key for row, _ in insight.page(prefix="key4").rows] == ["key4"]
    assert [state.word for _, state in insight.page(state="overdue", limit=1).rows] == ["overdue"]
    assert insight.page(state="running").rows == []


@on_our_tables
def test_a_schedule_whose_first_lease_expired_is_listed_as_retrying(
    bench: Bench, store: ScheduleStore, insight: ScheduleInsight
) -> None:
    for key, due in (("failed", LONG_AGO), ("expired", LONG_AGO + 1), ("both", LONG_AGO + 2)):
        bench.add(store, key, due=due)
    failed, _, both = store.acquire(3, 100)
    assert store.retry_many([Retry(failed.lease, 100, None), Retry(both.lease, 0, None)], soon()) == [None, None]
    assert [claim.row.key for claim in store.acquire(3, 100)] == ["both"]
    for key in ("expired", "both"):
        bench.make_due(key)
    assert [row.key for row, _ in insight.page(state="retrying").rows] == ["both", "expired", "failed"]
    assert [row.key for row in collection(store).list(state="retrying")] == ["both", "expired", "failed"]


@on_our_tables
def test_a_page_ends_where_too_many_rows_were_passed_over(
    bench: Bench, store: ScheduleStore, insight: ScheduleInsight, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("psched.insight.pages.LOOKED_AT", 3)
    for n in range(5):
        bench.add(store, f"key{n}", due=LONG_AGO + n)
    first = insight.page(state="broken", limit=2)
    assert (first.rows, first.after) == ([], (LONG_AGO + 2, "key2"))
    second = insight.page(state="broken", limit=2, after=first.after)
    assert (second.rows, second.after) == ([], None)


def test_one_schedule_comes_with_its_next_runs(bench: Bench, store: ScheduleStore, insight: ScheduleInsight) -> None:
    begin = FAR_OFF // 3600 * 3600
    bench.add(store, "hourly", rule=Rule("0 * * * *", "UTC", 30), next_time=begin, due=begin + 30)
    found = insight.details("hourly")
    assert found.row is not None and found.state is not None
    assert found.state.word == "waiting"
    assert [run.time for run in found.next_runs[:3]] == [begin + 30, begin + 3630, begin + 7230]
    assert found.history == []
    assert [reason.word for reason in found.waits][:1] == ["not due"]


@on_our_tables
def test_one_schedule_comes_with_history_and_versions(
    bench: Bench, store: ScheduleStore, insight: ScheduleInsight
) -> None:
    bench.add(store, "key")
    for time in (LONG_AGO + 3600, FAR_OFF):
        store.advance(bench.take(store, "key"), time, time, soon())
    collection(store)["key"].modify(cron="5 * * * *")
    found = insight.details("key")
    assert [entry.scheduled_time for entry in found.history] == [LONG_AGO, LONG_AGO + 3600]
    assert [change.action for change in found.versions] == ["add", "modify"]
    store.delete("key")
    gone = insight.details("key")
    assert (gone.row, gone.state, gone.next_runs) == (None, None, ())
    assert [change.action for change in gone.versions] == ["add", "modify", "delete"]
    assert len(gone.history) == 2


@on_our_tables
def test_missed_occurrences_of_a_range_are_found(bench: Bench, store: ScheduleStore, insight: ScheduleInsight) -> None:
    begun = store.now()
    for key, entry in (("good", Entry()), ("late", Entry("skipped", "max_lateness")), ("failed", Entry("failed"))):
        bench.add(store, key)
        store.advance(bench.take(store, key), FAR_OFF, FAR_OFF, soon(), entry=entry)
    assert [row.key for row in insight.troubles(begun - 60, begun + 60)] == ["late", "failed"]
    assert [row.key for row in insight.troubles(last=1)] == ["failed"]
    assert insight.troubles(begun - 120, begun - 60) == []


@on_our_tables
def test_runs_that_were_late_or_missed_in_a_range_are_found(
    bench: Bench, store: ScheduleStore, insight: ScheduleInsight
) -> None:
    now = int(store.now())
    runs = {
        "in time": (now - 90, 0.0, Entry(started=now - 60)),
        "late": (now - 91, 0.0, Entry(started=now - 30.5)),
        "delayed": (now - 600, 550.0, Entry(started=now - 45)),
        "before its time": (now + 600, -700.0, Entry(started=now - 20)),
        "missed": (now - 90, 0.0, Entry("skipped", "max_lateness")),
        "paused": (now - 90, 0.0, Entry("skipped", "paused")),
        "enqueued": (now - 200, 0.0, Entry("enqueued", "task-1", now - 100)),
    }
    for key, (time, delay, entry) in runs.items():
        bench.add(store, key, rule=Rule("* * * * *", "UTC", delay), next_time=time, due=LONG_AGO)
        store.advance(bench.take(store, key), FAR_OFF, FAR_OFF, soon(), entry=entry)
    expected = ["late", "before its time", "missed", "enqueued"]
    assert [row.key for row in insight.history(late=60, since=now - 60, until=now + 60)] == expected
    assert [row.key for row in insight.history(late=60)] == expected
    assert [row.key for row in insight.history(late=60.4)] == expected
    assert [row.key for row in insight.history(late=60.6)] == ["before its time", "missed", "enqueued"]
    assert [row.key for row in insight.history(late=90, last=1)] == ["enqueued"]
    assert [row.key for row in insight.history("late", late=10)] == ["late"]
    assert list(insight.history(late=60, since=now - 120, until=now - 60)) == []


@on_our_tables
def test_why_a_schedule_waits(bench: Bench, store: ScheduleStore, insight: ScheduleInsight) -> None:
    def words(key: str) -> list[str]:
        return [reason.word for reason in insight.details(key).waits]

    bench.add(store, "due")
    bench.add(store, "later", due=FAR_OFF)
    nodes = store.nodes
    announce(nodes, "host/1", "schedules", TypeFilter(("other",)))
    assert words("due") == ["no node"]
    assert words("later") == ["not due", "no node"]
    announce(nodes, "host/1", "schedules", TypeFilter(("type1",)))
    assert words("due") == ["busy"]
    assert [node.name for node in insight.nodes() or ()] == ["host/1"]
    collection(store)["due"].pause()
    assert words("due") == ["paused"]
    collection(store)["later"].run_now()
    bench.take(store, "later")
    assert words("later") == []
    nodes.withdraw("host/1")
    assert [reason.text for reason in insight.details("due").waits if reason.word == "no node"] == [
        "no node is running; start one: psched run, or pschedd start"
    ]


def test_overdue_are_those_that_no_worker_takes(bench: Bench, store: ScheduleStore, insight: ScheduleInsight) -> None:
    bench.add(store, "late")
    bench.add(store, "later", due=FAR_OFF)
    assert [row.key for row in insight.overdue()] == ["late"]


def test_a_list_of_overdue_schedules_reads_none_that_are_only_due(
    bench: Bench, store: ScheduleStore, insight: ScheduleInsight
) -> None:
    now = int(store.now())
    for n in range(3):
        bench.add(store, f"due{n}", due=now - 9)
    bench.add(store, "late")
    assert [row.key for row, _ in insight.page(state="overdue").rows] == ["late"]
    if store.knows_holders:
        assert [row.key for row in collection(store).candidates(ScheduleFilter(), "overdue", now)] == ["late"]


def test_the_forecast_adds_up_the_rules(bench: Bench, store: ScheduleStore, insight: ScheduleInsight) -> None:
    begin = int(store.now()) // 3600 * 3600 + 3600
    for n in range(3):
        bench.add(store, f"minutely{n}", rule=Rule("* * * * *", "UTC"), due=FAR_OFF)
    bench.add(store, "half past", rule=Rule("30 * * * *", "UTC"), due=FAR_OFF, type="type2")
    bench.add(store, "delayed", rule=Rule("0 * * * *", "UTC", 3600), due=FAR_OFF, type="type2")
    found = insight.forecast(24)
    assert [hour.time for hour in found.hours] == [begin + 3600 * n for n in range(24)]
    assert {hour.starts for hour in found.hours} == {182}
    assert found.schedules == 5
    assert {hour.busy for hour in found.hours} == {None}
    assert found.unmeasured == ([] if bench.compat else ["type1", "type2"])


def test_a_simulation_takes_handler_times_from_the_ledger(
    bench: Bench, store: ScheduleStore, insight: ScheduleInsight
) -> None:
    begin = int(store.now()) // 3600 * 3600 + 7200
    bench.add(store, "ran")
    claim = bench.take(store, "ran")
    store.advance(claim, begin, begin, soon(), entry=Entry(started=store.now() - 90))
    bench.add(store, "new", due=begin)
    if bench.compat:
        with pytest.raises(ValueError, match="no ledger"):
            insight.simulate(begin, begin + 7200, workers=1)
    found = insight.simulate(begin, begin + 7200, workers=1, handler_time=90 if bench.compat else None)
    assert (found.schedules, found.runs, found.late) == (2, 4, 2)
    assert found.lateness.worst == pytest.approx(90, rel=0.1)
    with pytest.raises(ValueError, match="expected at most 3"):
        insight.simulate(begin, begin + 7200, workers=1, handler_time=1, most=3)


@on_our_tables
def test_the_forecast_leaves_out_paused_schedules_and_measures_runs(
    bench: Bench, store: ScheduleStore, insight: ScheduleInsight
) -> None:
    for key in ("runs", "paused"):
        bench.add(store, key, rule=Rule("*/30 * * * *", "UTC"))
    claim = bench.take(store, "paused")
    store.release(claim.lease, soon())
    collection(store)["paused"].pause()
    claim = bench.take(store, "runs")
    store.advance(claim, FAR_OFF, FAR_OFF, soon(), entry=Entry(started=store.now() - 90))
    found = insight.forecast(3)
    assert (found.schedules, found.unmeasured) == (1, [])
    assert [hour.starts for hour in found.hours] == [2, 2, 2]
    assert all(hour.busy == pytest.approx(2 * 90 / 3600, rel=0.1) for hour in found.hours)
