"""Properties of every cron expression: order, completeness, bounds, and the same runs as cron_oracle.py and cronsim."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterator
from datetime import datetime
from itertools import islice, pairwise

import pytest
from cronsim import CronSim
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from psched.cron import DIALECTS, check_timezone, first_time, next_time, occurrences, validate
from psched.cron.zones import load_zone, offset_at
from psched.errors import ConfigError
from tests.unit.cron_oracle import LONGEST_GAP, expected, window

pytestmark = pytest.mark.slow

EXAMPLES = 3 * settings().max_examples
"""The number of examples of each property. scripts/explore uses a hundred times as many."""

PERIOD = (-5_000_000_000, 8_000_000_000)
"""Unix seconds, from 1811 to 2223."""


def field(low: int, high: int) -> st.SearchStrategy[str]:
    """Draw a field: one term or a list of terms, in forms that every field accepts."""
    value = st.integers(low, high)
    span = st.tuples(value, value).map(sorted).map(lambda pair: f"{pair[0]}-{pair[1]}")
    step = st.sampled_from([1, 2, 3, 5, 7, 15, 30, 100])
    term = st.one_of(
        value.map(str), span, st.builds("{}/{}".format, st.one_of(st.just("*"), span, value), step), st.just("*")
    )
    return st.one_of(st.just("*"), value.map(str), st.lists(term, min_size=1, max_size=3).map(",".join))


WEEKDAY = st.one_of(
    field(0, 7),
    st.builds("{}L".format, st.integers(0, 7)),
    st.builds("{}#{}".format, st.integers(0, 7), st.integers(1, 5)),
    st.builds("{},{}#{}".format, st.integers(0, 7), st.integers(0, 7), st.integers(1, 5)),
)
DAY = st.one_of(field(1, 31), st.sampled_from(["L", "1,L"]))
FIVE = st.tuples(field(0, 59), field(0, 23), DAY, field(1, 12), WEEKDAY).map(" ".join)
SIX = st.tuples(field(0, 59), field(0, 59), field(0, 23), DAY, field(1, 12), WEEKDAY).map(" ".join)
CRON = st.one_of(FIVE, SIX)
ZONES = ["UTC", "Africa/Casablanca", "Africa/Monrovia", "America/Havana", "America/New_York", "Antarctica/Casey"]
ZONES += ["Antarctica/Troll", "Antarctica/Vostok", "Asia/Gaza", "Asia/Manila", "Australia/Lord_Howe", "Europe/Dublin"]
ZONES += ["Pacific/Apia", "Pacific/Kwajalein"]
ZONE = st.sampled_from(ZONES)
DIALECT = st.sampled_from(DIALECTS)
INSTANT = st.integers(*PERIOD)


def accepted(cron: str, zone: str, dialect: str) -> bool:
    try:
        validate(cron, zone, dialect)
    except ConfigError as error:
        assert "never runs" in str(error) or "at most" in str(error)
        return False
    return True


@given(CRON, ZONE, DIALECT, INSTANT)
@settings(max_examples=EXAMPLES)
def test_times_increase_and_none_is_left_out_whatever_the_start(cron: str, zone: str, dialect: str, start: int) -> None:
    assume(accepted(cron, zone, dialect))
    times = [first_time(cron, start, zone, dialect)]
    for _ in range(5):
        times.append(next_time(cron, times[-1], zone, dialect))
    assert start <= times[0]
    for earlier, later in pairwise(times):
        assert earlier < later
        for between in {earlier, (earlier + later) // 2, later - 1}:
            assert next_time(cron, between, zone, dialect) == later
            assert first_time(cron, between + 1, zone, dialect) == later
    assert [found.time for found in occurrences(cron, start, zone, 6, dialect)] == times


@given(CRON, ZONE, DIALECT, st.integers(-(10**12), 252_000_000_000))
@settings(max_examples=2 * EXAMPLES // 3)
def test_an_accepted_expression_has_a_next_time_within_the_years_1_to_9955(
    cron: str, zone: str, dialect: str, after: int
) -> None:
    assume(accepted(cron, zone, dialect))
    assert next_time(cron, after, zone, dialect) > after


@given(st.text(alphabet="0123456789*/-,#Ll HRW?@adeimnorsuy\n", max_size=40) | st.text(max_size=30), ZONE, DIALECT)
@settings(max_examples=5 * EXAMPLES // 3)
def test_any_text_that_is_not_accepted_is_a_config_error(text: str, zone: str, dialect: str) -> None:
    try:
        validate(text, zone, dialect)
    except ConfigError as error:
        assert "\n" not in str(error)
    else:
        assert next_time(text, 0, zone, dialect) > 0


@given(st.text(max_size=30))
@settings(max_examples=2 * EXAMPLES // 3)
def test_only_names_of_zones_are_accepted_as_zones(text: str) -> None:
    with pytest.raises(ConfigError):
        check_timezone("x" + text)


# -- an oracle that looks at every second


CLOCK_CHANGES = {
    "America/New_York": (1772953200, 1793512800),
    "Australia/Lord_Howe": (1775314800, 1791041400),
    "Pacific/Apia": (1325239200,),
    "Europe/Dublin": (1774746000, 1792890000),
    "Africa/Casablanca": (1740276000, 1743904800),
    "America/Havana": (1741496400, 1762059600),
    "Antarctica/Casey": (1520701200, 1538856000),
    "Antarctica/Troll": (1774746000, 1792890000),
    "Africa/Monrovia": (63593070,),
    "Antarctica/Vostok": (760035600, 783648000),
    "Pacific/Kwajalein": (-7988400, 745934400),
}
CHANGES = [(zone, change) for zone, changes in CLOCK_CHANGES.items() for change in changes]
CHANGE = st.sampled_from(CHANGES)


def actual(cron: str, zone: str, change: int, dialect: str) -> Iterator[int]:
    seen = window(zone, change)
    moment = seen.start - 1
    while (moment := next_time(cron, moment, zone, dialect)) < seen.start + len(seen.clock):
        yield moment


NEAR_DAY = st.sampled_from(["*", "*/2", "L", "1-31", "1", "7,8", "30"])
NEAR_WEEKDAY = st.sampled_from(["*", "0", "*/2", "1-5", "5L", "0#1", "0#2", "6,0#5", "5/2"])
NEAR = st.tuples(field(0, 59), field(0, 7) | field(0, 23), NEAR_DAY, st.just("*"), NEAR_WEEKDAY).map(" ".join)
NEAR_SECONDS = st.tuples(st.sampled_from(["0", "7/20", "*/30"]), NEAR).map(" ".join)


@given(NEAR | NEAR_SECONDS, CHANGE, DIALECT)
@settings(max_examples=EXAMPLES)
@example("0,30 2 * * *", ("America/New_York", 1772953200), "vixie")
def test_around_clock_changes_runs_are_those_of_an_oracle_that_looks_at_every_second(
    cron: str, change: tuple[str, int], dialect: str
) -> None:
    assume(accepted(cron, change[0], dialect))
    assert list(actual(cron, *change, dialect)) == expected(cron, *change, dialect)


# -- cronsim, an independent implementation of Debian's rules
#
# It is not asked about six fields, where it follows real time (here Debian's rules hold for these too), nor about
# `8-8/5`, which it reads as `8/5`. It is known to be wrong around some clock changes, see `misread_by_cronsim`.

EQUAL_RANGE_WITH_STEP = re.compile(r"\b(\d+)-\1/")
AGREED_CRON = FIVE.filter(lambda cron: not EQUAL_RANGE_WITH_STEP.search(cron))
AGREED_NEAR = NEAR.filter(lambda cron: not EQUAL_RANGE_WITH_STEP.search(cron))
DAY_LONG = 86_400


def simulate(cron: str, zone: str, after: int) -> Iterator[int]:
    """Yield the matches of cronsim. If several are in one gap, yield their common time once."""
    moment = after
    for found in CronSim(cron, datetime.fromtimestamp(after, load_zone(zone))):
        if int(found.timestamp()) > moment:
            moment = int(found.timestamp())
            yield moment


def misread_by_cronsim(zone: str, start: int, end: int) -> bool:
    """Return whether the clock changes between these times in a way that cronsim gets wrong.

    cronsim steps by whole hours of real time, and begins each day at its first midnight. So it errs if a clock changes
    by a part of an hour, or not on the hour, or if the change skips, repeats or touches midnight. It also runs times
    that a jump of 3 h or more has skipped, which Debian's cron does not run.
    """
    info = load_zone(zone)
    for day in range(start - DAY_LONG, end + 2 * DAY_LONG, DAY_LONG):
        before, after = offset_at(info, day), offset_at(info, day + DAY_LONG)
        if before == after:
            continue
        change = bisect_left(range(day, day + DAY_LONG), True, key=lambda instant: offset_at(info, instant) != before)
        low, high = sorted((day + change + before, day + change + after))
        whole_hours = (after - before) % 3600 == 0 and low % 3600 == 0
        if not whole_hours or after - before >= LONGEST_GAP or -(-low // DAY_LONG) * DAY_LONG <= high:
            return True
    return False


def assert_cronsim_agrees(cron: str, zone: str, after: int, count: int) -> None:
    assume(accepted(cron, zone, "vixie"))
    found = list(islice(simulate(cron, zone, after), count))
    own = [occurrence.time for occurrence in islice(occurrences(cron, after + 1, zone, len(found)), len(found))]
    assume(found == own or not misread_by_cronsim(zone, after, max([after, *found, *own])))
    assert own == found


@given(AGREED_CRON, ZONE, st.integers(946_684_800, 2_500_000_000))
@settings(max_examples=EXAMPLES)
@example("0 3 * * *", "Europe/Dublin", 1_774_700_000)
def test_cronsim_agrees(cron: str, zone: str, after: int) -> None:
    assert_cronsim_agrees(cron, zone, after, 3)


@given(AGREED_NEAR, CHANGE)
@settings(max_examples=EXAMPLES)
def test_cronsim_agrees_at_clock_changes(cron: str, change: tuple[str, int]) -> None:
    zone, instant = change
    assert_cronsim_agrees(cron, zone, instant - 3 * 3600, 8)


def test_cronsim_is_asked_about_ordinary_clock_changes() -> None:
    """The filter for what cronsim gets wrong still admits the clock changes of most zones."""
    asked = {zone for zone, change in CHANGES if not misread_by_cronsim(zone, change - 7200, change + 7200)}
    assert {"America/New_York", "Europe/Dublin", "Africa/Casablanca"} <= asked
    assert not asked & {"Australia/Lord_Howe", "America/Havana", "Pacific/Apia"}
