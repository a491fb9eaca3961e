"""Reports late schedules, failures and recoveries: calls the hooks (`on_late`, …) and puts events into the outbox."""

from __future__ import annotations

import logging
import os
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from types import MappingProxyType

from psched.clock import monotonic
from psched.config.alert_hooks import Hook
from psched.config.events import EVENT_KINDS
from psched.error_messages import one_line
from psched.execution.opened_stores import OpenSection
from psched.execution.webhooks import deliver, message_id
from psched.handlers.process_group import Program
from psched.keys import backfill_of, is_backfill_key
from psched.model import ScheduleRow
from psched.store import ScheduleStore
from psched.store.alert_store import Overdue, OverdueAlerts, UnreportedFailure, UnreportedFailures
from psched.store.delivery_watermarks import Watermark, Watermarks
from psched.store.ledger import ENQUEUED, FINISHED, LedgerFilter, LedgerRow
from psched.store.outbox import EventOutbox
from psched.stored_error_summary import error_summary
from psched.time_text import local_time

log = logging.getLogger(__name__)

_GRACE = 2.0
"""Seconds between SIGTERM and SIGKILL for a hook that exceeds its timeout, or that is running when the node stops."""

_AT_ONCE = 100
"""The maximum number of overdue occurrences that one check handles. Those that are overdue longest come first."""
_CLAIM = 60.0
"""A node claims an alert for the timeout of the hook plus this many seconds. Meanwhile no other node runs the hook.

If the hook has not succeeded by then, any node may run it again.
"""
_PAUSES = (60.0, 900.0)
"""Seconds for which an `AlertThread` runs no hook after a hook has failed. The pause begins with the first value. Each
further failure in a row doubles it, up to the last value."""
_REMEMBERED = 1000
"""The maximum number of recent events that an `AlertThread` remembers."""
_KEPT = 7 * 86400.0
"""Seconds after which a failure is dropped if no hook has accepted it."""


class AlertThread(threading.Thread):
    """Calls `check` every `interval` seconds until closed. Errors are logged and do not end the thread.

    The times of the checks are multiples of `interval` on the host's monotonic clock. So a check is not missed when the
    process dies and is replaced, even if no process lives as long as an interval.
    """

    def __init__(self, name: str, event: str, hook: Hook, interval: float, outbox: EventOutbox | None = None) -> None:
        """`name`: begins the log line of an error. `event`: late, failed or recovered. `outbox`: gets the events."""
        super().__init__(name=name, daemon=True)
        self._event = event
        self._hook = hook
        self._outbox = outbox
        self._put: deque[object] = deque(maxlen=_REMEMBERED)
        """The events that this node put into the outbox recently. If the hook of one of them fails and runs again, the
        event is not put there again."""
        self._interval = interval
        self._closing = threading.Event()
        self._pause, self._paused_until = _PAUSES[0], 0.0
        self._claim_seconds = _seconds_of(hook)

    def check(self) -> bool:
        """Report the events that no node has reported yet.

        Return True if there may be more to report; the thread then calls `check` again without waiting.
        """
        raise NotImplementedError

    def run(self) -> None:
        is_failing = False
        while not self._closing.wait(self._interval - monotonic() % self._interval):
            try:
                while not self._closing.is_set() and self.check():
                    pass
                is_failing = False
            except Exception as error:  # noqa: BLE001 – whatever a driver raises, the next check may succeed
                if not is_failing:
                    log.warning("%s failed: %s; retrying", self.name, one_line(error))
                is_failing = True

    def close(self) -> None:
        """End the thread soon. A running hook is ended, and another node runs it again."""
        self._closing.set()

    @property
    def may_run(self) -> bool:
        """Whether a hook may run: this node is not stopping, and the pause after the last failed hook is over."""
        return not self._closing.is_set() and monotonic() >= self._paused_until

    def report(self, key: str, time: int, facts: Mapping[str, object], hook: Hook | None = None) -> bool:
        """Report the occurrence `time` of the schedule `key`: put the event into the outbox, and run the hook.

        `hook`: replaces the hook of the section. Return False if the hook failed or was ended early. Raises the
        driver's errors.
        """
        this = key, time, facts.get("failed_at")
        if self._outbox is not None and this not in self._put:
            self._outbox.put(facts)
            self._put.append(this)
        hook = self._hook if hook is None else hook
        if not hook:
            return True
        try:
            failure = self._request(hook, key, time, facts) if hook.url else self._execute(hook, facts)
        except (OSError, ValueError) as error:
            failure = one_line(error)
        name = _NAMES[self._event]
        if failure is not None:
            log.error("key=%s %s failed: %s; the hook will be run again", key, name, failure)
            self._paused_until = monotonic() + self._pause
            self._pause = min(2 * self._pause, _PAUSES[1])
        else:
            log.info("key=%s %s was run for the occurrence of %s", key, name, local_time(time))
            self._pause = _PAUSES[0]
        return failure is None

    def _execute(self, hook: Hook, facts: Mapping[str, object]) -> str | None:
        """Run the command without a shell, with the facts in its environment. Return the error, or None."""
        texts = {name: "" if value is None else str(value) for name, value in facts.items()}
        variables = {
            f"PSCHED_{name.upper()}": text.replace("\0", "\N{REPLACEMENT CHARACTER}") for name, text in texts.items()
        }
        with Program(hook.command, None, {**os.environ, **variables}, self._closing) as program:
            ending = program.wait(hook.timeout, _GRACE, _GRACE)
        if ending.status == 0 and ending.cut_short is None:
            return None
        return f"{ending.cut_short or f'exit status {ending.status}'} {ending.tail}".strip()

    def _request(self, hook: Hook, key: str, time: int, facts: Mapping[str, object]) -> str | None:
        """POST the facts as JSON. Raises RequestError."""
        assert hook.url is not None
        id_ = message_id(self._event, key, time, facts.get("failed_at"))
        deliver(hook.url, id_, facts, self._closing, hook.secret, hook.timeout)
        return None


def _seconds_of(hook: Hook) -> float:
    """Return for how many seconds this node claims an alert that has this hook."""
    return _CLAIM + 3 * hook.timeout if hook.url else _CLAIM + hook.timeout


_NAMES = {"late": "on_late", "failed": "on_failure", "recovered": "on_recovered"}
"""The configuration keys of the hooks, by event."""


class OverdueAlerter(AlertThread):
    """Logs overdue schedules, and reports them to the hook and to the outbox. Each of these two may be missing."""

    def __init__(
        self,
        alerts: OverdueAlerts,
        hook: Hook,
        interval: float,
        troubles: Watermarks | None = None,
        outbox: EventOutbox | None = None,
    ) -> None:
        """`troubles`: stores each reported occurrence, for `RecoveryReporter`."""
        super().__init__("overdue check", "late", hook, interval, outbox)
        self._alerts = alerts
        self._troubles = troubles
        self._logged: set[tuple[str, int]] = set()

    def check(self) -> bool:
        """Log the occurrences that became overdue since the last check.

        Report all overdue occurrences that no node has reported or claimed, including those logged earlier.
        """
        late = self._alerts.overdue(_AT_ONCE)
        for overdue in late:
            if (overdue.key, overdue.scheduled_time) not in self._logged:
                log.error("key=%s type=%s overdue: %s", overdue.key, overdue.type, overdue)
        self._logged = {(overdue.key, overdue.scheduled_time) for overdue in late}
        is_reported = late and (self._hook or self._troubles or self._outbox) and self.may_run
        for overdue in self._alerts.unreported(_AT_ONCE) if is_reported else ():
            if not self.may_run:
                break
            if not self._alerts.claim(overdue, self._claim_seconds):
                continue
            if self.report(overdue.key, overdue.scheduled_time, overdue_facts(overdue)):
                if self._troubles is not None:
                    self._troubles.raise_to("trouble", overdue.key, overdue.scheduled_time, f"late {overdue.type}")
                self._alerts.mark_reported(overdue)
        return False


class FailureReporter(AlertThread):
    def __init__(
        self,
        section: str,
        failures: UnreportedFailures,
        hook: Hook,
        interval: float,
        now: Callable[[], float],
        troubles: Watermarks | None = None,
        outbox: EventOutbox | None = None,
        schedules: ScheduleStore | None = None,
        hooks: Mapping[str, Hook] = MappingProxyType({}),
    ) -> None:
        """`now`: returns the database's time. `troubles`: as for `OverdueAlerter`.

        `schedules`: the store of schedules, whose `on_failure` names one of `hooks`.
        """
        super().__init__(f"{section} failure report", "failed", hook, interval, outbox)
        self._schedules = schedules
        self._hooks = hooks
        self._claim_seconds = max(map(_seconds_of, (hook, *hooks.values())))
        self._section = section
        self._failures = failures
        self._now = now
        self._troubles = troubles

    def check(self) -> bool:
        """Report one failure. Return False if there is no failure to report now, or if the hook failed."""
        failure = self._failures.claim(self._claim_seconds) if self.may_run else None
        if failure is None:
            return False
        schedule: ScheduleRow | None = None
        if failure.failed_at < self._now() - _KEPT:
            words = "key=%s dropping the failure of %s, which no on_failure hook has accepted in 7 days"
            log.error(words, failure.key, local_time(failure.failed_at))
        else:
            schedule = None if self._schedules is None else self._schedules.get(failure.key)
            facts = failure_facts(failure, self._section, is_paused=schedule is not None and schedule.has_failed_enough)
            if schedule is not None and schedule.rule.backfill is not None:
                facts |= {"key": schedule.rule.backfill.schedule, "backfill": "{}:{}".format(*backfill_of(failure.key))}
            if not self.report(failure.key, failure.scheduled_time, facts, self._hook_of(schedule)):
                return False
        if self._troubles is not None and not is_backfill_key(failure.key):
            self._troubles.raise_to("trouble", failure.key, failure.scheduled_time, f"failed {failure.type}")
        self._failures.mark_reported(failure)
        return True

    def _hook_of(self, schedule: ScheduleRow | None) -> Hook:
        name = None if schedule is None else schedule.policy.on_failure
        if schedule is not None and name is not None and name not in self._hooks:
            words = "key=%s on_failure names the hook %r, which `hooks:` does not define; using the hook of the section"
            log.error(words, schedule.key, name)
        return self._hook if name is None else self._hooks.get(name, self._hook)


class RecoveryReporter(AlertThread):
    """Reports a schedule once when it has run successfully after it was late or had failed."""

    def __init__(
        self, store: ScheduleStore, hook: Hook, interval: float, claimer: str, outbox: EventOutbox | None = None
    ) -> None:
        """`claimer`: as for `AlertAndEventThreads`."""
        super().__init__("recovery check", "recovered", hook, interval, outbox)
        assert store.watermarks is not None
        self._store = store
        self._troubles = store.watermarks
        self._claimer = claimer
        self._after = ""

    def check(self) -> bool:
        """Check the next schedules that were late or failed. Return True if there are more to check."""
        if not self.may_run:
            return False
        troubles = self._troubles.page("trouble", self._after, _AT_ONCE)
        for trouble in troubles:
            self._after = trouble.name
            if not self.may_run:
                return False
            self._look_at(trouble)
        if len(troubles) < _AT_ONCE:
            self._after = ""
        return len(troubles) == _AT_ONCE

    def _look_at(self, trouble: Watermark) -> None:
        run = self._good_run_after(trouble)
        if run is None:
            if self._store.get(trouble.name) is None:  # the schedule was deleted, so it cannot recover
                self._troubles.remove(trouble)
            return
        if self._troubles.claim(trouble, self._claimer, self._claim_seconds) and self.report(
            trouble.name, run.scheduled_time, recovery_facts(trouble, run)
        ):
            self._troubles.remove(trouble)

    def _good_run_after(self, trouble: Watermark) -> LedgerRow | None:
        """Return the first successful run of the late or failed occurrence, or of a later one; None if there is none.

        After a failure, a successful extra run counts, too. After lateness it does not count, because the occurrence
        stays late until it is settled itself.
        """
        assert self._store.ledger is not None
        is_late = trouble.detail.startswith("late")
        for row in self._store.ledger.rows(LedgerFilter(trouble.name, since=trouble.position)):
            if row.outcome in (FINISHED, ENQUEUED) and not (is_late and row.extra):
                return row
        return None


def open_alert_threads(opened_sections: Sequence[OpenSection], claimer: str) -> list[AlertThread]:
    """Return the alert threads for the stores that can report overdue schedules or failed runs.

    `claimer`: as for `AlertAndEventThreads`.
    """
    threads: list[AlertThread] = []
    for opened in opened_sections:
        section, store, interval = opened.section, opened.source.store, opened.section.alert_interval
        marks = store.watermarks if section.reports_recoveries and isinstance(store, ScheduleStore) else None
        outboxes = {kind: store.outbox if section.sends(kind) else None for kind in EVENT_KINDS}
        if opened.alerts is not None:
            threads.append(OverdueAlerter(opened.alerts, section.on_late, interval, marks, outboxes["late"]))
        if store.failures is not None and section.reports_failures:
            of_section = opened.name, store.failures, section.on_failure, interval, store.now
            schedules = store if isinstance(store, ScheduleStore) else None
            threads.append(FailureReporter(*of_section, marks, outboxes["failed"], schedules, section.hooks))
        if marks is not None:
            assert isinstance(store, ScheduleStore)
            threads.append(RecoveryReporter(store, section.on_recovered, interval, claimer, outboxes["recovered"]))
    return threads


def overdue_facts(overdue: Overdue) -> dict[str, object]:
    """Return the facts for the `on_late` hook, by name. Their names and meanings are stable."""
    return {
        "event": "late",
        "key": overdue.key,
        "type": overdue.type,
        "scheduled_time": overdue.scheduled_time,
        "seconds": round(overdue.seconds, 3),
        "status": overdue.status,
        "attempts": overdue.attempts,
        "message": str(overdue),
    }


def failure_facts(failure: UnreportedFailure, section: str, is_paused: bool = False) -> dict[str, object]:
    """Return the facts for the `on_failure` hook, by name. Their names and meanings are stable.

    `is_paused`: whether the schedule is paused because it has failed `pause_after` times in a row.
    """
    time = datetime.fromtimestamp(failure.scheduled_time, UTC).isoformat(" ")
    times = "1 attempt" if failure.attempts == 1 else f"{failure.attempts} attempts"
    error = "" if failure.error is None else f": {error_summary(failure.error)}"
    return {
        "event": "failed",
        "key": failure.key,
        "type": failure.type,
        "section": section,
        "scheduled_time": failure.scheduled_time,
        "attempts": failure.attempts,
        "status": "failed",
        "error": failure.error,
        "node": failure.node,
        "failed_at": failure.failed_at,
        "paused": is_paused,
        "message": f"{failure.key!r}: the run of {time} failed for good after {times}{error}"
        + ("; the schedule is paused, as it failed too often in a row" if is_paused else ""),
    }


def recovery_facts(trouble: Watermark, run: LedgerRow) -> dict[str, object]:
    """Return the facts for the `on_recovered` hook, by name. Their names and meanings are stable."""
    kind, _, type_ = trouble.detail.partition(" ")
    times = [datetime.fromtimestamp(time, UTC).isoformat(" ") for time in (run.scheduled_time, trouble.position)]
    return {
        "event": "recovered",
        "key": trouble.name,
        "type": type_,
        "section": "schedules",
        "scheduled_time": run.scheduled_time,
        "status": "recovered",
        "trouble": kind,
        "trouble_time": round(trouble.position),
        "reported_at": trouble.since,
        "recovered_at": run.ended,
        "node": run.node,
        "message": f"{trouble.name!r}: its run of {times[0]} has finished; its run of {times[1]} was {_WERE[kind]}",
    }


_WERE = {"late": "late", "failed": "given up"}
