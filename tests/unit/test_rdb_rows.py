"""Two ways of reading leased rows of `rdb`, the short and the thorough one, give the same result for any content."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest

from psched.backends.common.rows import (
    CLAIMED_OF_SCHEDULE,
    CLAIMED_OF_TASK,
    RUNNING,
    claimed_schedule,
    claimed_task,
    read_schedule,
    read_task,
)

Values = dict[str, list[Any]]

_MOMENTS = [1_700_000_000_123, -1_500, 10**18]
_LEASED: Values = {
    "key": ["k", "a\0b", ""],
    "ready": [1_700_000_000_000],
    "fence": [3, "3"],
    "due": [1_700_000_015_000, 1_700_000_015_500],
    "claim": [5],
    "nonce": [6],
    "type": ["t", "", b"t", None],
    "data": ['{"a": 1}', '{"a": "' + "x" * 1000 + '"}', "[1]", '{"a": NaN}', "", b"{}", None],
    "attempts": [1, 7, "1"],
    "last_error": [None, "it fails", b"it fails"],
    "taken_ahead": [0, 1, 2, None],
}
_SCHEDULE: Values = {
    **_LEASED,
    "cron": ["* * * * *", None],
    "timezone": ["UTC", None],
    "delay_ms": [0, 1_500, -1_000, 10**20, "1"],
    "next_time": [1_700_000_000_000, *_MOMENTS, None],
    "last_time": [None, 1_699_999_940_000, *_MOMENTS, "x"],
    "extra": [None, 1_700_000_000_000],
    "regular_time": [None, *_MOMENTS],
    "regular_due": [None, *_MOMENTS],
    "paused_from": [None, *_MOMENTS],
    "paused_until": [None, *_MOMENTS],
    "earlier_pauses": [
        None,
        "1700000000000-1700000000500 1700000001000-1700000002000",
        "1-",
        "1-999999999999999",
        7,
        "",
    ],
    "extra_waits": [None, 1, "1"],
    "runs": [None, 0, 7, "x"],
    "failures": [None, 2, "2"],
    "previous_ended": [None, *_MOMENTS],
    "catch_up": ["all", "none", "never", None],
    "max_lateness_ms": [None, 500],
    "alert_after_ms": [None, 500],
    "max_attempts": [None, 3, "3"],
    "options": [
        None,
        '{"tags":["a","b"]}',
        '{"overlap":"skip","retry_wait":{"first":1}}',
        '{"overlap":"no"}',
        '{"tag":1}',
        '{"tags":1}',
        "[]",
        "{",
        b"{}",
        7,
    ],
    "owner": [None, "me", b"me"],
    "version": [1_700_000_000_000, "1", None],
    "size": [8, None],
}
_TASK: Values = {
    **_LEASED,
    "cancel_requested": [0, 1],
    "run_at": [1_700_000_000_000, *_MOMENTS, None],
    "created": [1_700_000_000_000, *_MOMENTS, None],
    "user_name": ["", "me", None],
    "max_running": [None, 2, "2", 0],
    "priority": [0, 5, None],
    "max_attempts": [None, 2, "2"],
    "headers": [None, '{"trace": "1"}', "[1]", b"{}"],
    "size": [8, None],
}


def _rows(values: Values) -> list[dict[str, Any]]:
    """Return rows that differ from an ordinary row in at most two columns."""
    plain = {name: some[0] for name, some in values.items()}
    pairs = product(values, values)
    return [{**plain, a: x, b: y} for a, b in pairs for x, y in product(values[a], values[b])]


@pytest.mark.parametrize(
    ("columns", "values", "claimed", "read"),
    [
        (CLAIMED_OF_SCHEDULE, _SCHEDULE, claimed_schedule, read_schedule),
        (CLAIMED_OF_TASK, _TASK, claimed_task, read_task),
    ],
    ids=["schedule", "task"],
)
def test_a_row_is_the_same_leased_as_listed(columns: tuple[str, ...], values: Values, claimed: Any, read: Any) -> None:
    for row in _rows(values):
        others = {"status": RUNNING, "node": "me", "finished_at": None, "progress": None, "result": None}
        listed = read({**row, **others}, 1_000)
        assert repr(claimed("me", 1_000, tuple(row[name] for name in columns)).row) == repr(listed), row
