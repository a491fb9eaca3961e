"""Applies the schedules that the application declares, once, after a daemon has started (`apply_at_start`)."""

from __future__ import annotations

import logging
import os
import threading

from psched.application import Application
from psched.config import Section
from psched.error_messages import one_line
from psched.schedules.collection import ScheduleCollection, open_schedules
from psched.schedules_file.plan import apply_declared
from psched.store import holder_name

log = logging.getLogger(__name__)

_PAUSE = 5.0
"""Seconds between two attempts while the database does not answer."""


class ApplyAtStart:
    """A thread that applies the schedules. It retries while the database is unavailable. An error stops no worker."""

    def __init__(self, section: Section, application: Application) -> None:
        self._section = section
        self._application = application
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="schedules at start", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._stopping.set()

    def _run(self) -> None:
        with open_schedules(self._section, holder_name(f"apply-{os.getpid()}")) as schedules:
            while not self._stopping.is_set():
                try:
                    self._apply(schedules)
                    return
                except Exception as error:
                    if not schedules.store.is_unavailable(error):
                        words = "apply_at_start: the schedules of the application were not applied: %s"
                        log.error(words, one_line(error))
                        log.debug("apply_at_start failed", exc_info=True)
                        return
                    log.warning("apply_at_start: the database does not answer: %s; retrying", one_line(error))
                self._stopping.wait(_PAUSE)

    def _apply(self, schedules: ScheduleCollection) -> None:
        declared = self._application.declared_schedules()
        if not declared:
            log.warning("apply_at_start: the application declares no schedules; add @app.schedule(...)")
            return
        applied = apply_declared(schedules, declared)
        counts = {action: sum(each.action == action for each in applied.changes) for action in ("add", "modify")}
        log.info(
            "apply_at_start: %d schedules added, %d modified, %d unchanged",
            counts["add"],
            counts["modify"],
            applied.unchanged,
        )
        if applied.undeclared:
            log.info(
                "apply_at_start: %d schedules are no longer declared; psched apply --prune deletes them",
                len(applied.undeclared),
            )
