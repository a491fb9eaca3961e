"""What the master and one child share: two pipes, a heartbeat, a table of runs in shared memory, and exit codes."""

from __future__ import annotations

import mmap
import os
import struct
import zlib
from collections.abc import Mapping
from contextlib import suppress

DONE = 0
"""Exit code after a graceful stop, or at `max_request_per_child`. The codes follow sysexits.h."""
FORCED = 75
"""Exit code after a forced end (immediate stop, timeout, lease not renewed) that has released every lease."""
BOOT_FAILED = 78
"""The child cannot start: the application does not load, or a table is missing."""
LOST_MASTER = 71
"""The master is gone, or the pipes are closed."""

BEAT = "beat"
"""The child ran a task since its last heartbeat. An idle child records heartbeats in the shared memory only."""
RAN = "ran"
"""A run has ended. Sent about once a second at most."""
READY = "ready"
RECOVERED = "recovered"
"""The leases of the dead children named in the child's spec are released."""
EMPTY = "empty"
"""The child ends by force and has released all its leases."""
BYE = "bye"
"""The child ends in an orderly way, without a lease."""
START_ERROR = "why"
"""The child cannot start, for the reason given."""
TROUBLE = "trouble"
"""The child cannot work at present, for the reason given. Without a reason: the child works again."""

_HEARTBEAT = struct.Struct("d")
_CHUNK = 65536
_LONGEST = 3000  # below PIPE_BUF, so that a message is written whole or not at all


class OwnedDescriptor:
    """A descriptor in a process whose handlers may close it or reuse its number."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self._identity = _identity(descriptor)

    def is_ours(self) -> bool:
        """Return whether the number still means the same open file."""
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
        """Return whether both ends are open: a handler may have closed them."""
        return self._messages.is_ours() and self.orders.is_ours()

    def send(self, message: str, reason: str = "") -> None:
        """Send a message without waiting. The message is lost if the master is stopped or gone."""
        line = " ".join([message, *reason.split()]).encode()[:_LONGEST] + b"\n"
        with suppress(BlockingIOError, BrokenPipeError):
            if self._messages.is_ours():
                os.write(self._messages.descriptor, line)

    def beat(self, now: float) -> None:
        """Record a heartbeat at `now`, by the monotonic clock."""
        _HEARTBEAT.pack_into(self._heartbeat, 0, now)

    def receive(self) -> bytes | None:
        """Return the orders that have come (signal numbers), b"" if there are none, None if the master is gone."""
        try:
            return os.read(self.orders.descriptor, _CHUNK) or None
        except BlockingIOError:
            return b""

    def close(self) -> None:
        """Close both ends: in the master, and in a process that a handler has forked."""
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
        """Return the messages that have come, without waiting."""
        while chunk := self._read():
            self._rest += chunk
        *lines, self._rest = self._rest.split(b"\n")
        return [line.decode("utf-8", "replace") for line in lines]

    def last_beat(self) -> float:
        """Return the monotonic time of the child's last heartbeat, 0.0 before the first."""
        then: float = _HEARTBEAT.unpack_from(self._heartbeat)[0]
        return then

    def send(self, order: int) -> None:
        """Send an order, the number of the signal that means the same, without waiting.

        A child that does not read is dead or frozen, and stops its heartbeats.
        """
        with suppress(BlockingIOError, BrokenPipeError):
            os.write(self._orders, bytes([order]))

    def close(self) -> None:
        """Close pipes and memory: in the master when the child is gone, in siblings after their fork."""
        self.close_pipes()
        self._heartbeat.close()

    def close_pipes(self) -> None:
        """Close the master's ends of the pipes, but keep the shared memory. Called in the child, which writes to it."""
        os.close(self.messages)
        os.close(self._orders)

    def _read(self) -> bytes:
        try:
            chunk = os.read(self.messages, _CHUNK)
        except BlockingIOError:
            return b""
        self.ended = not chunk
        return chunk


def open_pipes() -> tuple[MasterPipe, ChildPipe]:
    """Return the ends of the master and of its next child. No descriptor ever blocks."""
    messages_reader, messages_writer = os.pipe()
    orders_reader, orders_writer = os.pipe()
    for descriptor in (messages_reader, messages_writer, orders_reader, orders_writer):
        os.set_blocking(descriptor, False)
    heartbeat = mmap.mmap(-1, _HEARTBEAT.size)
    return (
        MasterPipe(messages_reader, orders_writer, heartbeat),
        ChildPipe(messages_writer, orders_reader, heartbeat),
    )


def _identity(descriptor: int) -> tuple[int, int]:
    found = os.fstat(descriptor)
    return found.st_dev, found.st_ino


_HEADER = struct.Struct("=II")  # length, checksum; length 0: idle
_CELL_SIZE = 2048
_LONGEST_NAME = _CELL_SIZE - _HEADER.size
_IDLE = bytes(_HEADER.size)


class RunningTable:
    """One cell for each handler thread, in memory shared since before the fork. Each cell has one writer."""

    def __init__(self, cells: int) -> None:
        self.cells = cells
        self._memory = mmap.mmap(-1, cells * _CELL_SIZE)
        self._frozen = False

    def running(self, cell: int, name: str) -> None:
        """Record that handler thread `cell` runs `name`, cut after some 2,000 bytes of UTF-8."""
        if not self._frozen:
            self._write(cell, name)

    def freeze(self, names: Mapping[int, str]) -> None:
        """Record `names` (cell → name) for good: `running` and `idle` do nothing from now on."""
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
        """Return the names of the running tasks, in the order of cells. Never raises, whatever is in the memory."""
        entries = (self._read(cell * _CELL_SIZE) for cell in range(self.cells))
        return tuple(entry for entry in entries if entry is not None)

    def close(self) -> None:
        self._memory.close()

    def _read(self, start: int) -> str | None:
        length, checksum = _HEADER.unpack_from(self._memory, start)
        if not 0 < length <= _LONGEST_NAME:
            return None
        text = self._memory[start + _HEADER.size : start + _HEADER.size + length]
        return text.decode("utf-8", "replace") if zlib.crc32(text) == checksum else None
