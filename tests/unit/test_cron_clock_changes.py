"""The runs of schedules when clocks are put forward or back: exact times, zone by zone, in both dialects.

Times are written with their UTC offset, so each is exact. `runs`: all runs in the window.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

import pytest

from psched.cron import DIALECTS, next_time, occurrences, validate
from psched.errors import ConfigError


def unix(text: str) -> int:
    return int(datetime.fromisoformat(text).timestamp())


@dataclass(frozen=True)
class Window:
    """A range of time around a clock change."""

    zone: str
    start: str
    end: str

    def runs(self, cron: str, dialect: str) -> list[int]:
        found, moment = [], unix(self.start) - 1
        while (moment := next_time(cron, moment, self.zone, dialect)) < unix(self.end):
            found.append(moment)
        return found


NEW_YORK_SPRING = Window("America/New_York", "2026-03-08T01:00-05:00", "2026-03-08T04:01-04:00")
NEW_YORK_AUTUMN = Window("America/New_York", "2026-11-01T00:30-04:00", "2026-11-01T02:01-05:00")
LORD_HOWE_AUTUMN = Window("Australia/Lord_Howe", "2026-04-05T01:00+11:00", "2026-04-05T02:31+10:30")
LORD_HOWE_SPRING = Window("Australia/Lord_Howe", "2026-10-04T01:00+10:30", "2026-10-04T03:01+11:00")
APIA = Window("Pacific/Apia", "2011-12-29T00:00-10:00", "2012-01-01T00:00+14:00")
DUBLIN_SPRING = Window("Europe/Dublin", "2026-03-29T00:00+00:00", "2026-03-29T03:00+01:00")
DUBLIN_AUTUMN = Window("Europe/Dublin", "2026-10-25T00:30+01:00", "2026-10-25T02:01+00:00")
RAMADAN = Window("Africa/Casablanca", "2025-02-23T01:30+01:00", "2025-02-23T03:31+00:00")
AFTER_RAMADAN = Window("Africa/Casablanca", "2025-04-06T01:00+00:00", "2025-04-06T04:01+01:00")
HAVANA_SPRING = Window("America/Havana", "2025-03-08T23:00-05:00", "2025-03-09T02:01-04:00")
HAVANA_AUTUMN = Window("America/Havana", "2025-11-01T23:30-04:00", "2025-11-02T01:01-05:00")
CASEY_SPRING = Window("Antarctica/Casey", "2018-10-07T03:00+08:00", "2018-10-07T08:01+11:00")
CASEY_AUTUMN = Window("Antarctica/Casey", "2018-03-11T03:00+11:00", "2018-03-11T04:31+08:00")
TROLL_SPRING = Window("Antarctica/Troll", "2026-03-29T00:00+00:00", "2026-03-29T04:00+02:00")
MONROVIA = Window("Africa/Monrovia", "1972-01-06T23:00-00:44:30", "1972-01-07T02:00+00:00")
KWAJALEIN_TWICE = Window("Pacific/Kwajalein", "1969-09-30T00:00+11:00", "1969-10-01T12:00-12:00")

SAME = None
"""The dialect perfectsched has the same runs as vixie."""

CHANGES: list[tuple[Window, str, list[str], list[str] | None]] = [
    # a fixed time in the gap runs at its end; Ruby skips it
    (NEW_YORK_SPRING, "30 2 * * *", ["2026-03-08T03:00-04:00"], []),
    (NEW_YORK_SPRING, "0 30 2 * * *", ["2026-03-08T03:00-04:00"], []),
    (NEW_YORK_SPRING, "@daily", [], SAME),
    # several of them run once, also together with an ordinary run at that instant
    (NEW_YORK_SPRING, "0,30 2 * * *", ["2026-03-08T03:00-04:00"], []),
    (NEW_YORK_SPRING, "* 30 2 * * *", ["2026-03-08T03:00-04:00"], []),
    (
        NEW_YORK_SPRING,
        "30 1-3 * * *",
        ["2026-03-08T01:30-05:00", "2026-03-08T03:00-04:00", "2026-03-08T03:30-04:00"],
        ["2026-03-08T01:30-05:00", "2026-03-08T03:30-04:00"],
    ),
    (NEW_YORK_SPRING, "0 2,3 * * *", ["2026-03-08T03:00-04:00"], SAME),
    # wildcards follow real time
    (NEW_YORK_SPRING, "*/30 2 * * *", [], SAME),
    (NEW_YORK_SPRING, "*/5 2 * * *", [], SAME),
    (NEW_YORK_SPRING, "0 */2 * * *", ["2026-03-08T04:00-04:00"], SAME),
    (
        NEW_YORK_SPRING,
        "@hourly",
        ["2026-03-08T01:00-05:00", "2026-03-08T03:00-04:00", "2026-03-08T04:00-04:00"],
        SAME,
    ),
    # a fixed time that comes twice runs the first time; Ruby runs both
    (NEW_YORK_AUTUMN, "30 1 * * *", ["2026-11-01T01:30-04:00"], ["2026-11-01T01:30-04:00", "2026-11-01T01:30-05:00"]),
    (
        NEW_YORK_AUTUMN,
        "0 0-2 * * *",
        ["2026-11-01T01:00-04:00", "2026-11-01T02:00-05:00"],
        ["2026-11-01T01:00-04:00", "2026-11-01T01:00-05:00", "2026-11-01T02:00-05:00"],
    ),
    (NEW_YORK_AUTUMN, "*/30 1 * * *", [f"2026-11-01T01:{m}-0{o}:00" for o in (4, 5) for m in ("00", "30")], SAME),
    (NEW_YORK_AUTUMN, "45 * * * *", [f"2026-11-01T{t}:00" for t in ("00:45-04", "01:45-04", "01:45-05")], SAME),
    (NEW_YORK_AUTUMN, "15 30 1 * * *", ["2026-11-01T01:30:15-04:00"], [f"2026-11-01T01:30:15-0{o}:00" for o in (4, 5)]),
    # also when the next match but for the second pass is a year away
    (NEW_YORK_AUTUMN, "30 1 1 11 *", ["2026-11-01T01:30-04:00"], [f"2026-11-01T01:30-0{o}:00" for o in (4, 5)]),
    (NEW_YORK_AUTUMN, "*/30 1 1 11 *", [f"2026-11-01T01:{m}-0{o}:00" for o in (4, 5) for m in ("00", "30")], SAME),
    # half an hour
    (LORD_HOWE_AUTUMN, "45 1 * * *", ["2026-04-05T01:45+11:00"], ["2026-04-05T01:45+11:00", "2026-04-05T01:45+10:30"]),
    (LORD_HOWE_AUTUMN, "15 1 * * *", ["2026-04-05T01:15+11:00"], SAME),
    (LORD_HOWE_AUTUMN, "0 2 * * *", ["2026-04-05T02:00+10:30"], SAME),
    (
        LORD_HOWE_AUTUMN,
        "*/30 * * * *",
        [f"2026-04-05T{t}" for t in ("01:00+11:00", "01:30+11:00", "01:30+10:30", "02:00+10:30", "02:30+10:30")],
        SAME,
    ),
    (LORD_HOWE_SPRING, "15 2 * * *", ["2026-10-04T02:30+11:00"], []),
    # of the hour that begins in the gap Ruby sees the rest only when it comes from the hour before, minute by minute
    (LORD_HOWE_SPRING, "45 2 * * *", ["2026-10-04T02:45+11:00"], []),
    (LORD_HOWE_SPRING, "45 0,2 * * *", ["2026-10-04T02:45+11:00"], []),
    (LORD_HOWE_SPRING, "45 1,2 * * *", ["2026-10-04T01:45+10:30", "2026-10-04T02:45+11:00"], SAME),
    (LORD_HOWE_SPRING, "45 * * * *", ["2026-10-04T01:45+10:30", "2026-10-04T02:45+11:00"], SAME),
    (LORD_HOWE_SPRING, "30 2,3 * * *", ["2026-10-04T02:30+11:00"], []),
    (LORD_HOWE_SPRING, "0 2,3 * * *", ["2026-10-04T02:30+11:00", "2026-10-04T03:00+11:00"], ["2026-10-04T03:00+11:00"]),
    (LORD_HOWE_SPRING, "0 2 * * *", ["2026-10-04T02:30+11:00"], []),
    (LORD_HOWE_SPRING, "0 * * * *", ["2026-10-04T01:00+10:30", "2026-10-04T03:00+11:00"], SAME),
    # a day that is not in the calendar
    (APIA, "0 12 * * *", ["2011-12-29T12:00-10:00", "2011-12-31T12:00+14:00"], SAME),
    (
        APIA,
        "0 */12 * * *",
        [f"2011-12-{t}:00" for t in ("29T00:00-10", "29T12:00-10", "31T00:00+14", "31T12:00+14")],
        SAME,
    ),
    (APIA, "0 12 30 12 *", [], SAME),
    # daylight saving the other way round: in Dublin winter time is the exception
    (DUBLIN_SPRING, "30 1 * * *", ["2026-03-29T02:00+01:00"], []),
    (DUBLIN_SPRING, "30 * * * *", ["2026-03-29T00:30+00:00", "2026-03-29T02:30+01:00"], SAME),
    (DUBLIN_AUTUMN, "30 1 * * *", ["2026-10-25T01:30+01:00"], ["2026-10-25T01:30+01:00", "2026-10-25T01:30+00:00"]),
    # Ramadan
    (RAMADAN, "30 2 * * *", ["2025-02-23T02:30+01:00"], ["2025-02-23T02:30+01:00", "2025-02-23T02:30+00:00"]),
    (RAMADAN, "30 * * * *", [f"2025-02-23T{t}:00" for t in ("01:30+01", "02:30+01", "02:30+00", "03:30+00")], SAME),
    (AFTER_RAMADAN, "30 2 * * *", ["2025-04-06T03:00+01:00"], []),
    (AFTER_RAMADAN, "*/30 2 * * *", [], SAME),
    # at midnight
    (HAVANA_SPRING, "0 0 * * *", ["2025-03-09T01:00-04:00"], []),
    (HAVANA_SPRING, "0 0 9 * *", ["2025-03-09T01:00-04:00"], []),
    (HAVANA_SPRING, "0 0 * * sun", ["2025-03-09T01:00-04:00"], []),
    (HAVANA_SPRING, "30 23 * * *", ["2025-03-08T23:30-05:00"], SAME),
    (HAVANA_AUTUMN, "0 0 * * *", ["2025-11-02T00:00-04:00"], ["2025-11-02T00:00-04:00", "2025-11-02T00:00-05:00"]),
    (HAVANA_AUTUMN, "0 * 2 * *", [f"2025-11-02T{t}:00" for t in ("00:00-04", "00:00-05", "01:00-05")], SAME),
    # three hours are a jump like a skipped day, two are not
    (CASEY_SPRING, "30 5 * * *", [], SAME),
    (CASEY_SPRING, "0 5,7 * * *", ["2018-10-07T07:00+11:00"], SAME),
    (CASEY_AUTUMN, "30 3 * * *", ["2018-03-11T03:30+11:00"], ["2018-03-11T03:30+11:00", "2018-03-11T03:30+08:00"]),
    (TROLL_SPRING, "0 1,2 * * *", ["2026-03-29T03:00+02:00"], []),
    # an offset with seconds
    (MONROVIA, "0 0 * * *", ["1972-01-07T00:44:30+00:00"], []),
    (MONROVIA, "30 * * * *", ["1972-01-06T23:30-00:44:30", "1972-01-07T01:30+00:00"], SAME),
    # a day that comes twice, but for an hour
    (KWAJALEIN_TWICE, "0 12 * * *", ["1969-09-30T12:00+11:00"], ["1969-09-30T12:00+11:00", "1969-09-30T12:00-12:00"]),
]


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize(("window", "cron", "vixie", "perfectsched"), CHANGES)
def test_a_schedule_at_a_clock_change_runs_at_these_instants(
    window: Window, cron: str, vixie: list[str], perfectsched: list[str] | None, dialect: str
) -> None:
    expected = vixie if dialect == "vixie" or perfectsched is None else perfectsched
    assert window.runs(cron, dialect) == [unix(text) for text in expected]


def test_within_the_second_pass_a_fixed_time_waits_for_the_next_day() -> None:
    second_pass = unix("2026-11-01T01:15-05:00")
    assert next_time("30 1 * * *", second_pass, "America/New_York") == unix("2026-11-02T01:30-05:00")
    assert next_time("30 1 * * *", second_pass, "America/New_York", "perfectsched") == unix("2026-11-01T01:30-05:00")


NEVER = [("30 2 * 3 0#2", "perfectsched"), ("*/30 2 * 3 0#2", "vixie"), ("*/30 2 * 3 0#2", "perfectsched")]


@pytest.mark.parametrize(("cron", "dialect"), NEVER)
def test_a_time_that_always_falls_into_a_gap_is_refused(cron: str, dialect: str) -> None:
    with pytest.raises(ConfigError, match="never runs in America/New_York: its only times are those skipped"):
        validate(cron, "America/New_York", dialect)
    validate(cron, "Europe/Berlin", dialect)


def test_a_fixed_time_that_always_falls_into_the_gap_runs_at_its_end() -> None:
    validate("30 2 * 3 0#2", "America/New_York")
    assert next_time("30 2 * 3 0#2", unix("2026-01-01T00:00+00:00"), "America/New_York") == 1772953200


NOTES = [
    ("30 2 * * *", "vixie", "2026-03-08T00:00-05:00", "America/New_York", ["runs late: 02:30 does not exist", ""]),
    ("0 2,3 * * *", "vixie", "2026-03-08T00:00-05:00", "America/New_York", ["runs late: 02:00 does not exist", ""]),
    (
        "30 2 * * *",
        "perfectsched",
        "2026-03-08T00:00-05:00",
        "America/New_York",
        ["skipped 2026-03-08 02:30: the clock jumps from 02:00 to 03:00", ""],
    ),
    (
        "*/20 * * * *",
        "vixie",
        "2026-03-08T01:40-05:00",
        "America/New_York",
        ["", "skipped 2026-03-08 02:00 and later: the clock jumps from 02:00 to 03:00", ""],
    ),
    ("30 1 * * *", "vixie", "2026-11-01T00:00-04:00", "America/New_York", ["runs once, though 01:30 comes twice", ""]),
    (
        "30 1 * * *",
        "perfectsched",
        "2026-11-01T00:00-04:00",
        "America/New_York",
        ["", "second pass of the repeated hour", ""],
    ),
    (
        "*/20 * * * *",
        "vixie",
        "2026-04-05T01:40+11:00",
        "Australia/Lord_Howe",
        ["", "second pass of the repeated 30 minutes", ""],
    ),
    (
        "0 12 * * *",
        "vixie",
        "2011-12-29T00:00-10:00",
        "Pacific/Apia",
        ["", "skipped 2011-12-30 12:00: the clock jumps from 00:00 to 2011-12-31 00:00", ""],
    ),
    ("30 2 * * *", "vixie", "2026-03-08T00:00+00:00", "UTC", ["", ""]),
]


@pytest.mark.parametrize(("cron", "dialect", "at", "zone", "notes"), NOTES)
def test_the_preview_notes_the_effect_of_a_clock_change(
    cron: str, dialect: str, at: str, zone: str, notes: list[str]
) -> None:
    found = occurrences(cron, unix(at), zone, len(notes), dialect)
    assert [occurrence.note for occurrence in found] == notes
    times = [next_time(cron, unix(at) - 1, zone, dialect)]
    while len(times) < len(notes):
        times.append(next_time(cron, times[-1], zone, dialect))
    assert [occurrence.time for occurrence in found] == times
