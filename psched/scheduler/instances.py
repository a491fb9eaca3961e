"""The instances of a scheduler, each with a row of its own while it lives. A thread of each; in the host's process.

The row is a task of a type that nobody runs, leased and renewed: when it was created says since when an instance lives,
its lease whether it still does. By it one that starts knows whether what is overdue came in a downtime.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

from psched.errors import NotFoundError
from psched.execution.periodic_thread import PeriodicThread
from psched.model import Lease, NewTask, TaskFilter, TaskRow
from psched.process.logs import one_line
from psched.scheduler.job_data import INSTANCE
from psched.store import TaskStore

log = logging.getLogger(__name__)

LEASE = 8.0
"""Seconds for which an instance counts as living after the last sign of it."""
INTERVAL = 2.0
"""Seconds between two signs."""
_SWEEP = 300
"""Signs in a row between two looks for those who gave none in all that time, and so are dead."""


@dataclass(frozen=True, slots=True)
class Instance:
    """What one instance's row says. `since`: when it came (unix seconds); `lives`: whether its lease holds."""

    key: str
    names: frozenset[str]
    since: float
    lives: bool


class InstanceRegistry:
    """The sign of this instance, and those of the others."""

    def __init__(
        self,
        queue: TaskStore,
        names: Collection[str],
        lease: float = LEASE,
        mend: Callable[[], None] = lambda: None,
    ) -> None:
        """`names`: what this instance has bound. `lease`: seconds for which a sign holds.

        `mend` is called when a sign is refused by a database that answers: its tables may be gone.
        """
        self.key = f"instance:{secrets.token_hex(16)}"
        self.ticker = PeriodicThread("presence", self.tick, INTERVAL, self.leave)
        self._queue = queue
        self._mend = mend
        self._lease_time = lease
        self._data = {"names": sorted(names)}
        self._lease: Lease | None = None
        self._steady = 0
        self._silent: set[str] = set()
        self._failing = False

    def announce(self) -> float:
        """Give the first sign, and return when that was by the database's clock. Raises the driver's errors."""
        self._queue.submit([NewTask(self.key, INSTANCE, self._data)])
        claim = self._queue.preempt(self.key, self._lease_time)
        self._lease = claim.lease
        row = claim.row
        assert isinstance(row, TaskRow)
        return _since(row)

    def tick(self) -> bool:
        """Give a sign; an error is logged once, until it works again."""
        try:
            self._renew_or_mend()
        except Exception as error:  # noqa: BLE001 – the next tick tries again, whatever a driver raises
            self._steady = 0
            if not self._failing:
                log.warning("recording that this instance is alive failed: %s; retrying", one_line(error))
            self._failing = True
        else:
            self._failing = False
        return True

    def signs(self) -> list[Instance]:
        """Return the others' signs. Raises the driver's errors."""
        now = self._queue.now()
        rows = self._queue.list(TaskFilter(type=INSTANCE))
        return [_sign(row, now) for row in rows if row.key != self.key]

    def sweep(self, dead: Collection[str]) -> None:
        """Remove the rows of dead instances. Raises the driver's errors."""
        for key in dead:
            try:
                self._queue.delete(key)
            except NotFoundError:
                log.debug("key=%s was removed by another client", key)

    def leave(self) -> None:
        """Take back the sign. Raises nothing: without it, others wait a moment for what gives no sign any more."""
        try:
            self.sweep([self.key])
        except Exception as error:  # noqa: BLE001 – the instance is on its way out
            log.info("removing the record of this instance failed: %s", one_line(error))

    def _renew_or_mend(self) -> None:
        try:
            self._renew()
        except Exception as error:
            if self._queue.is_unavailable(error):
                raise
            self._mend()
            self._renew()

    def _renew(self) -> None:
        lease = None if self._lease is None else self._queue.extend([self._lease], self._lease_time)[0]
        if lease is None:
            self._steady = 0
            self.announce()
            return
        self._lease = lease
        self._steady += 1
        if self._steady % _SWEEP == 0:
            self._remove_silent()

    def _remove_silent(self) -> None:
        """Remove those who were silent at the last look too: all the time since, this instance gave signs itself."""
        silent = {sign.key for sign in self.signs() if not sign.lives}
        self.sweep(silent & self._silent if self._steady > _SWEEP else ())
        self._silent = silent


def _sign(row: TaskRow, now: float) -> Instance:
    names: Any = row.data.get("names")
    lives = row.due is not None and row.status == "running" and row.due > now
    return Instance(row.key, frozenset(map(str, names) if isinstance(names, list) else ()), _since(row), lives)


def _since(row: TaskRow) -> float:
    return 0.0 if row.created_at is None else row.created_at
