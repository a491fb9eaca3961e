"""Telling systemd how the daemon is (the sd_notify(3) protocol). Used in the master only.

The variables are taken out of the environment, so that what handlers start cannot speak in the daemon's name; a binary
replace hands them on by `Notifier.environment`. Without NOTIFY_SOCKET every method does nothing.
"""

from __future__ import annotations

import logging
import math
import os
import socket
import time
from collections.abc import Callable, MutableMapping
from dataclasses import dataclass

_SEND_TIMEOUT = 0.2  # systemd always reads; if it should not, the master's loop must still turn

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class Notifier:
    """Speaks to the service manager at `address` (None: nobody listens).

    `watchdog_usec` is the time in microseconds after which a silent master is killed, None when it is not watched.
    """

    address: str | None = None
    watchdog_usec: int | None = None
    _failed: bool = False

    @classmethod
    def from_environment(cls, environ: MutableMapping[str, str]) -> Notifier:
        """Take NOTIFY_SOCKET, WATCHDOG_USEC and WATCHDOG_PID out of `environ`.

        A watchdog that is meant for another process (WATCHDOG_PID) is none of ours; an address that is neither a path
        nor an abstract name is nobody's.
        """
        address = environ.pop("NOTIFY_SOCKET", "")
        microseconds = environ.pop("WATCHDOG_USEC", "")
        meant_for = environ.pop("WATCHDOG_PID", "")
        watched = microseconds.isdecimal() and int(microseconds) > 0 and meant_for in ("", str(os.getpid()))
        return cls(address if address[:1] in ("@", "/") else None, int(microseconds) if watched else None)

    @property
    def watchdog_interval(self) -> float | None:
        """Seconds between two calls of `watchdog`: a third of what systemd waits. None when it does not wait."""
        return None if self.watchdog_usec is None or self.address is None else self.watchdog_usec / 3e6

    def environment(self) -> dict[str, str]:
        """Return the variables for the program that replaces this one. WATCHDOG_PID is left out: it has another pid."""
        variables = {} if self.address is None else {"NOTIFY_SOCKET": self.address}
        if self.watchdog_usec is not None:
            variables["WATCHDOG_USEC"] = str(self.watchdog_usec)
        return variables

    def ready(self, status: str | None = None) -> None:
        """Say that the children are up, or that a reload has ended."""
        self._send("READY=1", *_status(status))

    def reloading(self) -> None:
        """Say that the configuration is being reloaded; `ready` ends it."""
        self._send("RELOADING=1", f"MONOTONIC_USEC={time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000}")

    def stopping(self, status: str | None = None) -> None:
        """Say that the daemon is going to end."""
        self._send("STOPPING=1", *_status(status))

    def status(self, text: str) -> None:
        """Show `text` as one line in `systemctl status`."""
        self._send(*_status(text))

    def watchdog(self) -> None:
        """Say that the loop still turns."""
        self._send("WATCHDOG=1")

    def mainpid(self, pid: int) -> None:
        """Make `pid` the main process. Only the present main process is heard (NotifyAccess=main)."""
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
            self._warn_once(error)
        else:
            self._failed = False

    def _warn_once(self, error: OSError) -> None:
        if not self._failed:
            _log.warning("systemd cannot be notified at %s: %s; the daemon goes on", self.address, error)
        self._failed = True


def _status(text: str | None) -> tuple[str, ...]:
    return () if text is None else ("STATUS=" + " ".join(text.split()),)


_STATUS_INTERVAL = 1.0


class SystemdReporter:
    """Feeds the watchdog as long as the loop turns, and keeps the status line up to date."""

    def __init__(self, notifier: Notifier, ready: Callable[[], None]) -> None:
        """`ready` is called once, when the children are up."""
        self._notifier = notifier
        self._ready = ready
        self._next_watchdog = -math.inf if notifier.watchdog_interval is not None else math.inf
        self._next_status = -math.inf
        self._status = ""
        self._is_behind = False
        self._reloading = False

    @property
    def deadline(self) -> float:
        """When `tick` is due at the latest, monotonic."""
        return min(self._next_watchdog, self._next_status if self._is_behind else math.inf)

    def came_up(self, status: str) -> None:
        """The children are up."""
        self._notifier.ready(status)
        self._ready()

    def reloading(self) -> None:
        """A restart is being rehearsed."""
        self._reloading = True
        self._notifier.reloading()

    def reloaded(self) -> None:
        """It is over, well or not; may be said at any time."""
        if self._reloading:
            self._reloading = False
            self._notifier.ready()

    def stopping(self) -> None:
        """The daemon is going to end."""
        self._notifier.stopping()

    def tick(self, now: float, status: str) -> None:
        """Say that the loop turns, and what it looks after."""
        interval = self._notifier.watchdog_interval
        if interval is not None and now >= self._next_watchdog:
            self._next_watchdog = now + interval
            self._notifier.watchdog()
            self._status = ""  # said anew now and then: what a new master says before it is known as one is not heard
        if status != self._status and now >= self._next_status:
            self._status, self._next_status = status, now + _STATUS_INTERVAL
            self._notifier.status(status)
        self._is_behind = status != self._status
