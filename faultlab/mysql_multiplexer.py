"""A pooler in front of a MariaDB, like ProxySQL: each statement outside of a transaction uses another session.

A client logs in at the server. This session then joins the sessions that all clients of the same user and database
share. A client keeps a session while a transaction is open, or while autocommit is off. `MultiplexedMariaDB` runs in
the test process; the rest of this module runs in the process that `MultiplexedMariaDB` starts.
"""

from __future__ import annotations

import asyncio
import sys
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import pymysql

from faultlab.mariadb import MariaDB
from faultlab.pooler import Pooler
from faultlab.ports import HOST
from faultlab.servers import PASSWORD, USER, Server
from faultlab.unprivileged import chown_to_server_user


class MultiplexedMariaDB(Pooler[MariaDB]):
    """A pooler whose clients use the sessions of the server in turn."""

    name = "Multiplexer"

    def __init__(self, server: Server, sessions: int) -> None:
        assert isinstance(server, MariaDB)
        super().__init__(server, sessions)

    def connect(self, database: str) -> pymysql.Connection:
        """Return a client's connection to the pooler, in autocommit, for use in a `with` statement."""
        return pymysql.connect(
            host=HOST,
            port=self.port,
            user=USER,
            password=PASSWORD,
            database=database,
            autocommit=True,
            ssl_disabled=True,
        )

    def _ping(self) -> None:
        with self.connect("information_schema"):
            pass

    def _user(self) -> str:
        return ""  # another user could not read this file

    def _install(self, data: Path) -> None:
        data.mkdir()
        chown_to_server_user(data)

    def _command(self) -> list[str]:
        folder = Path(__file__).parents[1]
        start = f"import sys; sys.path.insert(0, {str(folder)!r}); from faultlab.mysql_multiplexer import main; main()"
        return [sys.executable, "-c", start, *map(str, (self.port, self.server.port, self.sessions))]


_IN_TRANSACTION, _AUTOCOMMIT, _MORE_RESULTS = 1, 2, 8
"""Flags of the server's status."""
_QUIT, _OK, _SWITCH, _ERROR = 0x01, 0x00, 0xFE, 0xFF
"""Values of the first byte of a packet."""
_WITH_DATABASE, _LONG_AUTH = 0x8, 0x200000
"""Flags of a login."""


class Session:
    """A connection to the server, or a client's connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def receive(self) -> bytes:
        """Return the next packet, with its header."""
        head = await self._reader.readexactly(4)
        return head + await self._reader.readexactly(int.from_bytes(head[:3], "little"))

    async def send(self, packet: bytes) -> None:
        self._writer.write(packet)
        await self._writer.drain()

    def close(self) -> None:
        self._writer.close()


class Multiplexer:
    """The sessions of each user and database: how many there are, and those that are idle."""

    def __init__(self, target: int, sessions: int) -> None:
        self._target = target
        self._most = sessions
        self._counts: defaultdict[bytes, int] = defaultdict(int)
        self._idle: defaultdict[bytes, asyncio.Queue[Session]] = defaultdict(asyncio.Queue)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one client until it disconnects."""
        client = Session(reader, writer)
        try:
            whose = await self._log_in(client)
            while whose is not None and await self._execute(client, whose):
                pass
        except (asyncio.IncompleteReadError, ConnectionError):
            pass  # the client is gone
        finally:
            client.close()

    async def _log_in(self, client: Session) -> bytes | None:
        """Let the client log in at the server. Return its user and database; None if the server refuses the login."""
        server = Session(*await asyncio.open_connection(HOST, self._target))
        await client.send(await server.receive())
        login = await client.receive()
        await server.send(login)
        while (answer := await server.receive())[4] == _SWITCH:
            await client.send(answer)
            await server.send(await client.receive())
        await client.send(answer)
        if answer[4] == _ERROR:
            server.close()
            return None
        whose = _user_and_database(login[4:])
        if self._counts[whose] < self._most:
            self._counts[whose] += 1
            self._idle[whose].put_nowait(server)
        else:
            server.close()
        return whose

    async def _execute(self, client: Session, whose: bytes) -> bool:
        """Execute the client's next statement, or transaction, in the session that has been idle longest.

        Return False if the client disconnects.
        """
        command = await client.receive()
        if command[4] == _QUIT:
            return False
        server = await self._idle[whose].get()
        try:
            is_open = False
            while is_open := await self._answer(client, server, command, is_open):
                command = await client.receive()
                if command[4] == _QUIT:
                    raise ConnectionResetError("the client leaves a transaction")
        except BaseException:
            server.close()
            self._counts[whose] -= 1
            raise
        self._idle[whose].put_nowait(server)
        return True

    async def _answer(self, client: Session, server: Session, command: bytes, was_open: bool) -> bool:
        """Pass on a command and its answer. Return whether a transaction is open then.

        An error is taken to change nothing, because its packet does not show the state of the transaction.
        """
        await server.send(command)
        while True:
            answer = await server.receive()
            await client.send(answer)
            if answer[4] == _ERROR:
                return was_open
            if answer[4] == _OK:
                status = _status_of(answer[4:])
            else:
                for _ in range(2):  # first the columns, then the rows
                    while not _is_end(answer := await server.receive()):
                        await client.send(answer)
                    await client.send(answer)
                    if answer[4] == _ERROR:
                        return was_open
                status = int.from_bytes(answer[7:9], "little")
            if not status & _MORE_RESULTS:
                return bool(status & _IN_TRANSACTION) or not status & _AUTOCOMMIT


def _is_end(packet: bytes) -> bool:
    return packet[4] == _ERROR or (packet[4] == _SWITCH and len(packet) < 13)


def _status_of(ok: bytes) -> int:
    """Return the status in an OK packet. Two numbers of variable length precede the status."""
    place = 1
    for _ in range(2):
        place += {0xFC: 3, 0xFD: 4, 0xFE: 9}.get(ok[place], 1)
    return int.from_bytes(ok[place : place + 2], "little")


def _user_and_database(login: bytes) -> bytes:
    flags = int.from_bytes(login[:4], "little")
    user, _, rest = login[32:].partition(b"\0")
    assert flags & _LONG_AUTH or rest[0] < 251
    database = rest[1 + rest[0] :].partition(b"\0")[0] if flags & _WITH_DATABASE else b""
    return user + b"/" + database


def main(arguments: Sequence[str] = sys.argv[1:]) -> None:
    """Serve until killed. `arguments`: the port to listen on, the server's port, and the number of sessions."""
    port, target, sessions = map(int, arguments)
    multiplexer = Multiplexer(target, sessions)

    async def serve() -> None:
        async with await asyncio.start_server(multiplexer.serve, HOST, port) as server:
            await server.serve_forever()

    asyncio.run(serve())
