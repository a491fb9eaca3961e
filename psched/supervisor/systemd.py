"""Reports to systemd: state, status line and watchdog, by the sd_notify(3) protocol. Only in the master.

NOTIFY_SOCKET, WATCHDOG_USEC and WATCHDOG_PID are removed from the environment, so that processes started by handlers
cannot report in the name of the daemon. A binary upgrade passes the first two to the new master
(`Notifier.environment`). Without NOTIFY_SOCKET every method does nothing.
"""

from __future__ import annotations

import logging
import math
import os
import socket
import time
from collections.abc import MutableMapping
from dataclasses import dataclass

_SEND_TIMEOUT = 0.2  # seconds; a service manager that does not read must not block the master
_STATUS_INTERVAL = 1.0

log = logging.getLogger(__name__)


@dataclass(slots=True)
class Notifier:
    """Sends messages to systemd.

    `watchdog_usec`: microseconds after which systemd kills a silent master; None: never.
    """

    address: str | None = None
    watchdog_usec: int | None = None
    _failed: bool = False
    _reloading: bool = False
    _next_watchdog: float = -math.inf
    _next_status: float = -math.inf
    _sent_status: str = ""
    _is_behind: bool = False

    @classmethod
    def from_environment(cls, environ: MutableMapping[str, str]) -> Notifier:
        """Read systemd's variables, and remove them from `environ`.

        If WATCHDOG_PID names another process, the watchdog is ignored.
        """
        address = environ.pop("NOTIFY_SOCKET", "")
        microseconds = environ.pop("WATCHDOG_USEC", "")
        meant_for = environ.pop("WATCHDOG_PID", "")
        watched = microseconds.isdecimal() and int(microseconds) > 0 and meant_for in ("", str(os.getpid()))
        return cls(address if address[:1] in ("@", "/") else None, int(microseconds) if watched else None)

    @property
    def watchdog_interval(self) -> float | None:
        """Seconds between two messages to the watchdog: a third of the time after which systemd kills the master."""
        return None if self.watchdog_usec is None or self.address is None else self.watchdog_usec / 3e6

    def environment(self) -> dict[str, str]:
        """Return the variables for the program that replaces this one.

        WATCHDOG_PID is left out, because it names this process.
        """
        variables = {} if self.address is None else {"NOTIFY_SOCKET": self.address}
        if self.watchdog_usec is not None:
            variables["WATCHDOG_USEC"] = str(self.watchdog_usec)
        return variables

    @property
    def deadline(self) -> float:
        watchdog = math.inf if self.watchdog_interval is None else self._next_watchdog
        return min(watchdog, self._next_status if self._is_behind else math.inf)

    def reloading(self) -> None:
        self._reloading = True
        self.notify(RELOADING=1, MONOTONIC_USEC=time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000)

    def reloaded(self) -> None:
        if self._reloading:
            self._reloading = False
            self.notify(READY=1)

    def tick(self, now: float, status: str) -> None:
        """Notify the watchdog if that is due. Send a changed `status`, at most once a second."""
        interval = self.watchdog_interval
        if interval is not None and now >= self._next_watchdog:
            self._next_watchdog = now + interval
            self.notify(WATCHDOG=1)
            self._sent_status = ""  # send it again: systemd ignores a new master until that is the main process
        if status != self._sent_status and now >= self._next_status:
            self._sent_status, self._next_status = status, now + _STATUS_INTERVAL
            self.notify(STATUS=status)
        self._is_behind = status != self._sent_status

    def notify(self, **variables: object) -> None:
        """Send variables of sd_notify(3) in one message, each value on one line."""
        if self.address is None:
            return
        message = "\n".join(f"{name}={' '.join(str(value).split())}" for name, value in variables.items())
        target = "\0" + self.address[1:] if self.address.startswith("@") else self.address
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as channel:
                channel.settimeout(_SEND_TIMEOUT)
                channel.sendto(message.encode(), target)
        except OSError as error:
            if not self._failed:
                log.warning("cannot notify systemd at %s: %s; the daemon continues", self.address, error)
            self._failed = True
        else:
            self._failed = False
