"""Pauses that follow one another before a worker acquires the schedule: only occurrences in a pause are skipped."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from psched.errors import ScheduleError
from psched.model import LeaseTimes
from psched.schedules.collection import Defaults, ScheduleCollection
from psched.schedules.pause_and_run_now import MOST_PAUSES
from psched.store import ScheduleStore
from psched.store.ledger import LedgerRow
from tests.stores.bench import eventually

Pause = tuple[float, float]


@pytest.fixture
def schedules(store: ScheduleStore) -> ScheduleCollection:
    return ScheduleCollection(store, LeaseTimes(300, 0, 300), Defaults("UTC"))


def second_passes(store: ScheduleStore) -> None:
    """Wait until the database's clock shows a later second."""
    before = int(store.now())
    eventually(lambda: int(store.now()) > before)


def pause(schedules: ScheduleCollection) -> float:
    """Pause the schedule. Return when the pause begins: not before it was requested, whatever the row says."""
    asked = schedules.store.now()
    schedules["key"].pause()
    begin = schedules["key"].metadata().paused_from
    assert begin is not None
    return max(begin, asked)


def resume(schedules: ScheduleCollection, begin: float) -> Pause:
    """Resume the schedule in a later second. Return the pause."""
    second_passes(schedules.store)
    schedules["key"].resume()
    end = schedules["key"].metadata().paused_until
    assert end is not None
    return begin, end


def pauses(schedules: ScheduleCollection, count: int = 3) -> list[Pause]:
    """Pause and resume the schedule `count` times. A second begins in each pause, and between two pauses."""
    found = []
    for _ in range(count):
        found.append(resume(schedules, pause(schedules)))
        second_passes(schedules.store)
    return found


def work(schedules: ScheduleCollection, until: float) -> list[int]:
    """Run what is due until an occurrence after `until` has run. Return the occurrences in order."""
    ran: list[int] = []

    def has_run() -> bool:
        while (task := schedules.poll()) is not None:
            ran.append(task.scheduled_time)
            task.finish()
            if task.scheduled_time > until:
                return True
        return False

    eventually(has_run)
    return ran


def outside(times: Sequence[int], found: Sequence[Pause]) -> list[int]:
    """Return the times that are in none of these pauses."""
    return [time for time in times if not any(begin <= time < end for begin, end in found)]


def judge(schedules: ScheduleCollection, found: Sequence[Pause], since: int, until: int) -> list[LedgerRow]:
    """Audit the schedule, and check that each skipped occurrence is in a pause. Return the entries of the others."""
    [verdict] = schedules.audit(since, until)
    assert verdict.violations == []
    rows = [row for row in schedules.history("key") if row.scheduled_time <= until]
    skipped = [row for row in rows if row.outcome == "skipped"]
    assert {row.detail for row in skipped} == {"paused"}
    for row in skipped:
        assert any(begin <= row.scheduled_time <= row.end < end for begin, end in found)
    return [row for row in rows if row.outcome != "skipped"]


@pytest.mark.parametrize("behind", [0, 3])
def test_what_came_between_two_pauses_runs(schedules: ScheduleCollection, store: ScheduleStore, behind: int) -> None:
    start = int(store.now()) + 1 - behind
    schedules.add("key", "t", cron="* * * * * *", next_time=start)
    found = pauses(schedules)
    ran = work(schedules, found[-1][1])
    assert ran == outside(range(start, ran[-1] + 1), found)
    judge(schedules, found, start, ran[-1])


def test_a_new_rule_between_two_pauses_leaves_them_apart(schedules: ScheduleCollection, store: ScheduleStore) -> None:
    start = int(store.now()) - 1
    schedules.add("key", "t", cron="* * * * * *", next_time=start, timezone="UTC")
    found = pauses(schedules, 2)
    schedules["key"].modify(cron="0-58,59 * * * * *", data={"n": 2})
    found += pauses(schedules, 1)
    ran = work(schedules, found[-1][1])
    assert ran == outside(range(start, ran[-1] + 1), found)
    judge(schedules, found, start, ran[-1])


def test_an_extra_run_waits_for_the_end_of_all_pauses_and_moves_none(
    schedules: ScheduleCollection, store: ScheduleStore
) -> None:
    start = int(store.now()) + 2
    schedules.add("key", "t", cron="* * * * * *", next_time=start)
    schedules["key"].run_now()
    extra = schedules["key"].metadata().next_time
    found = pauses(schedules)
    ran = work(schedules, found[-1][1])
    assert ran[0] == extra < start
    assert ran[1:] == outside(range(start, ran[-1] + 1), found)
    judge(schedules, found, extra, ran[-1])


def test_an_extra_run_in_a_pause_moves_no_pause(schedules: ScheduleCollection, store: ScheduleStore) -> None:
    start = int(store.now()) + 3
    schedules.add("key", "t", cron="* * * * * *", next_time=start)
    begin = pause(schedules)
    schedules["key"].run_now()
    extra = schedules.poll()
    assert extra is not None
    eventually(lambda: store.now() > start)
    found = [resume(schedules, begin)]
    second_passes(store)
    extra.finish()
    found += pauses(schedules, 2)
    ran = work(schedules, found[-1][1])
    assert ran == outside(range(start, ran[-1] + 1), found)
    judge(schedules, found, extra.scheduled_time, ran[-1])


@pytest.mark.parametrize("begun", [False, True])
def test_what_run_now_asked_for_runs_after_a_pause_that_comes_before_its_end(
    schedules: ScheduleCollection, store: ScheduleStore, begun: bool
) -> None:
    start = int(store.now()) + 1
    schedules.add("key", "t", cron="* * * * * *", next_time=start)
    begin = pause(schedules)
    eventually(lambda: store.now() > start)
    schedules["key"].run_now()
    task = schedules.poll() if begun else None
    found = [resume(schedules, begin)]
    begin = pause(schedules)
    if task is not None:
        task.retry(0, error="it broke")
    assert schedules.poll() is None
    found.append(resume(schedules, begin))
    ran = work(schedules, found[-1][1])
    assert ran == [start, *outside(range(start + 1, ran[-1] + 1), found)]
    assert judge(schedules, found, start, ran[-1])[0].detail == "run-now"


def test_a_schedule_is_not_paused_more_often_than_its_row_can_keep(
    schedules: ScheduleCollection, store: ScheduleStore
) -> None:
    schedules.add("key", "t", cron="* * * * * *", next_time=int(store.now()) + 1)
    seen = schedules["key"].metadata()
    begin = seen.next_time
    kept = tuple((begin + 2.0 * n, begin + 2.0 * n + 1) for n in range(MOST_PAUSES + 1))
    last = replace(seen, earlier_pauses=kept[:-1], paused_from=kept[-1][0], paused_until=kept[-1][1])
    assert store.modify(seen, last)
    before = schedules["key"].metadata()
    assert before.earlier_pauses == kept[:-1]
    with pytest.raises(ScheduleError, match="101 earlier pauses"):
        schedules["key"].pause()
    assert schedules["key"].metadata() == before
