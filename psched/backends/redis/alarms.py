"""The alarms of schedules on Redis: what is overdue, and who tells of it. Used in children and clients."""

from __future__ import annotations

import math
from typing import Any

from psched.alarm import Overdue
from psched.backends.rdb.alarms import read_overdue
from psched.backends.redis.fields import milliseconds, stored
from psched.backends.redis.ledger import Run


class RedisAlarms:
    """`Alarms` on a table of schedules."""

    def __init__(self, run: Run) -> None:
        self._run = run

    def overdue(self, limit: int) -> list[Overdue]:
        """Return up to `limit` occurrences that are overdue, those longest overdue first."""
        return self._found(limit, 0)

    def untold(self, limit: int) -> list[Overdue]:
        """Return up to `limit` overdue occurrences that nobody has told of, and nobody is telling of."""
        return self._found(limit, 1)

    def claim(self, overdue: Overdue, seconds: float) -> bool:
        """Take it upon oneself to tell of an occurrence; a claim without an answer runs out."""
        time = milliseconds(overdue.scheduled_time)
        return bool(self._run("tell", overdue.key, time, math.ceil(seconds * 1000)))

    def told(self, overdue: Overdue) -> None:
        """Enter that somebody was told of the occurrence."""
        self._run("told", overdue.key, milliseconds(overdue.scheduled_time))

    def _found(self, limit: int, untold: int) -> list[Overdue]:
        found = self._run("overdue", limit, untold)
        return [read_overdue(_regular(stored(key, row)) | {"now": int(now)}) for key, row, now in found]


def _regular(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row with its next regular occurrence, be there an extra run before that or not."""
    return row if row["regular_time"] is None else row | {"next_time": row["regular_time"]}
