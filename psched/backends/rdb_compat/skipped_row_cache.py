"""Remembers due rows that this process cannot run, so that its next polls leave them to other workers."""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from typing import Any

from psched import fork_safety
from psched.clock import Clock, boottime
from psched.store import Accepts

log = logging.getLogger(__name__)

_REMEMBERED = 100_000
"""The maximum number of remembered rows. Rows beyond this number are read again at each poll."""
_FORGOTTEN = 60.0
"""Seconds after which a remembered row is read again, because its data or rule may have changed."""
_REPORTED = 10_000
"""The maximum number of keys whose problem is remembered, so that each problem is logged once. The oldest are
forgotten.
"""


class SkippedRowCache:
    """Remembers due rows that this process cannot run, by key and due time. Safe to use from several threads."""

    def __init__(self, clock: Clock = boottime) -> None:
        self._clock = clock
        self._rows: OrderedDict[Any, tuple[int, float]] = OrderedDict()
        self._accepts: Accepts | None = None
        self._reported: OrderedDict[Any, str] = OrderedDict()
        self.reset_after_fork()
        fork_safety.register_for_fork(self)

    def reset_after_fork(self) -> None:
        """Make a new lock. Called in a forked process, because a thread of the parent may hold the old lock."""
        self._lock = threading.Lock()

    def refresh(self, accepts: Accepts | None) -> bool:
        """Forget rows that were added long ago or with another `accepts`. Return whether any are left."""
        with self._lock:
            if accepts != self._accepts:
                self._rows.clear()
                self._accepts = accepts
            now = self._clock()
            while self._rows and next(iter(self._rows.values()))[1] <= now:
                self._rows.popitem(last=False)
            return bool(self._rows)

    def __len__(self) -> int:
        return len(self._rows)

    def has(self, key: Any, timeout: int) -> bool:
        """Return whether a row with this key and due time is remembered."""
        known = self._rows.get(key)
        return known is not None and known[0] == timeout

    def add(self, key: Any, timeout: int, problem: str | None) -> None:
        """Remember a row. `problem`: why it cannot be run; None if only its type is not accepted."""
        with self._lock:
            self._rows[key] = timeout, self._clock() + _FORGOTTEN
            self._rows.move_to_end(key)
            if len(self._rows) > _REMEMBERED:
                self._rows.popitem(last=False)
            if problem is None or self._reported.get(key) == problem:
                return
            self._reported[key] = problem
            if len(self._reported) > _REPORTED:
                self._reported.popitem(last=False)
        log.warning("key=%s psched cannot run this row: %s; it is left to Ruby workers", key, problem)
