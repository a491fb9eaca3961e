"""The alarms of schedules on Redis: what is overdue, and who tells of it. Used in children and clients."""

from __future__ import annotations

import contextlib
import json
import math
from typing import Any

from psched.backends.common.rows import read_failure, read_overdue
from psched.backends.redis.ledger import Run
from psched.backends.redis.rows import milliseconds, stored
from psched.error_summary import shortened
from psched.model import Claim
from psched.store.alerts import Overdue, UnreportedFailure


class RedisOverdueAlerts:
    """`Alarms` on a table of schedules."""

    def __init__(self, run: Run) -> None:
        self._run = run

    def overdue(self, limit: int) -> list[Overdue]:
        """Return up to `limit` occurrences that are overdue, those longest overdue first."""
        return self._found(limit, 0)

    def unsent(self, limit: int) -> list[Overdue]:
        """Return up to `limit` overdue occurrences that nobody has told of, and nobody is telling of."""
        return self._found(limit, 1)

    def claim(self, overdue: Overdue, seconds: float) -> bool:
        """Take it upon oneself to tell of an occurrence; a claim without an answer runs out."""
        time = milliseconds(overdue.scheduled_time)
        return bool(self._run("tell", overdue.key, time, math.ceil(seconds * 1000)))

    def told(self, overdue: Overdue) -> None:
        """Enter that somebody was told of the occurrence."""
        self._run("told", overdue.key, milliseconds(overdue.scheduled_time))

    def _found(self, limit: int, unsent: int) -> list[Overdue]:
        found = self._run("overdue", limit, unsent)
        return [read_overdue(_regular(stored(key, row)) | {"now": int(now)}) for key, row, now in found]


def _regular(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row with its next regular occurrence, be there an extra run before that or not."""
    return row if row["regular_time"] is None else row | {"next_time": row["regular_time"]}


LONGEST_ERROR = 8000
"""Characters kept of an error."""


class RedisFailures:
    """`Failures` in two keys of a table."""

    def __init__(self, run: Run) -> None:
        self._run = run

    def claim(self, seconds: float) -> UnreportedFailure | None:
        """Return a failure that no other caller gets for so many seconds, or None."""
        while (found := self._run("claim_failure", math.ceil(seconds * 1000))) is not None:
            with contextlib.suppress(ValueError, TypeError, KeyError):  # what somebody has spoilt tells nothing
                return read_failure(json.loads(found))
        return None

    def told(self, failure: UnreportedFailure) -> None:
        """Forget a failure."""
        self._run("failure_told", _name(failure.key, failure.scheduled_time, failure.fence))


def failure_words(claim: Claim, error: str | None, holder: str) -> list[str]:
    """Return what a script is told of a failure: its name, and members of a JSON object."""
    row = claim.row
    known = {
        "key": row.key,
        "type": row.type,
        "scheduled_time": milliseconds(row.scheduled_time),
        "fence": claim.lease.fence,
        "attempts": row.attempts,
        "error": None if error is None else shortened(error, LONGEST_ERROR),
        "node": holder,
    }
    return [_name(row.key, row.scheduled_time, claim.lease.fence), json.dumps(known, separators=(",", ":"))[1:-1]]


NO_FAILURE = ["", ""]
"""What a script is told when nothing has failed for good."""


def _name(key: str, time: int, fence: int) -> str:
    return f"{milliseconds(time)}:{fence}:{key}"
