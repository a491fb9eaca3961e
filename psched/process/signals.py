"""The signals of psched, and a queue that makes a descriptor readable when a signal arrives.

For master and children.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Collection
from types import FrameType
from typing import Any

from psched.process.owned_descriptor import OwnedDescriptor

UPGRADE_NOW: int = getattr(signal, "SIGEMT", None) or signal.SIGRTMIN
"""The signal for an immediate binary upgrade: EMT on systems that have it, else RTMIN."""

MASTER_SIGNALS: frozenset[int] = frozenset(
    {
        signal.SIGTERM,
        signal.SIGINT,
        signal.SIGQUIT,
        signal.SIGUSR1,
        signal.SIGHUP,
        signal.SIGWINCH,
        signal.SIGUSR2,
        UPGRADE_NOW,
    }
)
"""The signals that `Supervisor` has handlers for."""

_CHUNK = 4096


class SignalQueue:
    """Collects the signals of a process. Create one per process, and call `install` in the main thread.

    Python writes the number of each signal to a pipe as soon as it arrives, even while a C call holds the interpreter.
    """

    def __init__(self) -> None:
        reader, writer = os.pipe()
        os.set_blocking(reader, False)
        os.set_blocking(writer, False)
        self.reader = OwnedDescriptor(reader)
        self._writer = OwnedDescriptor(writer)
        self._before: dict[int, Any] = {}

    def install(self, numbers: Collection[int]) -> None:
        signal.set_wakeup_fd(self._writer.descriptor, warn_on_full_buffer=False)
        for number in numbers:
            self._before[number] = signal.signal(number, _wake)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, numbers)

    def take(self) -> list[int]:
        """Return the numbers of the signals that have arrived, in order. Never waits."""
        if not self.reader.is_ours():
            return []
        try:
            return list(os.read(self.reader.descriptor, _CHUNK))
        except BlockingIOError:
            return []

    def abandon(self) -> None:
        """Stop collecting signals. Called in a forked process. The signal handlers stay installed, but do nothing."""
        signal.set_wakeup_fd(-1)
        self.reader.close()
        self._writer.close()

    def uninstall(self) -> None:
        self.abandon()
        for number, handler in self._before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)


def name_of(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _wake(number: int, frame: FrameType | None) -> None:
    """Do nothing: before Python calls this handler, Python has written to the wakeup descriptor."""
