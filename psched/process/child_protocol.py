"""What the master and one child share: pipes for messages and orders, a heartbeat and a table of runs in memory.

Also the exit codes of children.
"""

from __future__ import annotations

import mmap
import os
import struct
import zlib
from collections.abc import Mapping
from contextlib import suppress

DONE = 0
"""Exit code after a graceful stop, or when `max_request_per_child` is reached."""
FORCED = 75
"""Exit code of a child that was forced to end and gave back its leases: immediate stop, timeout, lease not renewed."""
BOOT_FAILED = 78
"""Exit code of a child that cannot start: the application does not load, or a table is missing."""
LOST_MASTER = 71
"""Exit code of a child whose master is gone, or whose pipes are closed. The codes follow sysexits.h."""

BEAT = "beat"
"""The child ran something since its last beat; beats of an idle child are only in the shared memory."""
RAN = "ran"
"""A run has ended. Sent at most about once a second."""
READY = "ready"
GAVE_BACK = "gave"
"""The leases of the dead children named in the child's spec are given back."""
EMPTY = "empty"
"""The child ends by force and has given back all its leases."""
BYE = "bye"
START_ERROR = "why"
"""Why the child cannot start."""
TROUBLE = "trouble"
"""What keeps the child from working at present; without a reason: nothing any more."""

GRACEFUL = ord("g")
IMMEDIATE = ord("i")
REOPEN = ord("r")

_HEARTBEAT = struct.Struct("d")
_CHUNK = 65536
_LONGEST = 3000  # below PIPE_BUF, so that a message is written whole or not at all


class OwnedDescriptor:
    """A descriptor of ours in a process whose handlers may close it or reuse its number."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self._identity = _identity(descriptor)

    def is_ours(self) -> bool:
        """Return whether the number still stands for the same open file."""
        try:
            return _identity(self.descriptor) == self._identity
        except OSError:
            return False

    def close(self) -> None:
        if self.is_ours():
            os.close(self.descriptor)


class ChildPipe:
    """The child's ends of both pipes. Any of its threads may send."""

    def __init__(self, messages: int, orders: int, heartbeat: mmap.mmap) -> None:
        self._messages = OwnedDescriptor(messages)
        self._heartbeat = heartbeat
        self.orders = OwnedDescriptor(orders)

    def are_ours(self) -> bool:
        """Return whether both ends are still open; a handler may have closed them."""
        return self._messages.is_ours() and self.orders.is_ours()

    def send(self, message: str, reason: str = "") -> None:
        """Send a message without waiting. It is lost when the master is stopped or gone."""
        line = " ".join([message, *reason.split()]).encode()[:_LONGEST] + b"\n"
        with suppress(BlockingIOError, BrokenPipeError):
            if self._messages.is_ours():
                os.write(self._messages.descriptor, line)

    def beat(self, now: float) -> None:
        """Record a heartbeat at `now`, by the monotonic clock."""
        _HEARTBEAT.pack_into(self._heartbeat, 0, now)

    def receive(self) -> bytes | None:
        """Return the orders that have come, b"" when there are none, None when the master is gone."""
        try:
            return os.read(self.orders.descriptor, _CHUNK) or None
        except BlockingIOError:
            return b""

    def close(self) -> None:
        """Close both ends, in a process that a handler has forked."""
        self._messages.close()
        self.orders.close()


class MasterPipe:
    """The master's ends of both pipes of one child."""

    def __init__(self, messages: int, orders: int, heartbeat: mmap.mmap) -> None:
        self.messages = messages
        self._heartbeat = heartbeat
        self.ended = False
        """Whether the other end is closed: the child is dead, or a handler has closed it."""
        self._orders = orders
        self._rest = b""

    def receive(self) -> list[str]:
        """Return the messages that have come. Never waits."""
        while chunk := self._read():
            self._rest += chunk
        *lines, self._rest = self._rest.split(b"\n")
        return [line.decode("utf-8", "replace") for line in lines]

    def last_beat(self) -> float:
        """Return the time of the child's last heartbeat in monotonic seconds; 0.0 before the first."""
        then: float = _HEARTBEAT.unpack_from(self._heartbeat)[0]
        return then

    def send(self, order: int) -> None:
        """Send an order without waiting. A child that no longer reads is dead or frozen; its silence shows that."""
        with suppress(BlockingIOError, BrokenPipeError):
            os.write(self._orders, bytes([order]))

    def close(self) -> None:
        """Close everything: in the master when the child is gone, in its siblings when they are forked."""
        self.close_pipes()
        self._heartbeat.close()

    def close_pipes(self) -> None:
        """Close the pipes and keep the shared memory: in the child itself."""
        os.close(self.messages)
        os.close(self._orders)

    def _read(self) -> bytes:
        try:
            chunk = os.read(self.messages, _CHUNK)
        except BlockingIOError:
            return b""
        self.ended = not chunk
        return chunk


def open_pipes() -> tuple[MasterPipe, tuple[int, int, mmap.mmap]]:
    """Return the master's ends, and the arguments of the child's `ChildPipe`. No descriptor ever blocks."""
    messages_reader, messages_writer = os.pipe()
    orders_reader, orders_writer = os.pipe()
    for descriptor in (messages_reader, messages_writer, orders_reader, orders_writer):
        os.set_blocking(descriptor, False)
    heartbeat = mmap.mmap(-1, _HEARTBEAT.size)
    return MasterPipe(messages_reader, orders_writer, heartbeat), (messages_writer, orders_reader, heartbeat)


def _identity(descriptor: int) -> tuple[int, int]:
    found = os.fstat(descriptor)
    return found.st_dev, found.st_ino


_HEADER = struct.Struct("=II")  # length, checksum; length 0: idle
_CELL_SIZE = 2048
_LONGEST_NAME = _CELL_SIZE - _HEADER.size
_IDLE = bytes(_HEADER.size)


class RunningTable:
    """One cell for each handler thread. Made before the fork; writers share no cell."""

    def __init__(self, cells: int) -> None:
        self.cells = cells
        self._memory = mmap.mmap(-1, cells * _CELL_SIZE)
        self._frozen = False

    def running(self, cell: int, name: str) -> None:
        """Record that handler thread `cell` runs `name`, which is cut after some 2,000 bytes of UTF-8."""
        if not self._frozen:
            self._write(cell, name)

    def freeze(self, names: Mapping[int, str]) -> None:
        """Record `names` by cell, and ignore every later change."""
        self._frozen = True
        for cell, name in names.items():
            self._write(cell, name)

    def _write(self, cell: int, name: str) -> None:
        text = name.encode("utf-8", "replace")[:_LONGEST_NAME]
        start = cell * _CELL_SIZE
        self._memory[start : start + _HEADER.size + len(text)] = _HEADER.pack(len(text), zlib.crc32(text)) + text

    def idle(self, cell: int) -> None:
        if self._frozen:
            return
        start = cell * _CELL_SIZE
        self._memory[start : start + _HEADER.size] = _IDLE

    def names(self) -> tuple[str, ...]:
        """Return the names of the running tasks, by cell. Never raises, whatever is in the memory."""
        entries = (self._read(cell * _CELL_SIZE) for cell in range(self.cells))
        return tuple(entry for entry in entries if entry is not None)

    def close(self) -> None:
        """Free the memory. In the master, once the child is gone and its table has been read for the last time."""
        self._memory.close()

    def _read(self, start: int) -> str | None:
        length, checksum = _HEADER.unpack_from(self._memory, start)
        if not 0 < length <= _LONGEST_NAME:
            return None
        text = self._memory[start + _HEADER.size : start + _HEADER.size + length]
        return text.decode("utf-8", "replace") if zlib.crc32(text) == checksum else None
