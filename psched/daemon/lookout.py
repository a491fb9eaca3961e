"""Looks out for occurrences that are overdue, whoever was to run them, and sees that somebody is told. In children.

One child of each node looks (that in the first slot), by one indexed statement every `alert_interval` seconds, in a
thread of its own. Each node logs what it finds; one of all nodes, which has claimed it, runs the `on_late` hook.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence

from psched.alarm import Alarms, Overdue
from psched.daemon.hook import STOPPING, Hook
from psched.daemon.wording import one_line
from psched.daemon.worksites import FIRST_SLOT, Worksite

log = logging.getLogger(__name__)

_AT_ONCE = 100
"""How many overdue occurrences are looked at each time, those longest overdue first."""
_CLAIM = 60.0
"""Seconds for which a node may be telling; then another one does, and so a hook that failed is run again."""


class Lookout(threading.Thread):
    """Looks every `interval` seconds until closed. Errors are logged, and end nothing."""

    def __init__(self, alarms: Alarms, hook: tuple[str, ...], interval: float) -> None:
        """`hook`: a command with its arguments, or one URL; empty: the log says enough."""
        super().__init__(name="lookout", daemon=True)
        self._alarms = alarms
        self._interval = interval
        self._closing = threading.Event()
        self._hook = Hook("on_late", hook, self._closing)
        self._logged: set[tuple[str, int]] = set()
        self._failing = False

    def run(self) -> None:
        """Look until closed."""
        while not self._closing.wait(self._interval):
            try:
                self.look()
                self._failing = False
            except Exception as error:  # noqa: BLE001 – whatever a driver raises, the next look may be answered
                if not self._failing:
                    log.warning("overdue check failed: %s; retrying", one_line(error))
                self._failing = True

    def close(self) -> None:
        """Look no more; a hook that is running is ended, and run again by another node."""
        self._closing.set()
        if self.is_alive():
            self.join(STOPPING)

    def look(self) -> None:
        """Log what has come to be overdue since the last look, and tell of it where nobody else does."""
        late = self._alarms.overdue(_AT_ONCE)
        found = {(one.key, one.scheduled_time) for one in late}
        for one in late:
            if (one.key, one.scheduled_time) not in self._logged:
                log.error("key=%s type=%s overdue: %s", one.key, one.type, one)
        self._logged = found
        for one in self._alarms.untold(_AT_ONCE) if late and self._hook else ():
            if self._closing.is_set():
                return
            if self._alarms.claim(one, _CLAIM) and self._hook.tell(one.key, one.scheduled_time, facts(one)):
                self._alarms.told(one)


def open_lookouts(sites: Sequence[Worksite], slot: int) -> list[Lookout]:
    """Return what looks out for overdue schedules, where the store knows of them: in the first slot's child alone."""
    return [
        Lookout(site.alarms, site.section.on_late, site.section.alert_interval)
        for site in sites
        if site.alarms is not None and slot == FIRST_SLOT
    ]


def facts(overdue: Overdue) -> dict[str, object]:
    """Return what a hook is told: names and meanings stay as they are in later versions."""
    return {
        "key": overdue.key,
        "type": overdue.type,
        "scheduled_time": overdue.scheduled_time,
        "seconds": round(overdue.seconds, 3),
        "status": overdue.status,
        "attempts": overdue.attempts,
        "message": str(overdue),
    }
