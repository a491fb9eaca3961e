"""The terminal a foreground master was started on, if any; WINCH, HUP and Ctrl-C depend on it. In the master."""

from __future__ import annotations

import os
import signal


class Terminal:
    """Made when the master starts, before its handlers are installed."""

    def __init__(self) -> None:
        self._had_one = _attached()
        self.is_nohup = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
        """Whether the master was started by nohup: HUP was to be ignored."""

    @property
    def attached(self) -> bool:
        """Whether a controlling terminal is there now."""
        return self._had_one and _attached()

    @property
    def closed(self) -> bool:
        """Whether the terminal that was there at the start is gone."""
        return self._had_one and not _attached()


def _attached() -> bool:
    try:
        descriptor = os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return False
    os.close(descriptor)
    return True
