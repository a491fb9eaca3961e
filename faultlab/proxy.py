"""A TCP proxy that delays, drops and cuts connections as tests request. Runs in a thread of the test process.

Traps search for bytes in what clients send. They cannot see the text of a statement that was prepared on the server
earlier, or that is encrypted by TLS.
"""

from __future__ import annotations

import asyncio
import enum
import socket
import struct
import threading
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Self, TypeVar

from faultlab.ports import HOST, free_port

Result = TypeVar("Result")

_CHUNK = 65_536
_OVERLAP = 1_024
"""The number of earlier bytes that are searched again, because chunks may cut a pattern in two."""


class _Kind(enum.Enum):
    LOSE_REQUEST = enum.auto()
    LOSE_ANSWER = enum.auto()
    HOLD = enum.auto()


class Trap:
    """Waits for the next request that contains `pattern`, on any connection. A trap springs once."""

    def __init__(self, pattern: bytes, kind: _Kind, loop: asyncio.AbstractEventLoop) -> None:
        self.pattern = pattern
        self.kind = kind
        self._loop = loop
        self._sprung = threading.Event()
        self._released = asyncio.Event()

    @property
    def sprung(self) -> bool:
        """Whether the trap has sprung."""
        return self._sprung.is_set()

    def wait(self, seconds: float = 10) -> None:
        """Wait until the trap has sprung. Raises AssertionError after `seconds`."""
        assert self._sprung.wait(seconds), f"no request with {self.pattern!r} came within {seconds} s"

    def release(self) -> None:
        """Let the request pass that this trap holds."""
        self._loop.call_soon_threadsafe(self._released.set)

    def spring(self) -> None:
        """Record that the trap has sprung. Called by the proxy."""
        self._sprung.set()

    async def released(self) -> None:
        """Wait until the test lets the held request pass. Called by the proxy."""
        await self._released.wait()


class Proxy:
    """Listens on `port` within its context, and forwards to the loopback port `target`. All methods act immediately."""

    def __init__(self, target: int) -> None:
        self.port = 0
        self.target = target
        self._delay = 0.0
        self._traps: list[Trap] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._faults: list[dict[str, Any]] = []

    def __enter__(self) -> Self:
        self._loop = asyncio.new_event_loop()
        self._loop.set_exception_handler(lambda _, context: self._faults.append(context))
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxy")
        self._thread.start()
        self._passing = asyncio.Event()
        self._passing.set()
        self._listener: asyncio.Server | None = None
        self.port = free_port()
        self._run(self._listen)
        return self

    def __exit__(self, *error: object) -> None:
        try:
            self.refuse()
            self._run(self._finish)
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()
        assert not self._faults, f"the proxy itself failed: {self._faults}"

    # What the network does

    def pass_on(self) -> None:
        """End all faults: listen, forward without delay, and forward what a black hole has held back."""
        self._delay = 0.0
        self._run(self._listen)
        self._call(self._passing.set)

    def lead_to(self, target: int) -> None:
        """Reset all connections. From now on, forward new connections to another loopback port."""
        self.target = target
        self.cut()

    def cut(self) -> None:
        """Reset all connections on both sides. New connections are accepted."""
        self._call(self._reset_all)

    def refuse(self) -> None:
        """Refuse new connections until `pass_on`.

        Existing ones continue. Together with `cut`, the host seems to be gone.
        """
        self._call(self._unlisten)

    def black_hole(self) -> None:
        """Accept and keep connections, but forward nothing until `pass_on`."""
        self._call(self._passing.clear)

    def delay(self, seconds: float) -> None:
        """Delay each request by `seconds` until `pass_on`."""
        self._delay = seconds

    # What happens to one request

    def lose_request(self, pattern: bytes) -> Trap:
        """Reset the connection of the next request with these bytes, before the request is forwarded."""
        return self._set(pattern, _Kind.LOSE_REQUEST)

    def lose_answer(self, pattern: bytes) -> Trap:
        """Forward the next request with these bytes, wait for its answer, drop the answer, and reset the connection."""
        return self._set(pattern, _Kind.LOSE_ANSWER)

    def hold(self, pattern: bytes) -> Trap:
        """Hold back the next request with these bytes until the trap's `release`. The answer is not held back."""
        return self._set(pattern, _Kind.HOLD)

    def forget_traps(self) -> None:
        """Forget the traps that have not sprung. Requests that are held back stay held back."""
        self._call(self._traps.clear)

    @property
    def connections(self) -> int:
        """The number of connected clients."""
        return len(self._tasks)

    # In the proxy's thread

    async def _listen(self) -> None:
        if self._listener is None:
            self._listener = await asyncio.start_server(self._serve, HOST, self.port)

    def _unlisten(self) -> None:
        if self._listener is not None:
            self._listener.close()
            self._listener = None

    def _reset_all(self) -> None:
        for task in self._tasks:
            task.cancel()

    async def _finish(self) -> None:
        self._reset_all()
        await asyncio.gather(*self._tasks)

    async def _serve(self, reader: asyncio.StreamReader, client: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        writers = [client]
        try:
            await self._passing.wait()
            answers, server = await asyncio.open_connection(HOST, self.target)
            writers.append(server)
            await _Link(self._next_request, reader, client, answers, server, self._passing).run()
        except (OSError, asyncio.CancelledError):  # cut, or the server is gone
            for writer in writers:
                _reset(writer)
        finally:
            for writer in writers:
                writer.close()
            self._tasks.discard(task)

    async def _next_request(self, before: bytes, data: bytes) -> Trap | None:
        if self._delay:
            await asyncio.sleep(self._delay)
        for trap in self._traps:
            # Of the earlier bytes, search only those with which a match could begin. A whole match in them was found
            # before.
            if trap.pattern in before[max(0, len(before) - len(trap.pattern) + 1) :] + data:
                self._traps.remove(trap)
                return trap
        return None

    # From the test's thread into the proxy's

    def _set(self, pattern: bytes, kind: _Kind) -> Trap:
        trap = Trap(pattern, kind, self._loop)
        self._call(lambda: self._traps.append(trap))
        return trap

    def _call(self, function: Callable[[], Result]) -> Result:
        async def call() -> Result:
            return function()

        return self._run(call)

    def _run(self, function: Callable[[], Coroutine[Any, Any, Result]]) -> Result:
        return asyncio.run_coroutine_threadsafe(function(), self._loop).result(10)


class _Link:
    """A client's connection, with the proxy's connection to the server."""

    def __init__(
        self,
        next_request: Callable[[bytes, bytes], Awaitable[Trap | None]],
        requests: asyncio.StreamReader,
        client: asyncio.StreamWriter,
        answers: asyncio.StreamReader,
        server: asyncio.StreamWriter,
        passing: asyncio.Event,
    ) -> None:
        self._next_request = next_request
        self._requests, self._client = requests, client
        self._answers, self._server = answers, server
        self._passing = passing
        self._doom: Trap | None = None

    async def run(self) -> None:
        """Forward until one side closes. Raises ConnectionResetError if a trap cuts the connection."""
        pumps = {asyncio.ensure_future(self._forward_requests()), asyncio.ensure_future(self._forward_answers())}
        try:
            done, _ = await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
            for pump in done:
                pump.result()
        finally:
            for pump in pumps:
                pump.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)

    async def _forward_requests(self) -> None:
        before = b""
        while data := await self._requests.read(_CHUNK):
            await self._passing.wait()
            if trap := await self._next_request(before, data):
                await self._fall_into(trap)
            before = b"" if trap else (before + data)[-_OVERLAP:]
            self._server.write(data)
            await self._server.drain()

    async def _fall_into(self, trap: Trap) -> None:
        if trap.kind is _Kind.LOSE_ANSWER:
            self._doom = trap
            return
        trap.spring()
        if trap.kind is _Kind.LOSE_REQUEST:
            raise ConnectionResetError("request lost")
        await trap.released()

    async def _forward_answers(self) -> None:
        while data := await self._answers.read(_CHUNK):
            if self._doom is not None:
                self._doom.spring()
                raise ConnectionResetError("answer lost")
            await self._passing.wait()
            self._client.write(data)
            await self._client.drain()


def _reset(writer: asyncio.StreamWriter) -> None:
    connection: socket.socket = writer.get_extra_info("socket")
    if connection.fileno() != -1:  # the other end may have reset the connection already
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        writer.transport.abort()
