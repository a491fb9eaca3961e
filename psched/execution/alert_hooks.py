"""Runs the commands, or calls the URLs, of `on_late` (overdue schedules) and `on_failure` (failed runs)."""

from __future__ import annotations

import json
import logging
import os
import threading
import urllib.request
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

from psched.clock import local_time
from psched.error_text import error_summary, one_line
from psched.execution.section_sources import OpenSection
from psched.handlers.process_group import Program
from psched.store.alerts import Overdue, OverdueAlerts, UnreportedFailure, UnreportedFailures

log = logging.getLogger(__name__)

_HOOK_SECONDS = 30.0
"""Seconds that a hook may take."""
_GRACE = 2.0
"""Seconds between SIGTERM and SIGKILL of a hook that takes longer, or runs at a stop."""
STOPPING = _GRACE + 1
"""Seconds within which a hook ends at a stop."""


_AT_ONCE = 100
"""Overdue occurrences of one check, those longest overdue first."""
_CLAIM = 60.0
"""Seconds for which an alert is claimed by one node. If its hook has not succeeded by then, any node runs it again."""


class AlertThread(threading.Thread):
    """Calls `check` every `interval` seconds until closed. Errors are logged and do not end it."""

    def __init__(self, name: str, hook: str, target: tuple[str, ...], interval: float) -> None:
        """`name` begins the log line of an error. `hook`: the key of the hook in the configuration.

        `target`: a command with its arguments, or one URL; empty: there is no hook.
        """
        super().__init__(name=name, daemon=True)
        self._hook = hook
        self._target = target
        self._interval = interval
        self._closing = threading.Event()

    def check(self) -> bool:
        """Report what is new. Return True if there may be more: the thread then calls again without waiting."""
        raise NotImplementedError

    def run(self) -> None:
        is_failing = False
        while not self._closing.wait(self._interval):
            try:
                while not self._closing.is_set() and self.check():
                    pass
                is_failing = False
            except Exception as error:  # noqa: BLE001 – whatever a driver raises, the next check may succeed
                if not is_failing:
                    log.warning("%s failed: %s; retrying", self.name, one_line(error))
                is_failing = True

    def close(self) -> None:
        """Stop the thread and end a running hook, which another node then runs again."""
        self._closing.set()
        if self.is_alive():
            self.join(STOPPING)

    def run_hook(self, key: str, time: int, facts: Mapping[str, object]) -> bool:
        """Run the hook for the occurrence `time` of `key`; False when it failed or was ended early."""
        is_url = len(self._target) == 1 and self._target[0].startswith(("http://", "https://"))
        try:
            failure = self._request(facts) if is_url else self._execute(facts)
        except (OSError, ValueError) as error:
            failure = one_line(error)
        if failure is not None:
            log.error("key=%s %s failed: %s; the hook will be run again", key, self._hook, failure)
        else:
            log.info("key=%s %s was run for its occurrence of %s", key, self._hook, local_time(time))
        return failure is None

    def _execute(self, facts: Mapping[str, object]) -> str | None:
        """Run the command with the facts in its environment, without a shell. Return the error, or None."""
        texts = {name: "" if value is None else str(value) for name, value in facts.items()}
        variables = {
            f"PSCHED_{name.upper()}": text.replace("\0", "\N{REPLACEMENT CHARACTER}") for name, text in texts.items()
        }
        with Program(self._target, None, {**os.environ, **variables}, self._closing) as program:
            ending = program.wait(_HOOK_SECONDS, _GRACE, _GRACE)
        if ending.status == 0 and ending.cut_short is None:
            return None
        return f"{ending.cut_short or f'exit status {ending.status}'} {ending.tail}".strip()

    def _request(self, facts: Mapping[str, object]) -> str | None:
        """POST the facts as JSON. Raises OSError, also for an HTTP error."""
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(self._target[0], json.dumps(facts).encode(), headers)  # noqa: S310 – http(s)
        with urllib.request.urlopen(request, timeout=_HOOK_SECONDS):  # noqa: S310 – checked by the configuration
            return None


class OverdueAlerter(AlertThread):
    """Alerts of overdue schedules. Without a hook they are only logged."""

    def __init__(self, alerts: OverdueAlerts, target: tuple[str, ...], interval: float) -> None:
        super().__init__("overdue check", "on_late", target, interval)
        self._alerts = alerts
        self._logged: set[tuple[str, int]] = set()

    def check(self) -> bool:
        """Log the schedules that became overdue since the last check. Run the hook for those not claimed elsewhere."""
        late = self._alerts.overdue(_AT_ONCE)
        for overdue in late:
            if (overdue.key, overdue.scheduled_time) not in self._logged:
                log.error("key=%s type=%s overdue: %s", overdue.key, overdue.type, overdue)
        self._logged = {(overdue.key, overdue.scheduled_time) for overdue in late}
        for overdue in self._alerts.unreported(_AT_ONCE) if late and self._target else ():
            if self._closing.is_set():
                break
            facts = overdue_facts(overdue)
            if self._alerts.claim(overdue, _CLAIM) and self.run_hook(overdue.key, overdue.scheduled_time, facts):
                self._alerts.mark_reported(overdue)
        return False


class FailureReporter(AlertThread):
    """Reports failed runs of one section."""

    def __init__(self, section: str, failures: UnreportedFailures, target: tuple[str, ...], interval: float) -> None:
        super().__init__(f"{section} failure report", "on_failure", target, interval)
        self._section = section
        self._failures = failures

    def check(self) -> bool:
        """Report one failure. Return False if there is none to report now."""
        failure = self._failures.claim(_CLAIM)
        if failure is None:
            return False
        if self.run_hook(failure.key, failure.scheduled_time, failure_facts(failure, self._section)):
            self._failures.mark_reported(failure)
        return True


def open_alert_threads(opened_sections: Sequence[OpenSection]) -> list[AlertThread]:
    """Return the threads for stores that know of overdue schedules or failed runs."""
    threads: list[AlertThread] = []
    for opened in opened_sections:
        section, failures = opened.section, opened.source.store.failures
        if opened.alerts is not None:
            threads.append(OverdueAlerter(opened.alerts, section.on_late, section.alert_interval))
        if failures is not None and section.on_failure:
            threads.append(FailureReporter(opened.name, failures, section.on_failure, section.alert_interval))
    return threads


def overdue_facts(overdue: Overdue) -> dict[str, object]:
    """Return the facts that the `on_late` hook gets, by their names. Names and meanings do not change."""
    return {
        "key": overdue.key,
        "type": overdue.type,
        "scheduled_time": overdue.scheduled_time,
        "seconds": round(overdue.seconds, 3),
        "status": overdue.status,
        "attempts": overdue.attempts,
        "message": str(overdue),
    }


def failure_facts(failure: UnreportedFailure, section: str) -> dict[str, object]:
    """Return the facts that the `on_failure` hook gets, by their names. Names and meanings do not change."""
    time = datetime.fromtimestamp(failure.scheduled_time, UTC).isoformat(" ")
    times = "1 attempt" if failure.attempts == 1 else f"{failure.attempts} attempts"
    error = "" if failure.error is None else f": {error_summary(failure.error)}"
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
        "message": f"{failure.key!r}: its run of {time} failed for good after {times}{error}",
    }
