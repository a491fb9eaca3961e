from __future__ import annotations

import logging
import os
import select
import threading
from collections.abc import Callable, Collection
from contextlib import suppress

from psched.backends import is_driver_error
from psched.clock import monotonic
from psched.error_messages import one_line
from psched.errors import ConfigError
from psched.process.owned_descriptor import OwnedDescriptor

log = logging.getLogger(__name__)

_WITHOUT_PIPE = 0.05
"""How many seconds `wait_for` waits at most if no descriptor is free for the pipe of the event."""
_SHORTEST_PAUSE = 0.1
"""The pause after the first failed attempt of `retry`, in seconds."""
_LONGEST_PAUSE = 5.0
"""The longest pause between two attempts of `retry`, in seconds."""
_LONG_ATTEMPT = 60.0
"""Seconds. If an attempt of `retry` fails later, it had begun its work, so this counts as the first failure."""


class StopEvent:
    """An event that ends every wait, also a wait for file descriptors. Any thread may set it. It is never cleared."""

    def __init__(self) -> None:
        self._set = threading.Event()
        self.is_set = self._set.is_set
        self.wait = self._set.wait
        self._lock = threading.Lock()
        self._reader: OwnedDescriptor | None = None
        self._writer: OwnedDescriptor | None = None

    def set(self) -> None:
        self._set.set()
        with self._lock:
            self._signal()

    def retry(self, what: str, step: Callable[[], object]) -> None:
        """Call `step` until it succeeds or the event is set. An error that repeats within a minute is logged once."""
        pause, logged = _SHORTEST_PAUSE, ""
        while not self.is_set():
            begun = monotonic()
            try:
                step()
            except Exception as error:  # whatever a driver raises, the database may answer later
                if monotonic() > begun + _LONG_ATTEMPT:
                    pause, logged = _SHORTEST_PAUSE, ""
                if one_line(error) != logged:
                    logged = one_line(error)
                    fault = None if is_driver_error(error) or isinstance(error, ConfigError) else error
                    log.warning("%s failed: %s; retrying", what, logged, exc_info=fault)
                self.wait(pause)
                pause = min(pause * 2, _LONGEST_PAUSE)
            else:
                return

    def wait_for(self, descriptors: Collection[int], seconds: float) -> Collection[int]:
        """Return those of `descriptors` that become readable or closed within `seconds`. `set` ends the wait.

        If the process has no free descriptor, the wait may end earlier.

        `select.poll` waits for whole milliseconds only. For the rest of the time, this method waits only for `set`, and
        then checks the descriptors.
        """
        if not descriptors:
            self._set.wait(seconds)
            return ()
        poll = select.poll()
        for descriptor in descriptors:
            poll.register(descriptor, select.POLLIN)
        try:
            poll.register(self._descriptor(), select.POLLIN)
        except OSError:  # handlers hold all descriptors
            seconds = min(seconds, _WITHOUT_PIPE)
        end = monotonic() + seconds
        ready = [descriptor for descriptor, _ in poll.poll(max(0, int(seconds * 1000)))]
        if not ready and (left := end - monotonic()) > 0:
            self._set.wait(left)
            ready = [descriptor for descriptor, _ in poll.poll(0)]
        return [descriptor for descriptor in ready if descriptor in descriptors]

    def close(self) -> None:
        """Close the pipe. Call this only while no thread waits."""
        with self._lock:
            self._close()

    def _descriptor(self) -> int:
        """Return a descriptor that is readable once the event is set.

        If a handler has closed the previous descriptor, create another.
        """
        with self._lock:
            if self._reader is None or not self._reader.is_ours():
                self._close()
                reader, writer = os.pipe()
                os.set_blocking(writer, False)
                self._reader, self._writer = OwnedDescriptor(reader), OwnedDescriptor(writer)
                if self._set.is_set():
                    self._signal()
            return self._reader.descriptor

    def _close(self) -> None:
        for end in (self._reader, self._writer):
            if end is not None:
                end.close()
        self._reader = self._writer = None

    def _signal(self) -> None:
        """Make the pipe readable for ever."""
        if self._writer is not None and self._writer.is_ours():
            with suppress(OSError):  # the pipe is full, so it is readable already
                os.write(self._writer.descriptor, b".")
