"""Reports runs that have failed for good to the `on_failure` hook, in a thread of its own. In children.

One child of each node does so (that in the first slot), every `alert_interval` seconds. Each failure is claimed by one
node at a time, and reported until its hook has succeeded.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from datetime import UTC, datetime

from psched.daemon.hook import STOPPING, Hook
from psched.daemon.wording import one_line
from psched.daemon.worksites import FIRST_SLOT, Worksite
from psched.error_summary import error_summary
from psched.failure import Failure, Failures

log = logging.getLogger(__name__)

_CLAIM = 60.0
"""Seconds for which a failure is reported by one node; then it is claimed again, also when its hook has failed."""


class FailureReporter(threading.Thread):
    """Reports every `interval` seconds until closed. Errors are logged, and end nothing."""

    def __init__(self, section: str, failures: Failures, target: tuple[str, ...], interval: float) -> None:
        """`target`: a command with its arguments, or one URL."""
        super().__init__(name=f"{section} failure reporter", daemon=True)
        self._section = section
        self._failures = failures
        self._interval = interval
        self._closing = threading.Event()
        self._hook = Hook("on_failure", target, self._closing)
        self._failing = False

    def run(self) -> None:
        """Report until closed."""
        while not self._closing.wait(self._interval):
            try:
                while not self._closing.is_set() and self.report():
                    pass
                self._failing = False
            except Exception as error:  # noqa: BLE001 – whatever a driver raises, the next time may be answered
                if not self._failing:
                    log.warning("section=%s reporting failures failed: %s; retrying", self._section, one_line(error))
                self._failing = True

    def close(self) -> None:
        """Report no more; a hook that is running is ended, and run again by another node."""
        self._closing.set()
        if self.is_alive():
            self.join(STOPPING)

    def report(self) -> bool:
        """Report one failure; False when there is none that is to be reported now."""
        failure = self._failures.claim(_CLAIM)
        if failure is None:
            return False
        if self._hook.tell(failure.key, failure.scheduled_time, facts(failure, self._section)):
            self._failures.told(failure)
        return True


def open_failure_reporters(sites: Sequence[Worksite], slot: int) -> list[FailureReporter]:
    """Return what reports failures, for each section with an `on_failure`: in the first slot's child alone."""
    return [
        FailureReporter(site.name, failures, site.section.on_failure, site.section.alert_interval)
        for site in sites
        if (failures := site.source.store.failures) is not None and site.section.on_failure and slot == FIRST_SLOT
    ]


def facts(failure: Failure, section: str) -> dict[str, object]:
    """Return what a hook is told: names and meanings stay as they are in later versions."""
    return {
        "key": failure.key,
        "type": failure.type,
        "section": section,
        "scheduled_time": failure.scheduled_time,
        "attempts": failure.attempts,
        "status": "failed",
        "error": failure.error,
        "node": failure.node,
        "failed_at": failure.failed_at,
        "message": _message(failure),
    }


def _message(failure: Failure) -> str:
    time = datetime.fromtimestamp(failure.scheduled_time, UTC).isoformat(" ")
    times = "1 attempt" if failure.attempts == 1 else f"{failure.attempts} attempts"
    error = "" if failure.error is None else f": {error_summary(failure.error)}"
    return f"{failure.key!r}: its run of {time} failed for good after {times}{error}"
