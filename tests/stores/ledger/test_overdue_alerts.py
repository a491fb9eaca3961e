"""Every node can see which occurrences are overdue, and one node reports each."""

from __future__ import annotations

from dataclasses import replace

import pytest

from psched.model import Policy, Rule
from psched.store import ScheduleStore
from psched.store.alert_store import OverdueAlerts
from tests.stores.bench import FAR_OFF, LONG_AGO, Bench, soon
from tests.stores.statements import watched
from tests.stores.test_plans import see_that_few_rows_were_read, stop_analysing

WATCHED = Policy(alert_after=60)


@pytest.fixture
def alerts(store: ScheduleStore) -> OverdueAlerts:
    assert store.alerts is not None
    return store.alerts


def keys(alerts: OverdueAlerts) -> list[str]:
    return [overdue.key for overdue in alerts.overdue(10)]


def test_what_is_not_finished_in_time_is_overdue(bench: Bench, store: ScheduleStore, alerts: OverdueAlerts) -> None:
    now = int(store.now())
    bench.add(store, "fresh", due=now - 30, policy=WATCHED)
    bench.add(store, "other", due=now - 3000)
    bench.add(store, "late", due=now - 100, policy=WATCHED, type="t", rule=Rule("* * * * *", "UTC", 10))
    [overdue] = alerts.overdue(10)
    assert (overdue.key, overdue.type, overdue.scheduled_time) == ("late", "t", now - 100)
    assert 90 <= overdue.seconds <= 100
    assert "never begun" in str(overdue)


def test_a_run_in_progress_is_overdue_until_it_is_finished(
    bench: Bench, store: ScheduleStore, alerts: OverdueAlerts
) -> None:
    bench.add(store, "key", policy=WATCHED)
    claim = bench.take(store, "key")
    [overdue] = alerts.overdue(10)
    assert (overdue.status, overdue.attempts, overdue.node) == ("running", 1, claim.row.node)
    following = int(store.now()) - 30
    store.advance(claim, following, following, soon())
    assert keys(alerts) == []
    bench.write("key", alert_at=0)
    assert keys(alerts) == ["key"]


def test_a_change_moves_the_time_of_the_alarm(bench: Bench, store: ScheduleStore, alerts: OverdueAlerts) -> None:
    bench.add(store, "key")
    for policy, paused_from, expected in ((WATCHED, None, ["key"]), (WATCHED, 1, []), (Policy(), None, [])):
        seen = store.get("key")
        assert seen is not None
        assert store.modify(seen, replace(seen, policy=policy, paused_from=paused_from))
        assert keys(alerts) == expected
    seen = store.get("key")
    assert seen is not None
    assert store.modify(seen, replace(seen, policy=WATCHED, next_time=FAR_OFF))
    assert keys(alerts) == []


def test_one_alone_tells_and_once_for_each_occurrence(
    bench: Bench, store: ScheduleStore, other: ScheduleStore, alerts: OverdueAlerts
) -> None:
    bench.add(store, "key", policy=WATCHED)
    assert other.alerts is not None
    [one], [two] = alerts.unreported(10), other.alerts.unreported(10)
    assert [alerts.claim(one, 100), other.alerts.claim(two, 100)] == [True, False]
    assert other.alerts.unreported(10) == []
    alerts.mark_reported(one)
    assert not other.alerts.claim(two, 100)
    assert other.alerts.unreported(10) == []
    assert keys(other.alerts) == ["key"]
    store.advance(bench.take(store, "key"), LONG_AGO + 3600, LONG_AGO + 3600, soon())
    [another] = other.alerts.unreported(10)
    assert another.scheduled_time == LONG_AGO + 3600


def test_who_dies_while_telling_is_replaced(
    bench: Bench, store: ScheduleStore, other: ScheduleStore, alerts: OverdueAlerts
) -> None:
    bench.add(store, "key", policy=WATCHED)
    [overdue] = alerts.unreported(10)
    assert alerts.claim(overdue, 0)
    assert other.alerts is not None
    assert other.alerts.claim(overdue, 100)


def test_an_occurrence_that_was_finished_meanwhile_is_not_told_of(
    bench: Bench, store: ScheduleStore, alerts: OverdueAlerts
) -> None:
    bench.add(store, "key", policy=WATCHED)
    [overdue] = alerts.unreported(10)
    store.advance(bench.take(store, "key"), FAR_OFF, FAR_OFF, soon())
    assert not alerts.claim(overdue, 100)


@pytest.mark.new_table
def test_looking_out_reads_no_more_than_what_is_overdue(
    bench: Bench, store: ScheduleStore, alerts: OverdueAlerts
) -> None:
    stop_analysing(bench)
    bench.fill(store, [f"key{n:05}" for n in range(5000)], lambda n: LONG_AGO + n)
    for key in ("key00100", "key04000"):
        seen = store.get(key)
        assert seen is not None
        assert store.modify(seen, replace(seen, policy=WATCHED))
    with watched(bench) as watch:
        assert keys(alerts) == ["key00100", "key04000"] or keys(alerts) == ["key04000", "key00100"]
        [first, _] = alerts.unreported(10)
        assert alerts.claim(first, 10)
        alerts.mark_reported(first)
    see_that_few_rows_were_read(watch)
