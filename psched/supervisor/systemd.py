"""Reports to systemd: state, status line, watchdog (the sd_notify(3) protocol). In the master only.

The variables are taken out of the environment, so that processes which handlers start cannot report for the daemon; a
binary upgrade hands them on by `Notifier.environment`. Without NOTIFY_SOCKET every method does nothing.
"""

from __future__ import annotations

import logging
import math
import os
import socket
import time
from collections.abc import MutableMapping
from dataclasses import dataclass, field

_SEND_TIMEOUT = 0.2  # seconds; a service manager that does not read must not stop the master's loop
_STATUS_INTERVAL = 1.0

log = logging.getLogger(__name__)


@dataclass(slots=True)
class Notifier:
    """`watchdog_usec`: microseconds after which systemd kills a silent master; None: never."""

    address: str | None = None
    watchdog_usec: int | None = None
    _failed: bool = False
    _reloading: bool = False
    _next_watchdog: float = field(default=-math.inf, compare=False)
    _next_status: float = field(default=-math.inf, compare=False)
    _sent_status: str = field(default="", compare=False)
    _is_behind: bool = field(default=False, compare=False)

    @classmethod
    def from_environment(cls, environ: MutableMapping[str, str]) -> Notifier:
        """Take the variables out of `environ`. A watchdog of another process (WATCHDOG_PID) is ignored."""
        address = environ.pop("NOTIFY_SOCKET", "")
        microseconds = environ.pop("WATCHDOG_USEC", "")
        meant_for = environ.pop("WATCHDOG_PID", "")
        watched = microseconds.isdecimal() and int(microseconds) > 0 and meant_for in ("", str(os.getpid()))
        return cls(address if address[:1] in ("@", "/") else None, int(microseconds) if watched else None)

    @property
    def watchdog_interval(self) -> float | None:
        """Seconds between two calls of `watchdog`: a third of the time that systemd waits."""
        return None if self.watchdog_usec is None or self.address is None else self.watchdog_usec / 3e6

    def environment(self) -> dict[str, str]:
        """Return the variables for the program that replaces this one; the pid in WATCHDOG_PID would be wrong there."""
        variables = {} if self.address is None else {"NOTIFY_SOCKET": self.address}
        if self.watchdog_usec is not None:
            variables["WATCHDOG_USEC"] = str(self.watchdog_usec)
        return variables

    @property
    def deadline(self) -> float:
        watchdog = math.inf if self.watchdog_interval is None else self._next_watchdog
        return min(watchdog, self._next_status if self._is_behind else math.inf)

    def ready(self, status: str | None = None) -> None:
        self._send("READY=1", *_status_line(status))

    def reloading(self) -> None:
        self._reloading = True
        self._send("RELOADING=1", f"MONOTONIC_USEC={time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000}")

    def reloaded(self) -> None:
        if self._reloading:
            self._reloading = False
            self.ready()

    def stopping(self) -> None:
        self._send("STOPPING=1")

    def status(self, text: str) -> None:
        self._send(*_status_line(text))

    def watchdog(self) -> None:
        self._send("WATCHDOG=1")

    def tick(self, now: float, status: str) -> None:
        """Notify the watchdog when that is due, and send a changed `status`, at most once a second."""
        interval = self.watchdog_interval
        if interval is not None and now >= self._next_watchdog:
            self._next_watchdog = now + interval
            self.watchdog()
            self._sent_status = ""  # sent anew: systemd ignores a new master until it is known as the main process
        if status != self._sent_status and now >= self._next_status:
            self._sent_status, self._next_status = status, now + _STATUS_INTERVAL
            self.status(status)
        self._is_behind = status != self._sent_status

    def mainpid(self, pid: int) -> None:
        """Make `pid` the main process. systemd accepts it from the present main process only (NotifyAccess=main)."""
        self._send(f"MAINPID={pid}")

    def _send(self, *assignments: str) -> None:
        if self.address is None:
            return
        target = "\0" + self.address[1:] if self.address.startswith("@") else self.address
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as channel:
                channel.settimeout(_SEND_TIMEOUT)
                channel.sendto("\n".join(assignments).encode(), target)
        except OSError as error:
            if not self._failed:
                log.warning("systemd cannot be notified at %s: %s; the daemon goes on", self.address, error)
            self._failed = True
        else:
            self._failed = False


def _status_line(text: str | None) -> tuple[str, ...]:
    return () if text is None else ("STATUS=" + " ".join(text.split()),)
