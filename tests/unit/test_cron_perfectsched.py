"""The dialect perfectsched has the same runs as the original's own algorithm, one after another."""

from __future__ import annotations

from itertools import product

import pytest

from psched.backends.rdb_compat.ruby_cron_check import ruby_problem
from psched.cron import next_time
from tests.unit.perfectsched_cron import EndlessError, original_next

DAY = 86400
CHANGES = {
    "America/New_York": (1772953200, 1793512800),
    "Australia/Lord_Howe": (1775314800, 1791041400),
    "Europe/Berlin": (1774746000, 1792890000),
    "Africa/Casablanca": (1740276000, 1743904800),
    "America/Havana": (1741496400, 1762059600),
    "Antarctica/Troll": (1774746000, 1792890000),
    "Asia/Tokyo": (1774746000,),
}
TIMES = [
    "0 0",
    "30 0",
    "15 1",
    "45 1",
    "0 2",
    "30 2",
    "45 2",
    "45 1,2",
    "45 0,2",
    "*/20 2,3",
    "*/15 *",
    "7/9 */2",
    "0 12",
]
DAYS = ["* *", "* 0", "* sat,sun", "* 0-7", "* */2", "1-31 0", "15,L *", "L *", "L 1", "*/2 *", "8,29,30 1", "31 *"]
CRONS = [f"{time} {day} * {weekday}" for time, (day, weekday) in product(TIMES, (both.split() for both in DAYS))]


@pytest.mark.in_suite_on("Africa/Casablanca", "America/Havana", "Australia/Lord_Howe", "Europe/Berlin")
@pytest.mark.parametrize("zone", CHANGES)
def test_each_run_is_followed_by_the_one_that_the_original_computes(zone: str) -> None:
    compared = 0
    for cron, change in product(CRONS, CHANGES[zone]):
        moment = next_time(cron, change - 9 * DAY, zone, "perfectsched")
        while moment < change + 2 * DAY:
            following = next_time(cron, moment, zone, "perfectsched")
            try:
                expected = original_next(cron, moment, zone)
            except EndlessError:
                assert ruby_problem(cron, zone) is not None, (cron, zone)
                break
            assert following == expected, (cron, moment, following - expected)
            compared += 1
            # Those far from the change are alike: from the day before it on each is compared.
            moment = (
                following if following > change - 2 * DAY else next_time(cron, change - 2 * DAY, zone, "perfectsched")
            )
    assert compared > 1000


DIFFERENT = [
    # Added during the day before: the original misses the first of two midnights.
    ("0 0 * * 0", 1762023600, "America/Havana", 3600),
    # Added within the half hour: the original is in it, and need not come from the hour before.
    ("45 2 * * *", 1791041400 + 60, "Australia/Lord_Howe", None),
]
"""An expression, a time that is not a run of it, a zone, and the seconds from psched's next run to the original's."""


@pytest.mark.parametrize(("cron", "after", "zone", "later"), DIFFERENT)
def test_from_times_between_runs_the_documented_differences_are_all(
    cron: str, after: int, zone: str, later: int | None
) -> None:
    difference = original_next(cron, after, zone) - next_time(cron, after, zone, "perfectsched")
    assert difference == later if later is not None else difference < 0
