"""Claims that are sent by a socket from one child to another arrive unchanged."""

from __future__ import annotations

import socket
from dataclasses import replace

import pytest

from psched.model import Calendar, Claim, Lease, Policy, Progress, Rule, ScheduleRow, TaskRow
from psched.process.dispatch_socket import Connection, decode_claims, encode_claims
from psched.retry_wait import Backoff

SCHEDULE = ScheduleRow(
    "daily",
    "report",
    {"list": [1, [2.5, None]], "text": "é"},
    "running",
    attempts=2,
    rule=Rule("0 3 * * *", "Asia/Tokyo", 30),
    next_time=1_700_000_000,
    next_run_time=1_700_000_030.5,
)
TASK = TaskRow("task", "mail", {"to": ["a", "b"]}, "running", 1.5, 2.5, headers={"trace": "00-1"}, result=[1])


@pytest.mark.parametrize(
    "row",
    [
        SCHEDULE,
        replace(
            SCHEDULE, rule=Rule("@every 5m", "UTC", exclude=(Calendar("xmas", 3, ("2026-12-25",), ("sat", "sun")),))
        ),
        replace(SCHEDULE, policy=Policy("latest", 60, 30.5, 3, "team", "text", ("a", "b"))),
        replace(SCHEDULE, policy=Policy(retry_wait=Backoff(1, 2, 60), overlap="skip", timeout=5.0)),
        replace(SCHEDULE, paused_from=5.0, paused_until=6.0, earlier_pauses=((1.0, 2.0), (3.0, 4.0))),
        replace(SCHEDULE, data={"big": 2**80, "surrogate": "\ud800"}),
        TASK,
        TASK._replace(progress=Progress(40, message="half")),
        TASK._replace(key="\ud800", data={"big": 2**80}, headers=TaskRow("", "", {}, "running", 1, 1).headers),
    ],
)
def test_a_claim_arrives_as_it_was_sent(row: ScheduleRow | TaskRow) -> None:
    claim = Claim(row, Lease(row.key, 1_700_000_000_123, 1.7e9, claim=7), 12.5, True)
    one, other = map(Connection, socket.socketpair())
    one.send(["run", "section", encode_claims([claim]), 3.5])
    [(_, _, encoded, _)] = other.receive()
    one.close()
    other.close()
    [arrived] = decode_claims(encoded)
    assert arrived == claim
    if isinstance(arrived.row, ScheduleRow):
        hash(arrived.row.rule), hash(arrived.row.policy)
