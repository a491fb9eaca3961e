"""What the master and one child share: two pipes with their messages, a heartbeat, and exit codes."""

from __future__ import annotations

import mmap
import os
import struct
from contextlib import ExitStack, suppress

from psched.process.owned_descriptor import OwnedDescriptor

DONE = 0
"""Exit code after a graceful stop, or after `max_request_per_child` runs. These exit codes follow sysexits.h."""
FORCED = 75
"""Exit code after a forced exit: an immediate stop, a timeout, or a lease that was not renewed."""
BOOT_FAILED = 78
"""Exit code if the child cannot start: the application does not load, or a table is missing."""
LOST_MASTER = 71
"""Exit code if the master is gone, or the pipes are closed."""

BEAT = "beat"
"""Message: the child has run a task since its last heartbeat. An idle child only records heartbeats in the shared
memory.
"""
RAN = "ran"
"""Message: a run has ended. Sent at most about once a second."""
READY = "ready"
RECOVERED = "recovered"
"""Message: the child has released the leases of the dead children that its spec names."""
APPLIED = "applied"
"""Message: the child has applied the schedules that the application declares (`apply_at_start`), or can never apply
them."""
EMPTY = "empty"
"""Message: a forced exit is in progress, and the child has released all its leases."""
BYE = "bye"
"""Message: the child ends in an orderly way, and holds no lease."""
START_ERROR = "why"
"""Message: the child cannot start; the reason follows."""
TROUBLE = "trouble"
"""Message: the child cannot work now; the reason follows. Without a reason: the child works again."""

_HEARTBEAT = struct.Struct("d")
_CHUNK = 65536
_LONGEST = 3000  # bytes; less than PIPE_BUF, so that a message is never written in part


class ChildPipe:
    """The child's ends of both pipes. Any thread of the child may send."""

    def __init__(self, messages: int, orders: int, heartbeat: mmap.mmap) -> None:
        self._messages = OwnedDescriptor(messages)
        self._heartbeat = heartbeat
        self.orders = OwnedDescriptor(orders)

    def are_ours(self) -> bool:
        """Return whether both ends are open. A handler may have closed them."""
        return self._messages.is_ours() and self.orders.is_ours()

    def send(self, message: str, reason: str = "") -> None:
        """Send a message without waiting. The message is lost if the master is stopped or gone."""
        line = " ".join([message, *reason.split()]).encode()[:_LONGEST] + b"\n"
        with suppress(BlockingIOError, BrokenPipeError):
            if self._messages.is_ours():
                os.write(self._messages.descriptor, line)

    def beat(self, now: float) -> None:
        """Record a heartbeat at `now`, in monotonic seconds."""
        _HEARTBEAT.pack_into(self._heartbeat, 0, now)

    def receive(self) -> bytes | None:
        """Return the received orders as signal numbers; b"" if there are none, None if the master is gone."""
        try:
            return os.read(self.orders.descriptor, _CHUNK) or None
        except BlockingIOError:
            return b""

    def close(self) -> None:
        """Close both ends. Called in the master, and in a process that a handler has forked."""
        self._messages.close()
        self.orders.close()


class MasterPipe:
    """The master's ends of both pipes of one child."""

    def __init__(self, messages: int, orders: int, heartbeat: mmap.mmap) -> None:
        self.messages = messages
        self._heartbeat = heartbeat
        self.ended = False
        """Whether the child has closed its end: the child is dead, or a handler has closed the pipe."""
        self._orders = orders
        self._rest = b""

    def receive(self) -> list[str]:
        """Return the received messages, without waiting."""
        while chunk := self._read():
            self._rest += chunk
        *lines, self._rest = self._rest.split(b"\n")
        return [line.decode("utf-8", "replace") for line in lines]

    def last_beat(self) -> float:
        """Return the monotonic time of the child's last heartbeat, or 0.0 if there was none."""
        then: float = _HEARTBEAT.unpack_from(self._heartbeat)[0]
        return then

    def send(self, order: int) -> None:
        """Send an order without waiting. An order is the number of the signal with the same meaning.

        The order may be lost if the child does not read orders. Such a child is dead or frozen: its heartbeats stop.
        """
        with suppress(BlockingIOError, BrokenPipeError):
            os.write(self._orders, bytes([order]))

    def close(self) -> None:
        """Close pipes and memory. Called in the master when the child is gone, and in siblings after their fork."""
        self.close_pipes()
        self._heartbeat.close()

    def close_pipes(self) -> None:
        """Close the master's ends of the pipes, but keep the shared memory.

        Called in the child, because the child writes to this memory.
        """
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
    """Return the master's and the next child's ends of the pipes. No descriptor ever blocks.

    Raises OSError, and leaves nothing open, if there are too few descriptors.
    """
    with ExitStack() as opened:
        ends: list[int] = []
        for _ in range(2):
            for descriptor in os.pipe():
                opened.callback(os.close, descriptor)
                os.set_blocking(descriptor, False)
                ends.append(descriptor)
        heartbeat = mmap.mmap(-1, _HEARTBEAT.size)
        opened.pop_all()
    messages_reader, messages_writer, orders_reader, orders_writer = ends
    return (
        MasterPipe(messages_reader, orders_writer, heartbeat),
        ChildPipe(messages_writer, orders_reader, heartbeat),
    )
