"""Applies the schedules that the application declares, after a start or reload of the daemon (`apply_at_start`).

If the child dies before it has applied the schedules, the master lets the next child apply them.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable

from psched.application import Application
from psched.backends import is_driver_error
from psched.config import Section
from psched.error_messages import one_line
from psched.errors import ConfigError
from psched.schedules.collection import ScheduleCollection, open_schedules
from psched.schedules_file.plan import apply_declared
from psched.store import holder_name

log = logging.getLogger(__name__)

_LONGEST_PAUSE = 30.0
"""The longest pause between two attempts, in seconds. The first pauses are 1, 2 and 4 s."""


class ApplyDeclaredSchedules:
    """A thread that applies the declared schedules. Retries until the database is ready. An error stops no worker."""

    def __init__(self, section: Section, application: Application, applied: Callable[[], object]) -> None:
        """`applied`: called when the schedules have been applied, or can never be applied."""
        self._section = section
        self._applied = applied
        self._application = application
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="schedules at start", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._stopping.set()

    def _run(self) -> None:
        pause, told = 1.0, ""
        with open_schedules(self._section, holder_name(f"apply-{os.getpid()}")) as schedules:
            while (trouble := self._try(schedules)) is not None:
                if trouble != told:
                    log.warning("apply_at_start: %s; retrying", trouble)
                    told = trouble
                if self._stopping.wait(pause):
                    return
                pause = min(2 * pause, _LONGEST_PAUSE)
        self._applied()

    def _try(self, schedules: ScheduleCollection) -> str | None:
        """Try to apply the schedules. Return why the database is not ready, or None if no further attempt is needed."""
        store = schedules.store
        try:
            try:
                store.check_tables()
            except ConfigError as error:  # a missing table, which `psched init` may still create
                return str(error)
            self._apply(schedules)
        except Exception as error:
            if store.is_unavailable(error):
                return f"the database does not answer: {one_line(error)}"
            if is_driver_error(error):
                return f"{'the database refuses this user: ' if store.is_refused(error) else ''}{one_line(error)}"
            log.error("apply_at_start: the schedules of the application were not applied: %s", one_line(error))
            log.debug("apply_at_start failed", exc_info=True)
        return None

    def _apply(self, schedules: ScheduleCollection) -> None:
        declared = self._application.declared_schedules()
        if not declared:
            log.warning("apply_at_start: the application declares no schedules; add @app.schedule(...)")
            return
        applied = apply_declared(schedules, declared)
        counts = {action: sum(each.action == action for each in applied.changes) for action in ("add", "modify")}
        log.info(
            "apply_at_start: schedules: %d added, %d modified, %d unchanged",
            counts["add"],
            counts["modify"],
            applied.unchanged,
        )
        if applied.undeclared:
            log.info(
                "apply_at_start: schedules no longer declared: %d; `psched apply --prune` deletes them",
                len(applied.undeclared),
            )
