"""The heartbeat rows by which the instances of a scheduler see each other.

A heartbeat row is a leased task of a type that no handler runs. The row's `created_at` is the start of the instance.
While the row's lease is valid, the instance is alive. A new instance reads the rows to decide which overdue occurrences
were due while no instance ran.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any, cast

from psched.error_messages import one_line
from psched.errors import NotFoundError
from psched.execution.periodic_thread import PeriodicThread
from psched.model import Lease, NewTask, TaskFilter, TaskRow
from psched.store import TaskStore

log = logging.getLogger(__name__)

INSTANCE = "psched.instance"
"""The task type of the instances' heartbeat rows. This name is reserved."""
LEASE = 8.0
"""Seconds of the lease that each heartbeat renews. `skip_missed` decides when an instance without a lease counts as
dead.
"""
INTERVAL = 2.0
"""Seconds between two heartbeats."""
_CLEANUP_INTERVAL = 300
"""After this many successful heartbeats in a row, an instance deletes the rows of other instances that died before the
first of these heartbeats.
"""


@dataclass(frozen=True, slots=True)
class Instance:
    """An instance, as its heartbeat row describes it.

    `names`: the bound names. `since`: when it started. `expires_at`: when the lease of its row ends. Both times are
    unix seconds by the database's clock.
    """

    key: str
    names: frozenset[str]
    since: float
    expires_at: float
    is_alive: bool


class InstanceRegistry:
    """Writes the heartbeats of this instance, and reads those of other instances.

    `thread`: renews this instance's row.
    """

    def __init__(
        self,
        queue: TaskStore,
        names: Collection[str],
        lease: float = LEASE,
        restore_tables: Callable[[], None] = lambda: None,
    ) -> None:
        """`restore_tables`: called if the database answers a heartbeat with an error, because tables may be missing."""
        self.key = f"instance:{secrets.token_hex(16)}"
        self.thread = PeriodicThread("psched instance heartbeat", self.heartbeat, INTERVAL, self.unregister)
        self._queue = queue
        self._restore_tables = restore_tables
        self._lease_time = lease
        self._data = {"names": sorted(names)}
        self._lease: Lease | None = None
        self._renewals = 0
        """How many heartbeats in a row have succeeded."""

    def register(self) -> float:
        """Create this instance's row.

        Return its creation time (unix seconds, database's clock). Raises the driver's errors.
        """
        self._queue.submit([NewTask(self.key, INSTANCE, self._data)])
        claim = self._queue.preempt(self.key, self._lease_time)
        self._lease = claim.lease
        return _instance(cast("TaskRow", claim.row), 0.0).since

    def heartbeat(self) -> bool:
        """Renew this instance's row, and return True. Raises the driver's errors."""
        try:
            self._renew()
        except Exception as error:
            self._renewals = 0
            if self._queue.is_unavailable(error):
                raise
            self._restore_tables()
            self._renew()
        return True

    def others(self) -> list[Instance]:
        """Return the other instances, including dead ones. Raises the driver's errors."""
        now = self._queue.now()
        rows = self._queue.list(TaskFilter(type=INSTANCE))
        return [_instance(row, now) for row in rows if row.key != self.key]

    def delete(self, keys: Collection[str]) -> None:
        for key in keys:
            try:
                self._queue.delete(key)
            except NotFoundError:
                log.debug("key=%s was removed by another client", key)

    def unregister(self) -> None:
        """Delete this instance's row. Never raises: if the delete fails, the lease of the row soon ends."""
        try:
            self.delete([self.key])
        except Exception as error:  # noqa: BLE001 – the instance is stopping
            log.info("deleting the heartbeat row of this instance failed: %s", one_line(error))

    def _renew(self) -> None:
        lease = None if self._lease is None else self._queue.extend([self._lease], self._lease_time)[0]
        if lease is None:
            self._renewals = 0
            self.register()
            return
        self._lease = lease
        self._renewals += 1
        if self._renewals % _CLEANUP_INTERVAL == 0:
            died_before = self._queue.now() - _CLEANUP_INTERVAL * INTERVAL
            self.delete([other.key for other in self.others() if other.expires_at < died_before])


def _instance(row: TaskRow, now: float) -> Instance:
    names: Any = row.data.get("names")
    bound = frozenset(map(str, names) if isinstance(names, list) else ())
    since, expires_at = (0.0 if time is None else time for time in (row.created_at, row.due))
    return Instance(row.key, bound, since, expires_at, row.status == "running" and expires_at > now)
