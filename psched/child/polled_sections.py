"""The sections of a child that polls: their types, their pollers, and the current errors of their databases."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

from psched.acquisition.types_with_rows import TypesWithRows
from psched.application import Application
from psched.backends import is_driver_error, known_remedy
from psched.child.node_threads import NodeThreads
from psched.error_messages import one_line
from psched.errors import ConfigError
from psched.execution.opened_stores import OpenSection
from psched.execution.poller import RowPoller
from psched.store.node_registry import NodeProcess
from psched.store.type_filter import mismatch

log = logging.getLogger(__name__)


class PolledSections:
    def __init__(
        self,
        sections: Sequence[OpenSection],
        application: Application,
        processes: Callable[[], Sequence[NodeProcess]],
        applied: Callable[[], object] | None,
        claimer: str,
    ) -> None:
        """`processes`: returns the children of this node that run handlers, and their runs. Callable from any thread.

        `applied`: called when the schedules of the application have been applied, or can never be applied. None: this
        child does not apply them. `claimer`: as for `AlertAndEventThreads`.
        """
        self._sections = sections
        served = {opened.name: application.of(opened.name).types().serving(opened.section.types) for opened in sections}
        self._mismatch = mismatch(served.values())
        self._runs_nothing = all(types.is_nothing for types in served.values())
        self.types = {opened.name: TypesWithRows(opened.source, served[opened.name]) for opened in sections}
        self.pollers: list[RowPoller[Any]] = []
        self.node_threads = NodeThreads(sections, application, served, processes, applied, claimer)

    def prepare(self) -> None:
        """Check the tables, and log the configured `types` that match no handler.

        If the database does not answer or refuses the login, log that; the pollers keep trying.

        Raises:
            ConfigError: a table is missing, belongs to another program, or cannot be used.
        """
        if self._mismatch is not None:
            log.warning("%s", self._mismatch)
        for opened in self._sections:
            store = opened.source.store
            try:
                store.check_tables()
                self.types[opened.name].prepare()
            except Exception as error:
                if store.is_unavailable(error):
                    log.warning("section=%s the database does not answer yet: %s", opened.name, one_line(error))
                elif store.is_refused(error):
                    log.debug("section=%s the database refuses this user: %s", opened.name, one_line(error))
                elif is_driver_error(error):
                    problem = one_line(error)
                    remedy = known_remedy(problem) or "correct `url:`, or see `psched doctor`, which checks more"
                    raise ConfigError(f"{opened.name}: the tables cannot be checked: {problem}; {remedy}") from error
                else:
                    raise
                for poller in self.pollers:
                    if poller.name == opened.name:
                        poller.report_trouble(error)

    def expect(self) -> None:
        """Poll immediately, because rows may be due."""
        for poller in self.pollers:
            poller.expect()

    def trouble(self) -> str | None:
        troubles = dict.fromkeys(poller.trouble for poller in self.pollers if poller.trouble is not None)
        if self._mismatch is not None and self._runs_nothing:
            troubles[self._mismatch] = None
        return "; ".join(troubles) or None
