"""Reading leased rows of Redis: a script's short answer agrees with the row's hash."""

from __future__ import annotations

from itertools import product

from psched.backends.common.rows import CLAIMED_OF_SCHEDULE, read_task
from psched.backends.redis.rows import claimed_schedule, claimed_task, read_stored_schedule, stored

_VALUES: dict[str, list[bytes | None]] = {
    "fence": [b"3"],
    "due": [b"1700000015000", b"1700000015500"],
    "type": [b"t", b"", b"\xff", None],
    "data": [b'{"a": 1}', b"[1]", b"", b"\xff", None],
    "attempts": [b"1", b"7", b"many"],
    "last_error": [None, b"it fails", b"\xff"],
    "cron": [b"* * * * *", None],
    "timezone": [b"UTC", None],
    "delay_ms": [b"0", b"1500", b"-1", b"x"],
    "next_time": [b"1700000000000", b"1000000000000000000", None],
    "last_time": [None, b"1699999940000", b"x"],
    "extra": [None, b"1700000000000"],
    "paused_from": [None, b"1700000000000"],
    "earlier_pauses": [None, b"1700000000000-1700000000500 1700000001000-1700000002000", b"1-", b"\xff"],
    "extra_waits": [None, b"1", b"x"],
    "runs": [None, b"0", b"7", b"x"],
    "catch_up": [b"all", b"none", b"never", b"", None],
    "alert_after_ms": [None, b"500"],
    "options": [None, b'{"tags":["a"]}', b"{}", b"[1]", b"\xff"],
    "owner": [None, b"me", b"\xff"],
}


def test_a_schedule_is_the_same_leased_as_listed() -> None:
    plain = {name: some[0] for name, some in _VALUES.items()}
    for one, other in product(_VALUES, _VALUES):
        for first, second in product(_VALUES[one], _VALUES[other]):
            row = {**plain, one: first, other: second}
            words = [(name.encode(), value) for name, value in row.items() if value is not None]
            found = [word for pair in (*words, (b"status", b"running"), (b"node", b"me")) for word in pair]
            claim = claimed_schedule("me", 1_000, b"k", [row.get(name) for name in CLAIMED_OF_SCHEDULE[1:]])
            assert repr(claim.row) == repr(read_stored_schedule(stored("k", found))), row
            assert (claim.lease.key, claim.lease.fence) == ("k", 3)


_TASK_VALUES: dict[str, list[bytes | None]] = {
    "type": [b"t", b"", b"\xff", None],
    "data": [b'{"a": 1}', b"[1]", b"", b"\xff", None],
    "attempts": [b"1", b"many", None],
    "last_error": [None, b"it fails", b"\xff"],
    "cancel_requested": [b"0", b"1", None],
    "run_at": [b"1700000000000", b"1700000000500", b"1000000000000000000", b"x"],
    "created": [b"1700000000000", b"x", None],
    "user": [b"u", b"", b"\xff", None],
    "max_running": [None, b"1", b"0", b"x"],
    "priority": [b"0", b"-5", None],
    "max_attempts": [None, b"3", b"x"],
    "headers": [None, b'{"trace": "1"}', b"[1]", b"\xff"],
    "fence": [b"3"],
    "due": [b"1700000015000", b"1700000015500"],
    "claim": [b"4"],
    "nonce": [b"5", b"x", None],
    "taken_ahead": [b"0", b"2"],
}


def test_a_task_is_the_same_leased_as_listed() -> None:
    plain = {name: some[0] for name, some in _TASK_VALUES.items()}
    for one, other in product(_TASK_VALUES, _TASK_VALUES):
        for first, second in product(_TASK_VALUES[one], _TASK_VALUES[other]):
            row = {**plain, one: first, other: second}
            words = [(name.encode(), value) for name, value in row.items() if value is not None]
            found = [word for pair in (*words, (b"status", b"running"), (b"node", b"me")) for word in pair]
            claim = claimed_task("me", 1_000, b"k", list(row.values()))
            assert repr(claim.row) == repr(read_task(stored("k", found), 1_000)), row
            nonce = 5 if row["nonce"] == b"5" else 0
            assert (claim.lease.key, claim.lease.fence, claim.lease.claim, claim.lease.nonce) == ("k", 3, 4, nonce)
            assert claim.records_begin == (row["taken_ahead"] == b"2")
