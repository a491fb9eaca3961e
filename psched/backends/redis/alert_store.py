"""Alerts on Redis: finds overdue occurrences, and runs that failed for good and are not reported yet."""

from __future__ import annotations

import contextlib
import json
import math

from psched.backends.common.rows import LAST_ERROR_LENGTH, milliseconds, read_failure, read_overdue
from psched.backends.redis.ledger import Run
from psched.backends.redis.rows import stored
from psched.model import Claim
from psched.store.alert_store import Overdue, UnreportedFailure
from psched.stored_error_summary import shortened


class RedisOverdueAlerts:
    """Implements `OverdueAlerts` on the schedules of a table."""

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
        overdue = []
        for key, fields, now in self._run("overdue", limit, unreported):
            row = stored(key, fields)
            if row["regular_time"] is not None:  # an extra run precedes the regular occurrence
                row["next_time"] = row["regular_time"]
            overdue.append(read_overdue(row | {"now": int(now)}))
        return overdue


class RedisFailures:
    """Implements `UnreportedFailures` for tables of schedules and of tasks."""

    def __init__(self, run: Run) -> None:
        self._run = run

    def claim(self, seconds: float) -> UnreportedFailure | None:
        while (found := self._run("claim_failure", math.ceil(seconds * 1000))) is not None:
            with contextlib.suppress(ValueError, TypeError, KeyError):  # skip invalid JSON
                return read_failure(json.loads(found))
        return None

    def mark_reported(self, failure: UnreportedFailure) -> None:
        self._run("delete_failure", _name(failure.key, failure.scheduled_time, failure.fence))


def failure_arguments(claim: Claim, error: str | None, holder: str) -> list[str]:
    """Return the arguments of `keep_failure` in alerts.lua: the failure's name, and the members of a JSON object."""
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
"""The arguments of `keep_failure` for a run that did not fail for good."""


def _name(key: str, time: int, fence: int) -> str:
    return f"{milliseconds(time)}:{fence}:{key}"
