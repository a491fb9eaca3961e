"""Named calendars on every store: no occurrence is on their days, and the audit knows which days were excluded."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta

import pytest

from psched.errors import ConfigError, NotFoundError, ScheduleError
from psched.model import NO_OCCURRENCE, Calendar, LeaseTimes, NewSchedule
from psched.schedules.collection import Defaults, ScheduleCollection
from psched.store import ScheduleStore
from tests.stores.bench import Bench

DAY = 86400
FIRST = 1_600_041_600
"""Unix seconds: 2020-09-14 00:00 UTC, a Monday."""
DATES = ["2020-09-15", "2020-09-17"]


@pytest.fixture
def schedules(store: ScheduleStore) -> ScheduleCollection:
    return ScheduleCollection(store, LeaseTimes(300, 0, 300), Defaults("UTC"))


def run(schedules: ScheduleCollection) -> list[int]:
    """Finish all that is due. Return the numbers of days from the first day to each occurrence."""
    times = []
    while (task := schedules.poll()) is not None:
        times.append(task.scheduled_time)
        task.finish()
    return [(time - FIRST) // DAY for time in times]


def proved(schedules: ScheduleCollection, ran: int) -> bool:
    [verdict] = schedules.audit(0, int(schedules.store.now()), keys=["key"])
    return (verdict.violations, verdict.ran, verdict.pending) == ([], ran, 0)


def today(schedules: ScheduleCollection, days: int) -> date:
    return datetime.fromtimestamp(schedules.store.now(), UTC).date() + timedelta(days=days)


def test_a_calendar_is_kept_by_its_name(bench: Bench, schedules: ScheduleCollection) -> None:
    calendars = schedules.calendars
    assert calendars.list() == []
    assert calendars.set("holidays", ["sun", date(2020, 12, 25), "2020-09-15", "sat"]) == Calendar(
        "holidays", 1, ("2020-09-15", "2020-12-25"), ("sat", "sun")
    )
    assert calendars.set("holidays", ["2020-09-15", "2020-12-25", "SUN", "sat"]).version == 1
    assert calendars.set("holidays", []) == Calendar("holidays", 2)
    calendars.set("Ferien, ünïcode: 1:2", DATES)
    other = ScheduleCollection(bench.open(), LeaseTimes(300, 0), Defaults()).calendars
    assert [(each.name, each.version) for each in other.list()] == [("Ferien, ünïcode: 1:2", 1), ("holidays", 2)]
    assert other["Ferien, ünïcode: 1:2"].dates == tuple(DATES)
    other.delete("holidays")
    with pytest.raises(NotFoundError, match="no calendar 'holidays'"):
        calendars["holidays"]
    with pytest.raises(NotFoundError, match="no calendar 'holidays'"):
        calendars.delete("holidays")
    assert calendars.set("holidays", DATES).version == 4


def test_of_two_writers_of_a_version_the_second_looks_again(store: ScheduleStore) -> None:
    assert store.calendars is not None
    assert store.calendars.write("c", 0, "[1]")
    assert not store.calendars.write("c", 0, "[2]")
    assert store.calendars.write("c", 1, "[3]")
    assert not store.calendars.write("c", 1, "[4]")
    stored = store.calendars.get("c")
    assert stored is not None
    assert (stored.version, stored.content) == (2, "[3]")
    assert stored.changed == pytest.approx(store.now(), abs=60)
    assert store.calendars.get("d") is None


def test_a_schedule_runs_on_no_day_of_its_calendars(schedules: ScheduleCollection) -> None:
    schedules.calendars.set("holidays", DATES)
    schedules.calendars.set("weekends", ["sat", "sun"])
    end = FIRST + 8 * DAY
    schedules.add("key", "t", cron="@daily", next_time=FIRST, end=end, exclude=["holidays", "weekends"])
    assert run(schedules) == [0, 2, 4, 7, 8]
    row = schedules["key"].metadata()
    assert row.next_time == NO_OCCURRENCE
    assert [str(each) for each in row.rule.exclude] == ["holidays (version 1)", "weekends (version 1)"]
    assert proved(schedules, 5)
    schedules["key"].modify(exclude=["holidays"], end=FIRST + 12 * DAY, next_time=FIRST + 9 * DAY)
    assert run(schedules) == [9, 10, 11, 12]
    assert proved(schedules, 9)


def test_a_change_holds_for_occurrences_that_have_not_come_yet(schedules: ScheduleCollection) -> None:
    schedules.calendars.set("holidays", DATES)
    for key in ("key", "due", "ahead", "extra"):
        schedules.add(key, "t", cron="@daily", exclude=["holidays"])
    schedules.add("other", "t", cron="@daily")
    schedules["due"].modify(next_time=FIRST)
    far = int(schedules["key"].metadata().next_time) + 20 * DAY
    schedules["ahead"].modify(next_time=far)
    schedules["extra"].run_now()
    schedules.calendars.set("holidays", [*DATES, today(schedules, 1), today(schedules, 2)])
    rows = {row.key: row for row in schedules.list()}
    assert {key: [each.version for each in row.rule.exclude] for key, row in rows.items()} == {
        **{key: [2] for key in ("key", "due", "ahead", "extra")},
        "other": [],
    }
    free = rows["other"].next_time + 2 * DAY
    assert (rows["key"].next_time, rows["key"].next_run_time) == (free, free)
    assert rows["due"].next_time == FIRST
    assert rows["ahead"].next_time == far
    assert rows["extra"].regular_time == free
    schedules.calendars.set("holidays", DATES)
    assert schedules["key"].metadata().next_time == rows["other"].next_time
    assert [change.rule.exclude[0].version for change in schedules.ledger.changes("key")] == [1, 2, 3]
    assert proved(schedules, 0)


def test_the_past_is_audited_by_the_calendar_that_was_in_force(schedules: ScheduleCollection) -> None:
    schedules.calendars.set("holidays", DATES)
    schedules.add("key", "t", cron="@daily", next_time=FIRST, end=FIRST + 4 * DAY, exclude=["holidays"])
    assert run(schedules) == [0, 2, 4]
    schedules.calendars.set("holidays", ["2020-09-14", "2020-09-16"])
    assert proved(schedules, 3)
    schedules["key"].modify(end=FIRST + 5 * DAY, next_time=FIRST)
    assert run(schedules) == [1, 3, 4, 5]
    assert proved(schedules, 7)


def test_a_schedule_left_behind_follows_when_the_calendar_is_set_again(schedules: ScheduleCollection) -> None:
    schedules.calendars.set("holidays", DATES)
    schedules.add("key", "t", cron="@daily", exclude=["holidays"])
    stored = schedules.store.calendars
    assert stored is not None
    assert stored.write("holidays", 1, '["sun"]')
    assert schedules["key"].metadata().rule.exclude[0].version == 1
    schedules.calendars.set("holidays", ["sun"])
    assert schedules["key"].metadata().rule.exclude == (Calendar("holidays", 2, (), ("sun",)),)


def test_a_calendar_in_use_is_not_deleted(schedules: ScheduleCollection) -> None:
    schedules.calendars.set("holidays", DATES)
    schedules.add_many([NewSchedule(f"key{n}", "t", "@daily", exclude=["holidays"]) for n in range(7)])
    with pytest.raises(
        ScheduleError, match=r"schedules exclude the calendar 'holidays': 'key\d', .* and more; modify or delete"
    ):
        schedules.calendars.delete("holidays")
    for n in range(6):
        schedules[f"key{n}"].delete()
    schedules["key6"].modify(exclude=None)
    schedules.calendars.delete("holidays")
    assert schedules.calendars.list() == []


def test_an_unknown_calendar_is_refused(schedules: ScheduleCollection) -> None:
    schedules.calendars.set("holidays", DATES)
    schedules.add("key", "t", cron="@daily")
    for refused in (
        lambda: schedules.add("new", "t", cron="@daily", exclude=["holiday"]),
        lambda: schedules["key"].modify(exclude=["holidays", "holiday"]),
    ):
        with pytest.raises(ConfigError, match="no calendar 'holiday' .*did you mean 'holidays'"):
            refused()
    for value in ("holidays", 5, [5], [["holidays"]]):
        with pytest.raises(ValueError, match=r"exclude must be a list|name of a calendar"):
            schedules.add("new", "t", cron="@daily", exclude=value)  # type: ignore[arg-type]
    for days in ("2020-01-01", ["2020-02-30"], ["someday"], [5], [f"2{n:03}-01-01" for n in range(1001)]):
        with pytest.raises(ValueError, match=r"calendar"):
            schedules.calendars.set("bad", days)  # type: ignore[arg-type]
    assert not schedules["new"].exists()
    assert schedules["key"].metadata().rule.exclude == ()
