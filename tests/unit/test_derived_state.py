"""The state of a schedule's next run, and its lateness, from the schedule's row."""

from __future__ import annotations

from dataclasses import replace

import pytest

from psched.model import Rule, ScheduleRow
from psched.retry_wait import Backoff
from psched.schedules.derived_state import overdue_after, state_of
from psched.time_text import span

NOW = 1_600_000_000.0
ROW = ScheduleRow("key", "t", {}, "waiting", rule=Rule("0 * * * *", "UTC", 10), next_time=0, next_run_time=0)
ERROR = "ValueError: it broke"


def row(late: float, **fields: object) -> ScheduleRow:
    """Return a row whose occurrence is `late` seconds late. `fields`: other values; without them the row is waiting."""
    time = NOW - late - 10
    values = {"next_time": int(time), "next_run_time": time + 10} | fields
    return replace(ROW, **values)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("found", "word", "lateness", "is_overdue"),
    [
        (row(-5), "waiting", 0, False),
        (row(5), "due", 5, False),
        (row(61), "overdue", 61, True),
        (row(61, status="running", attempts=1, next_run_time=NOW + 9), "running", 61, False),
        (row(61, status="running", attempts=2, next_run_time=NOW + 9), "running", 61, True),
        (row(61, status="running", attempts=1, next_run_time=NOW - 1), "retrying", 61, True),
        (row(61, status="running", attempts=3, last_error=ERROR, next_run_time=NOW - 1), "failing", 61, True),
        (row(5, attempts=1, last_error=ERROR, next_run_time=NOW + 9), "failing", 5, False),
        (row(61, attempts=1, last_error=ERROR, next_run_time=NOW + 9), "failing", 61, True),
        (row(61, attempts=1, next_run_time=NOW + 9), "retrying", 61, True),
        (row(61, paused_from=NOW - 9), "paused", 0, False),
        (row(61, paused_from=NOW - 9, paused_until=NOW - 5), "overdue", 61, True),
        (row(61, paused_from=NOW - 9, status="running", attempts=1, next_run_time=NOW + 9), "running", 61, False),
        (row(61, next_run_time=NOW + 9), "waiting", 0, False),
        (row(61, next_run_time=NOW - 5), "due", 5, False),
        (row(61, problem="its cron is wrong"), "broken", 61, True),
        (row(61, status="leased", next_run_time=NOW + 9), "leased", 61, False),
        (row(61, status="leased", next_run_time=NOW - 9), "overdue", 61, True),
        (row(-5, regular_time=int(NOW) + 9, next_run_time=NOW - 5), "due", 5, False),
    ],
)
def test_the_state_of_a_row(found: ScheduleRow, word: str, lateness: float, is_overdue: bool) -> None:
    state = state_of(found, NOW, 60)
    assert (state.word, round(state.lateness), state.is_overdue) == (word, lateness, is_overdue)


@pytest.mark.parametrize(
    ("retry_wait", "expected"), [(5, 60), (30, 60), (300.0, 600), (Backoff(10, 2, 300), 600), (Backoff(1, 2, 4), 60)]
)
def test_an_occurrence_is_overdue_after_two_of_the_longest_waits(retry_wait: float | Backoff, expected: float) -> None:
    assert overdue_after(retry_wait) == expected


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.4, "0 s"),
        (59.9, "59 s"),
        (60, "1 min"),
        (61, "1 min 1 s"),
        (7200, "2 h"),
        (7260, "2 h 1 min"),
        (180_005, "2 d 2 h"),
    ],
)
def test_a_span_is_shown_in_its_two_largest_units(seconds: float, text: str) -> None:
    assert span(seconds) == text
