"""Overdue alerts and unreported failures on Redis."""

from __future__ import annotations

import contextlib
import json
import math
from typing import Any

from psched.backends.common.rows import LAST_ERROR_LENGTH, milliseconds, read_failure, read_overdue
from psched.backends.redis.ledger import Run
from psched.backends.redis.rows import stored
from psched.error_text import shortened
from psched.model import Claim
from psched.store.alerts import Overdue, UnreportedFailure


class RedisOverdueAlerts:
    def __init__(self, run: Run) -> None:
        self._run = run

    def overdue(self, limit: int) -> list[Overdue]:
        return self._found(limit, 0)

    def unreported(self, limit: int) -> list[Overdue]:
        return self._found(limit, 1)

    def claim(self, overdue: Overdue, seconds: float) -> bool:
        time = milliseconds(overdue.scheduled_time)
        return bool(self._run("claim_alert", overdue.key, time, math.ceil(seconds * 1000)))

    def mark_reported(self, overdue: Overdue) -> None:
        self._run("record_alert", overdue.key, milliseconds(overdue.scheduled_time))

    def _found(self, limit: int, unreported: int) -> list[Overdue]:
        found = self._run("overdue", limit, unreported)
        return [read_overdue(_regular(stored(key, row)) | {"now": int(now)}) for key, row, now in found]


def _regular(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row whose `next_time` is the next regular occurrence, also when an extra run comes first."""
    return row if row["regular_time"] is None else row | {"next_time": row["regular_time"]}


class RedisFailures:
    """`UnreportedFailures` in two keys of a table."""

    def __init__(self, run: Run) -> None:
        self._run = run

    def claim(self, seconds: float) -> UnreportedFailure | None:
        while (found := self._run("claim_failure", math.ceil(seconds * 1000))) is not None:
            with contextlib.suppress(ValueError, TypeError, KeyError):  # invalid JSON is skipped
                return read_failure(json.loads(found))
        return None

    def mark_reported(self, failure: UnreportedFailure) -> None:
        self._run("delete_failure", _name(failure.key, failure.scheduled_time, failure.fence))


def failure_words(claim: Claim, error: str | None, holder: str) -> list[str]:
    """Return a failure as scripts take it: its name, and the members of a JSON object."""
    row = claim.row
    known = {
        "key": row.key,
        "type": row.type,
        "scheduled_time": milliseconds(row.scheduled_time),
        "fence": claim.lease.fence,
        "attempts": row.attempts,
        "error": None if error is None else shortened(error, LAST_ERROR_LENGTH),
        "node": holder,
    }
    return [_name(row.key, row.scheduled_time, claim.lease.fence), json.dumps(known, separators=(",", ":"))[1:-1]]


NO_FAILURE = ["", ""]
"""`failure_words` of a run that has not failed for good."""


def _name(key: str, time: int, fence: int) -> str:
    return f"{milliseconds(time)}:{fence}:{key}"
