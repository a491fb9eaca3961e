"""The last match in a range equals the last of the listed matches."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from psched import cron

EXPRESSIONS = ["* * * * * *", "*/7 * * * *", "30 2 * * *", "0 0 L * *", "15,45 1-3 * * sun", "0 0 29 2 *"]
ZONES = ["UTC", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe"]


@given(
    st.sampled_from(EXPRESSIONS),
    st.sampled_from(ZONES),
    st.sampled_from(cron.DIALECTS),
    st.integers(1_570_000_000, 1_590_000_000),
    st.integers(0, 300),
    st.integers(0, 100),
)
def test_the_last_match_is_where_counting_ends(
    expression: str, zone: str, dialect: str, after: int, count: int, more: int
) -> None:
    times = [after]
    for _ in range(count + 1):
        times.append(cron.next_time(expression, times[-1], zone, dialect))
    at = min(times[-2] + more, times[-1] - 1) if count else after
    expected = times[-2] if count else None
    assert cron.last_time(expression, after, max(at, times[-2]), zone, dialect) == expected


def test_a_long_span_costs_little() -> None:
    assert cron.last_time("* * * * 1 *", 0, 1_600_000_000, "UTC") == 1_580_515_199
    assert cron.last_time("0 0 1 1 *", 1_577_836_800, 1_577_836_801, "UTC") is None
