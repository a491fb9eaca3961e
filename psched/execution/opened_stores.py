"""Opens the stores of the configured sections, and releases the leases of dead children."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass

from psched.acquisition.task_source import TaskSource
from psched.config import Section, Settings
from psched.process.dead_child import DeadChild
from psched.queue.queue import open_queue
from psched.schedules.collection import open_schedules
from psched.store import CONNECTIONS
from psched.store.alert_store import OverdueAlerts

log = logging.getLogger(__name__)

_SHORT_LEASE = 30.0
"""Seconds of a lease on a prefetched task. Soon after the run has started, the lease is renewed for `alive_time`. Until
then, the lease survives only an outage of the database that is shorter than this."""


@dataclass(frozen=True, slots=True)
class OpenSection:
    """One section with its source. `alerts` is None if the store does not support overdue alerts."""

    name: str
    section: Section
    source: TaskSource
    alerts: OverdueAlerts | None = None

    def give_back(self, dead: DeadChild, claims: Mapping[str, int] | None = None) -> None:
        """Release leases of a dead child in this section: all leases of the child's holder, or only those in `claims`.

        `claims`: for the key of each lease, its `Lease.claim`. Raises the driver's errors.
        """
        suspects = dead.suspects(self.name)
        if claims is not None and not claims:
            return
        count = self.source.give_back(dead.holder, suspects, dead.error, claims)
        if count:
            leases = "1 lease" if count == 1 else f"{count} leases"
            log.info("section=%s released %s of dead child %s", self.name, leases, dead.holder)


def open_sections(settings: Settings, holder: str, connections: int | None = None) -> list[OpenSection]:
    """Open the configured sections, without connecting yet.

    `connections`: how many idle connections each section keeps open. The default is one for each handler thread of a
    handler child.
    """
    opened, collection = [], None
    if connections is None:
        connections = 1 if settings.processor_type == "process" else min(settings.processors, CONNECTIONS)
    if settings.schedules is not None:
        collection = open_schedules(settings.schedules, holder, short_lease(settings, settings.schedules), connections)
        opened.append(OpenSection("schedules", settings.schedules, collection.source, collection.store.alerts))
    if settings.queue is not None:
        queue = open_queue(settings.queue, holder, short_lease(settings, settings.queue), connections)
        opened.append(OpenSection("queue", settings.queue, queue.source))
        if collection is not None:
            collection.submit_to(queue.store)
    return opened


def short_lease(settings: Settings, section: Section) -> float:
    """Return the seconds of a lease on a prefetched task.

    The lease is so long that a frozen child is killed before its leases end.
    """
    frozen = settings.child_heartbeat_limit + settings.child_kill_interval
    return min(section.alive_time, max(_SHORT_LEASE, frozen + 3.0))
