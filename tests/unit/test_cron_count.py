"""Matches are counted by arithmetic: the result equals the number of listed matches, also around clock changes."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from psched import cron
from psched.cron.occurrences import matches

EXPRESSIONS = [
    "* * * * * *",
    "*/7 * * * *",
    "30 2 * * *",
    "0 2,3 * * *",
    "0 1-3 * * *",
    "59,0 0,23 * * *",
    "0 0 L * *",
    "15,45 1-3 * * sun",
    "30 */30 * * * *",
    "0 0 13 * fri",
]
CHANGES = {
    "UTC": 1_300_000_000,
    "Europe/Berlin": 1_301_187_600,
    "America/New_York": 1_320_559_200,
    "Australia/Lord_Howe": 1_301_756_400,
    "America/Havana": 1_320_555_600,
    "Pacific/Apia": 1_325_239_200,
    "America/Sao_Paulo": 1_318_734_000,
}
"""One clock change of each zone, forward or back."""
_QUIET = 40 * 86400
"""Seconds from a clock change to a time when no other one is near."""


@given(
    st.sampled_from(EXPRESSIONS),
    st.sampled_from(sorted(CHANGES)),
    st.sampled_from(cron.DIALECTS),
    st.integers(-200_000, 90_000),
    st.integers(0, 250),
    st.integers(-1, 90_000),
)
@example("30 2 * * *", "Australia/Lord_Howe", "perfectsched", 0, 143, 0)  # up to after the hour cut short in spring
@example("15,45 1-3 * * sun", "Australia/Lord_Howe", "perfectsched", 0, 160, 0)  # the hour before is named too
def test_the_count_is_the_number_of_listed_matches(
    expression: str, zone: str, dialect: str, before: int, number: int, more: int
) -> None:
    for after in (CHANGES[zone] + before, CHANGES[zone] + before + _QUIET):
        times = [after]
        for _ in range(number + 1):
            times.append(cron.next_time(expression, times[-1], zone, dialect))
        until = min(times[-2] + more, times[-1] - 1)
        listed = [time for time in times if after < time <= until]
        assert cron.count(expression, after, until, zone, dialect) == len(listed)
        assert list(matches(expression, after, until, zone, dialect)) == listed


def test_both_ends_of_a_span_are_counted_as_they_are_listed() -> None:
    time = cron.next_time("30 2 * * *", CHANGES["Europe/Berlin"] - 3600, "Europe/Berlin")
    assert time == CHANGES["Europe/Berlin"], "it runs at the end of the gap"
    spans = [(time - 1, time), (time, time), (time, time + 86400), (time - 1, time - 1), (time, time - 5)]
    assert [cron.count("30 2 * * *", *span, "Europe/Berlin") for span in spans] == [1, 0, 1, 0, 0]


def test_a_hundred_years_of_seconds_are_counted_and_not_listed() -> None:
    begin, end = 946_684_800, 4_102_444_800
    assert cron.count("* * * * * *", begin, end, "UTC") == end - begin
    assert cron.count("* * * * * *", begin, end, "Europe/Berlin") == end - begin
    assert cron.count("0 0 29 2 *", begin, end, "UTC") == 25
