"""Runs that have failed for good on Redis, until somebody was told of them. Used in children and clients."""

from __future__ import annotations

import contextlib
import json
import math

from psched.backends.rdb.failures import read_failure
from psched.backends.redis.fields import milliseconds
from psched.backends.redis.ledger import Run
from psched.error_summary import shortened
from psched.failure import Failure
from psched.model import Claim

LONGEST_ERROR = 8000
"""Characters kept of an error."""


class RedisFailures:
    """`Failures` in two keys of a table."""

    def __init__(self, run: Run) -> None:
        self._run = run

    def claim(self, seconds: float) -> Failure | None:
        """Return a failure that no other caller gets for so many seconds, or None."""
        while (found := self._run("claim_failure", math.ceil(seconds * 1000))) is not None:
            with contextlib.suppress(ValueError, TypeError, KeyError):  # what somebody has spoilt tells nothing
                return read_failure(json.loads(found))
        return None

    def told(self, failure: Failure) -> None:
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
