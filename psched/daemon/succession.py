"""Who is the master: the pid file, the change to a new master, and the change from an old one. In the master."""

from __future__ import annotations

import logging
import math
import os
import signal
from contextlib import suppress
from selectors import EVENT_READ, BaseSelector

from psched.daemon.notify import Notifier
from psched.daemon.pidfile import PidFile
from psched.daemon.replacement import Command, Replacement, Takeover

log = logging.getLogger(__name__)


class Succession:
    """The claim of this process to be the master. `limit`: seconds that a new master has to become ready."""

    def __init__(
        self,
        selector: BaseSelector,
        command: Command,
        pid_file: PidFile | None,
        takeover: Takeover | None,
        notifier: Notifier,
        limit: float,
    ) -> None:
        self._selector = selector
        self._command = command
        self._pid_file = pid_file
        self._takeover = takeover
        self._notifier = notifier
        self._limit = limit
        self._replacement: Replacement | None = None
        self._heir = 0
        self._old = 0
        self._report = ""
        self.refusal: str | None = None
        """Why the last new master that was asked for has not taken over; None when it has, or is starting."""
        self.immediate = False
        """Whether running tasks are to be given back when the new master takes over."""

    @property
    def active(self) -> bool:
        """Whether a new master is starting."""
        return self._replacement is not None

    @property
    def deadline(self) -> float:
        """When `tick` is due at the latest, monotonic."""
        return math.inf if self._replacement is None else self._replacement.deadline

    def processes(self) -> set[int]:
        """Return the new master's pid, while one is starting or has taken over; else nothing."""
        return set() if self._heir == 0 else {self._heir}

    @property
    def old_lives(self) -> bool:
        """Whether the master that this one has replaced is still there, for the tasks its workers run."""
        return self._old != 0 and os.getppid() == self._old

    def stop_old(self, immediate: bool) -> None:
        """Pass a stop on to the master that this one has replaced: a service manager stops the new one alone."""
        if self.old_lives:
            log.info("the master that was replaced (pid %d) still runs tasks and is told to stop, too", self._old)
            with suppress(ProcessLookupError):
                os.kill(self._old, signal.SIGQUIT if immediate else signal.SIGTERM)

    def begin(self) -> None:
        """Write the pid file, unless there is an old master that it still names."""
        if self._takeover is None:
            self._sign()

    def came_up(self) -> None:
        """The children are up: relieve the old master, if there is one."""
        if self._takeover is not None:
            self._sign()
            self._takeover.ready()
            self._old = self._takeover.old
            self._takeover = None

    def ask(self, immediate: bool, now: float) -> None:
        """Start a new master. Asking again while one is starting can only make it immediate."""
        if self._replacement is not None:
            self.immediate = self.immediate or immediate
            return
        self.immediate = immediate
        self.refusal = None
        lock = None if self._pid_file is None else self._pid_file.inheritable()
        environ = {**os.environ, **self._notifier.environment()}
        try:
            self._replacement = Replacement(self._command, lock, environ, self._limit, now)
        except OSError as error:
            self.refusal = f"cannot start a new master: {error.strerror}"
            log.error("not replaced: %s", self.refusal)
        else:
            self._heir = self._replacement.pid
            self._selector.register(self._replacement.channel, EVENT_READ)
            log.info("a new master is starting (pid %d)", self._replacement.pid)
        finally:
            if lock is not None:
                os.set_inheritable(lock, False)

    def tick(self, now: float) -> bool:
        """Watch the new master; True once, when it has taken over."""
        replacement = self._replacement
        if replacement is None:
            return False
        if replacement.is_ready():
            self._hand_over(replacement)
            return True
        failure = replacement.failure(now)
        if failure is not None:
            log.error("not replaced: %s; the messages of the new master are in the log; this master goes on", failure)
            self.refusal = failure
            self._forget(replacement)
            self._sign()
        return False

    def abort(self) -> None:
        """End a new master that has not taken over."""
        if self._replacement is not None:
            self._replacement.abort()
            self._forget(self._replacement)
            self.refusal = "this master is stopping"

    def publish(self, report: str) -> None:
        """Write `report` beside our pid, if it is new; while a new master is starting the file is not ours to write."""
        if report != self._report:
            self._report = report
            if self._replacement is None and self._takeover is None:
                try:
                    self._sign()
                except OSError as error:
                    log.warning("the pid file cannot be written: %s; commands do not learn of outcomes", error.strerror)

    def end(self) -> None:
        """Name this process in the pid file no more, unless the file has become another's, or is an old master's.

        The file's lock stands until this process is gone.
        """
        if self._takeover is not None:
            self._takeover.close()
        elif self._pid_file is not None:
            self._pid_file.sign_off()
        self._pid_file = None

    def disown(self) -> None:
        """In a child: close what makes the master the master."""
        if self._pid_file is not None:
            self._pid_file.close()
        if self._takeover is not None:
            self._takeover.close()
        if self._replacement is not None:
            self._replacement.close()

    def _hand_over(self, replacement: Replacement) -> None:
        log.info("the new master is up (pid %d); this one stops", replacement.pid)
        self._notifier.mainpid(replacement.pid)
        self._notifier.address = None  # from now on the new one speaks
        self._forget(replacement)
        if self._pid_file is not None:
            self._pid_file.close()
            self._pid_file = None

    def _forget(self, replacement: Replacement) -> None:
        self._selector.unregister(replacement.channel)
        replacement.close()
        self._replacement = None
        self._heir = replacement.pid

    def _sign(self) -> None:
        """Write our pid and the report into the pid file. Raises OSError."""
        if self._pid_file is not None:
            self._pid_file.write(os.getpid(), self._report)
