"""A lane: one section of the configuration at work, from its table to what handles its rows. In children."""

from __future__ import annotations

import logging
import random
from collections.abc import Sequence

from psched.application import Application
from psched.clock import Clock, monotonic
from psched.daemon.prefetch import Prefetch
from psched.source import Source
from psched.task import Task

log = logging.getLogger(__name__)

_LONGEST_PAUSE = 5.0
"""How many poll intervals at the most lie between two polls of a database that does not answer."""


class Lane:
    """Polls one source for the handlers of one application, and survives whatever the database does.

    Every handler thread has its own lane over the shared source, since each polls at its own pace.
    """

    def __init__(
        self,
        name: str,
        source: Source,
        application: Application,
        prefetch: Prefetch,
        poll_interval: float,
        task_timeout: float | None,
        margin: float,
        clock: Clock = monotonic,
    ) -> None:
        """`margin`: how many seconds before its lease ends a run is told to stop."""
        self.name = name
        self.source = source
        self.application = application
        self.prefetch = prefetch
        self.task_timeout = task_timeout
        self.margin = margin
        self._poll_interval = poll_interval
        self._clock = clock
        self._next_poll = clock()
        self._failures = 0
        self._complaint: str | None = None

    def pause(self) -> float:
        """Return the seconds until the next poll; 0 when it is time."""
        return max(0.0, self._next_poll - self._clock())

    def poll(self) -> Sequence[Task]:
        """Take what is due, nothing when it is not yet time or the database does not answer."""
        if self.pause() > 0:
            return ()
        try:
            tasks = self.source.poll_multi(self.prefetch.limit(), self.application.types, ahead=True)
        except Exception as error:  # noqa: BLE001 – no fault of a database ends the polling
            self._failed(error)
            return ()
        self._answered()
        if not tasks:
            self._rest(1)
        return tasks

    def _failed(self, error: Exception) -> None:
        """Log a failing poll once for as long as it fails the same way, and come back less and less often."""
        self._failures += 1
        self._rest(min(2 ** (self._failures - 1), _LONGEST_PAUSE))
        complaint = one_line(error)
        if self._complaint is None or not self.source.store.is_unavailable(error):
            self._complain(error, complaint)
        self._complaint = complaint

    def _complain(self, error: Exception, complaint: str) -> None:
        if self.source.store.is_unavailable(error):
            log.warning("section=%s the database does not answer: %s; trying again until it does", self.name, complaint)
        elif complaint != self._complaint:
            fault = None if is_refusal(error) else error
            log.error("section=%s polling fails: %s; trying again", self.name, complaint, exc_info=fault)

    def _answered(self) -> None:
        if self._failures:
            log.warning("section=%s the database answers again after %d failed polls", self.name, self._failures)
        self._failures = 0
        self._complaint = None

    def _rest(self, intervals: float) -> None:
        """Poll again after so many intervals, a little more or less, so that children do not march in step."""
        self._next_poll = self._clock() + self._poll_interval * intervals * random.uniform(0.9, 1.1)


def is_refusal(error: BaseException) -> bool:
    """Tell whether a database's driver raised it, so that its words say more than a traceback."""
    return getattr(error, "orig", None) is not None


def one_line(error: BaseException) -> str:
    """Return what `error` says on one line, without the statement that SQLAlchemy adds."""
    cause = getattr(error, "orig", None)
    text = str(error if cause is None else cause).strip()
    return text.splitlines()[0] if text else type(error).__name__
