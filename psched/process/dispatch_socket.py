"""The sockets over which the fetching child sends tasks to its siblings.

The master creates one `DispatchSocket` for each configuration that it loads. A handler child creates a pair of
connected sockets and sends one end over the dispatch socket to the current fetching child. If the fetching child dies,
its siblings connect to the next fetching child in the same way. A message may contain JSON values and bytes; a tuple
arrives as a list. msgspec packs the messages in a third of the time that JSON takes (2026-11-28).
"""

from __future__ import annotations

import json
import socket
import struct
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any

import msgspec
from msgspec import msgpack

from psched.fork_safety import register_for_fork
from psched.model import Claim
from psched.process.owned_descriptor import OwnedDescriptor

_HEADER = struct.Struct("=I?")
"""The header of a message: the length of the body, and whether the body is JSON instead of msgpack."""
_CHUNK = 1 << 18
_LONGEST_NAME = 255


class Connection:
    """One end of a connection. Nothing blocks: `send` keeps bytes that do not fit, and `flush` sends them later.

    A process that a handler forks closes its copy. Otherwise the other end would stay open as long as that process
    lives, even after the end of the child.
    """

    def __init__(self, end: socket.socket) -> None:
        end.setblocking(False)
        self._socket = end
        self._descriptor = OwnedDescriptor(end.fileno())
        self._received = bytearray()
        self._unsent = bytearray()
        self._sending: deque[tuple[int, Any]] = deque()
        """The messages that are not sent completely. The number before a message says how many bytes this connection
        has sent in total when the message is complete."""
        self._queued = self._sent = 0
        self.is_open = True
        """Whether the process at the other end is alive, according to the last `send` or `receive`."""
        self._is_closed = False
        register_for_fork(self)

    def fileno(self) -> int:
        return self._socket.fileno()

    @property
    def unsent(self) -> list[Any]:
        """The messages that were not sent, or only in part. If the connection has ended, they never arrive."""
        return [message for _, message in self._sending]

    @property
    def has_unsent(self) -> bool:
        return self.is_open and bool(self._unsent)

    @property
    def may_receive(self) -> bool:
        """Whether `receive` may yield messages. True even after a failed `send`, until all messages are received."""
        return not self._is_closed

    @property
    def has_ended(self) -> bool:
        """Whether the process at the other end is gone and no more messages can be received."""
        try:
            return not self._is_readable() or not self._socket.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return False
        except OSError:
            return True

    def send(self, message: Any) -> None:
        """Send `message`. If the connection is closed, do nothing."""
        if self._is_usable():
            is_json = False
            try:
                body = msgpack.encode(message)
            except (
                OverflowError,
                UnicodeEncodeError,
                RecursionError,
            ):  # integers of more than 64 bits, lone surrogates
                body, is_json = json.dumps(message).encode(), True
            self._unsent += _HEADER.pack(len(body), is_json) + body
            self._queued += _HEADER.size + len(body)
            self._sending.append((self._queued, message))
            self.flush()

    def flush(self) -> None:
        with suppress(BlockingIOError):
            try:
                while self._unsent:
                    sent = self._socket.send(self._unsent)
                    del self._unsent[:sent]
                    self._sent += sent
                    while self._sending and self._sending[0][0] <= self._sent:
                        self._sending.popleft()
            except BlockingIOError:
                raise
            except OSError:  # the other process is gone; do not close, as another thread may wait for the descriptor
                self.is_open = False

    def receive(self) -> Iterator[Any]:
        """Yield the received messages. Close the connection if the process at the other end is gone.

        Messages that the other process sent before its end still arrive, even if `send` noticed the end first.
        """
        while self._is_readable():
            try:
                chunk = self._socket.recv(_CHUNK)
            except BlockingIOError:
                break
            except OSError:
                chunk = b""
            if not chunk:
                self.close()
            self._received += chunk
            if len(chunk) < _CHUNK:
                break
        while len(self._received) >= _HEADER.size:
            length, is_json = _HEADER.unpack_from(self._received)
            end = _HEADER.size + length
            if len(self._received) < end:
                break
            body = self._received[_HEADER.size : end]
            del self._received[:end]
            yield json.loads(body) if is_json else msgpack.decode(body)

    def receive_last(self) -> Iterator[Any]:
        """Yield the received messages, then close the connection. From now on, the other end cannot send any."""
        if self._is_readable():
            with suppress(OSError):
                self._socket.shutdown(socket.SHUT_RD)
        while self._is_readable():
            yield from self.receive()
        self.close()

    def close(self) -> None:
        self.is_open, self._is_closed = False, True
        if self._descriptor.is_ours():
            self._socket.close()
        else:
            self._socket.detach()

    def reset_after_fork(self) -> None:
        """Close this process's copy of the socket. Called in a forked process. The parent's connection stays open."""
        self.close()

    def _is_usable(self) -> bool:
        """Return whether messages can be sent. They cannot if a handler has closed the descriptor."""
        self.is_open = self.is_open and self._descriptor.is_ours()
        return self.is_open

    def _is_readable(self) -> bool:
        """Return whether messages can be received. This may be true even if the other process is known to be gone."""
        is_ours = not self._is_closed and self._descriptor.is_ours()
        self.is_open = self.is_open and is_ours
        return is_ours


class ConnectionSocket:
    """Both ends of a datagram socket. Handler children send connections; the fetching child receives them."""

    def __init__(self) -> None:
        """Raises OSError if no descriptors are left."""
        self._taker, self._sender = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._taker.setblocking(False)
        self._sender.setblocking(False)
        self._descriptor = OwnedDescriptor(self._sender.fileno())

    def fileno(self) -> int:
        """Return a descriptor that is readable when a child has connected."""
        return self._taker.fileno()

    def connect(self, name: str) -> Connection:
        """Return a connection to the current fetching child, or to the next fetching child. Raises OSError."""
        if not self._descriptor.is_ours():  # the number may belong to a socket of a handler
            raise OSError("a handler has closed the socket to the fetching child")
        mine, other = socket.socketpair()
        try:
            with other:
                socket.send_fds(self._sender, [name.encode()], [other.fileno()])
        except OSError:
            mine.close()
            raise
        return Connection(mine)

    def accept(self) -> Iterator[tuple[str, Connection]]:
        """Yield each new connection with the name of the child that made it."""
        while True:
            try:
                name, descriptors, _, _ = socket.recv_fds(self._taker, _LONGEST_NAME, 1)
            except BlockingIOError:
                return
            for descriptor in descriptors:
                yield name.decode(), Connection(socket.socket(fileno=descriptor))

    def close(self) -> None:
        self._taker.close()
        self._sender.close()


class DispatchSocket(ConnectionSocket):
    """The socket for connections that carry tasks. `settlements` is the socket for connections that settle runs."""

    def __init__(self, holder: str) -> None:
        """`holder`: the holder of the leases of all children that use this socket.

        Raises OSError if no descriptors are left.
        """
        super().__init__()
        self.holder = holder
        self.settlements = ConnectionSocket()

    def close(self) -> None:
        super().close()
        self.settlements.close()


_DECODER = msgpack.Decoder(list[Claim])
"""Decodes claims directly into tuples and dataclasses. Encoding and decoding then take 2 µs per task; by way of plain
values they take 5.5 µs (2026-11-28)."""

Encoded = bytes | str


def encode_claims(claims: Sequence[Claim]) -> Encoded:
    """Return the claims as msgpack, or as JSON if they have values that msgpack cannot store.

    Such values are large integers and lone surrogates.
    """
    try:
        return msgpack.encode(claims, enc_hook=dict)  # `dict` converts headers that are another kind of mapping
    except (OverflowError, UnicodeEncodeError, RecursionError):
        return json.dumps(msgspec.to_builtins(claims, enc_hook=dict))


def decode_claims(encoded: Encoded) -> list[Claim]:
    if isinstance(encoded, bytes):
        return _DECODER.decode(encoded)
    return msgspec.convert(json.loads(encoded), list[Claim])
