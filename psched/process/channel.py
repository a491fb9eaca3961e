"""What a child's exit code tells its master (chosen after sysexits, where it has a word for it)."""

from __future__ import annotations

import mmap
import os
import struct
from contextlib import suppress

DONE = 0
"""Left in good order: a graceful stop, or `max_request_per_child` reached."""
FORCED = 75
"""Left by force and gave back what it held: an immediate stop, a timeout, a lease that could not be renewed."""
BOOT_FAILED = 78
"""Could not begin: the application does not load, or a table is missing."""
LOST_MASTER = 71
"""The master is gone, or the pipe to it."""


BEAT = "beat"
RAN = "ran"
"""A run has ended. Not said after each: a word now and then is enough."""
READY = "ready"
GAVE_BACK = "gave"
EMPTY = "empty"
BYE = "bye"
WHY = "why"
TROUBLE = "trouble"
"""What keeps it from working at present; without a reason: nothing any more."""

GRACEFUL = ord("g")
IMMEDIATE = ord("i")
REOPEN = ord("r")

_PULSE = struct.Struct("d")
_CHUNK = 65536
_LONGEST = 3000  # below PIPE_BUF, so that a word is written whole or not at all


class OwnedDescriptor:
    """A descriptor of ours in a process whose handlers may close it or reuse its number."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self._identity = _identity(descriptor)

    def is_ours(self) -> bool:
        """Tell whether the number still stands for what it stood for."""
        try:
            return _identity(self.descriptor) == self._identity
        except OSError:
            return False

    def close(self) -> None:
        """Close it, if it is still ours."""
        if self.is_ours():
            os.close(self.descriptor)


class ChildPipe:
    """What the child has of the two pipes. Any of its threads may speak."""

    def __init__(self, words: int, orders: int, pulse: mmap.mmap) -> None:
        self._words = OwnedDescriptor(words)
        self._pulse = pulse
        self.orders = OwnedDescriptor(orders)

    def are_ours(self) -> bool:
        """Tell whether both ends are still there; a handler may have closed them."""
        return self._words.is_ours() and self.orders.is_ours()

    def say(self, word: str, reason: str = "") -> None:
        """Send a word without waiting. A master that is stopped, or gone, misses it."""
        line = " ".join([word, *reason.split()]).encode()[:_LONGEST] + b"\n"
        with suppress(BlockingIOError, BrokenPipeError):
            if self._words.is_ours():
                os.write(self._words.descriptor, line)

    def beat(self, now: float) -> None:
        """Show that this process lives, `now` by the monotonic clock."""
        _PULSE.pack_into(self._pulse, 0, now)

    def listen(self) -> bytes | None:
        """Return the orders that have come, b"" when there are none, None when no more will come."""
        try:
            return os.read(self.orders.descriptor, _CHUNK) or None
        except BlockingIOError:
            return b""

    def close(self) -> None:
        """Close both ends; in a process forked by a handler, which is none of the master's children."""
        self._words.close()
        self.orders.close()


class MasterPipe:
    """What the master has of the two pipes of one child."""

    def __init__(self, words: int, orders: int, pulse: mmap.mmap) -> None:
        self.words = words
        self._pulse = pulse
        self.ended = False
        """Nobody has the other end any more: the child is dead, or a handler has closed it."""
        self._orders = orders
        self._rest = b""

    def listen(self) -> list[str]:
        """Return the words that have come. Never waits."""
        while chunk := self._read():
            self._rest += chunk
        *lines, self._rest = self._rest.split(b"\n")
        return [line.decode("utf-8", "replace") for line in lines]

    def beaten(self) -> float:
        """Return when it has beaten last, in monotonic seconds; 0.0: not yet."""
        then: float = _PULSE.unpack_from(self._pulse)[0]
        return then

    def order(self, order: int) -> None:
        """Send an order without waiting. A child that no longer reads is dead or frozen, and found out as such."""
        with suppress(BlockingIOError, BrokenPipeError):
            os.write(self._orders, bytes([order]))

    def close(self) -> None:
        """Close both ends: in the master when the child is gone, in its siblings when they are born."""
        self.close_pipes()
        self._pulse.close()

    def close_pipes(self) -> None:
        """Close them, and leave the pulse: in the child itself."""
        os.close(self.words)
        os.close(self._orders)

    def _read(self) -> bytes:
        try:
            chunk = os.read(self.words, _CHUNK)
        except BlockingIOError:
            return b""
        self.ended = not chunk
        return chunk


def open_pipes() -> tuple[MasterPipe, tuple[int, int, mmap.mmap]]:
    """Return the master's ends, and the child's: descriptors for words and orders, the pulse. Nothing ever blocks."""
    words_reader, words_writer = os.pipe()
    orders_reader, orders_writer = os.pipe()
    for descriptor in (words_reader, words_writer, orders_reader, orders_writer):
        os.set_blocking(descriptor, False)
    pulse = mmap.mmap(-1, _PULSE.size)
    return MasterPipe(words_reader, orders_writer, pulse), (words_writer, orders_reader, pulse)


def _identity(descriptor: int) -> tuple[int, int]:
    found = os.fstat(descriptor)
    return found.st_dev, found.st_ino
