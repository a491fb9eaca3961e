"""A rule's occurrences are those of its expression that its options admit. A spread is even and never changes."""

from __future__ import annotations

from collections import Counter
from datetime import datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from psched import cron
from psched.calendar_check import checked_calendar
from psched.cron.zones import load_zone
from psched.errors import ConfigError
from psched.model import NO_OCCURRENCE, Rule, ScheduleRow, spread_offset
from psched.schedules import rule_occurrences
from psched.schedules.validation import checked_rule

BEGIN = 1_767_225_600
"""Unix seconds: 2026-01-01 00:00 UTC."""
EXPRESSIONS = ("*/7 * * * *", "30 2 * * *", "@every 11m phase 5s", "@at 2026-01-01T10:00")


@given(
    st.sampled_from(EXPRESSIONS),
    st.none() | st.integers(-20_000, 90_000),
    st.none() | st.integers(-20_000, 90_000),
    st.integers(-30_000, 30_000),
    st.integers(0, 90_000),
)
def test_next_last_and_count_agree(text: str, start: int | None, end: int | None, after: int, span: int) -> None:
    first, last = (None if bound is None else BEGIN + bound + 0.5 for bound in (start, end))
    rule = Rule(text, "Europe/Berlin", start=first, end=last)
    listed = [each.time for each in cron.occurrences(text, BEGIN - 30_000, "Europe/Berlin", 400)]
    left = [time for time in listed if rule_occurrences.why_not(rule, time) is None]
    assert left == [time for time in listed if (first is None or time >= first) and (last is None or time <= last)]
    after += BEGIN
    later = [time for time in left if time > after]
    known = [time for time in later if time <= after + span]
    if later or listed[-1] < BEGIN + 90_000:
        assert rule_occurrences.next_time(rule, after, "vixie") == (later[0] if later else NO_OCCURRENCE)
    assert rule_occurrences.last_time(rule, after, after + span, "vixie") == (known[-1] if known else None)
    assert rule_occurrences.count(rule, after, after + span, "vixie") == len(known)
    assert list(rule_occurrences.times(rule, after + 1, 3, "vixie"))[: len(later)] == later[:3]


@given(
    st.sampled_from([*EXPRESSIONS, "0 0,23 * * *", "@every 50m"]),
    st.sampled_from(
        [("America/Havana", 1_772_841_600), ("Asia/Beirut", 1_774_656_000), ("Pacific/Apia", 1_325_116_800)]
    ),
    st.sets(st.integers(-1, 5), max_size=5),
    st.sets(st.sampled_from(["sat", "sun", "tue"]), max_size=3),
    st.integers(-40_000, 250_000),
    st.integers(0, 250_000),
)
def test_days_of_calendars_are_left_out_when_clocks_change_at_midnight(
    text: str, place: tuple[str, int], days: set[int], weekdays: set[str], after: int, span: int
) -> None:
    zone, begin = place
    first = datetime.fromtimestamp(begin, load_zone(zone)).date()
    dates = [(first + timedelta(days=day)).isoformat() for day in days]
    calendars = checked_calendar("dates", 1, dates), checked_calendar("weekdays", 1, weekdays)
    rule = Rule(text, zone, exclude=calendars)
    listed = [each.time for each in cron.occurrences(text, begin - 40_000, zone, 900 if "*/7" in text else 400)]
    local = {time: datetime.fromtimestamp(time, load_zone(zone)) for time in listed}
    left = [
        time
        for time, there in local.items()
        if there.date().isoformat() not in dates and there.strftime("%a").lower() not in weekdays
    ]
    assert left == [time for time in listed if rule_occurrences.why_not(rule, time) is None]
    after += begin
    until = after + span
    if not text.startswith("@at"):
        until = min(until, listed[-1])
    known = [time for time in left if after < time <= until]
    assert rule_occurrences.count(rule, after, until, "vixie") == len(known)
    assert rule_occurrences.last_time(rule, after, until, "vixie") == (known[-1] if known else None)
    later = [time for time in left if time > after]
    if later or text.startswith("@at"):
        assert rule_occurrences.next_time(rule, after, "vixie") == (later[0] if later else NO_OCCURRENCE)


def test_a_rule_whose_days_are_all_excluded_has_no_occurrence() -> None:
    rule = Rule("0 3 * * sun", "Europe/Berlin", exclude=(checked_calendar("sundays", 1, ["sun"]),))
    assert rule_occurrences.next_time(rule, BEGIN, "vixie") == NO_OCCURRENCE
    assert rule_occurrences.count(rule, BEGIN, BEGIN + 10**8, "vixie") == 0
    assert rule_occurrences.last_time(rule, BEGIN, BEGIN + 10**8, "vixie") is None


def test_a_thousand_schedules_of_one_time_begin_evenly() -> None:
    rule = Rule("0 3 * * *", "UTC", 30, spread=600)
    rows = [
        ScheduleRow(f"report-{n}", "t", {}, "waiting", rule=rule, next_time=0, next_run_time=0) for n in range(1000)
    ]
    offsets = [row.run_time(BEGIN) - BEGIN - 30 for row in rows]
    assert all(0 <= offset < 600 for offset in offsets)
    of_five_seconds = Counter(int(offset // 5) for offset in offsets)
    assert max(of_five_seconds.values()) <= 3 * len(rows) / (600 / 5)
    assert len(of_five_seconds) > 110
    assert [row.delay for row in rows] == pytest.approx([30 + offset for offset in offsets])


@pytest.mark.parametrize(
    ("key", "spread", "milliseconds"),
    [("nightly-report", 600, 300_227), ("a", 0.001, 0), ("ключ", 86400, 25_929_726), ("\ud800", 60, 15_476)],
)
def test_the_offset_of_a_key_is_the_same_in_every_version(key: str, spread: float, milliseconds: int) -> None:
    assert spread_offset(key, spread) == milliseconds


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"start": BEGIN, "end": BEGIN - 1}, "end .* is before start"),
        ({"start": "tomorrow"}, "start must be unix seconds"),
        ({"end": float("nan")}, "end must be unix seconds"),
        ({"spread": -1}, "spread must be"),
        ({"spread": 8 * 86400}, r"spread must be seconds from 0 to 604800 \(7 days\)"),
        ({"spread": True}, "spread must be"),
    ],
)
def test_an_unusable_option_is_refused(options: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        checked_rule(Rule("* * * * *", "UTC", **options), "vixie")


def test_options_do_not_hide_a_mistake_in_the_expression() -> None:
    with pytest.raises(ConfigError, match="fields"):
        checked_rule(Rule("0 9 *", "UTC", start=BEGIN), "vixie")
