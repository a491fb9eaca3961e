"""A private Redis. In the test process."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

from tests.lab import absent
from tests.lab.identity import own
from tests.lab.servers import HOST, PASSWORD, Server


class Redis(Server):
    """A Redis server; its databases are numbers, of which it has 16 at a time."""

    name = "Redis"

    def command(self, *words: str, database: str = "0") -> bytes:
        """Send one command and return the first line of its answer, as the protocol has it (`+OK`).

        Raises:
            OSError: the server cannot be reached, or refuses the password, the database or the command.
        """
        requests = [["AUTH", PASSWORD], ["SELECT", database], list(words)]
        with socket.create_connection((HOST, self.port), timeout=5) as connection, connection.makefile("rwb") as stream:
            for request in requests:
                stream.write(b"".join(_encode(request)))
                stream.flush()
                answer = stream.readline().rstrip()
                if not answer or answer.startswith(b"-"):
                    raise OSError(f"Redis refuses {request[0]}: {answer.decode()}")
        return answer

    def url(self, database: str, port: int | None = None) -> str:
        return f"redis://:{PASSWORD}@{HOST}:{self.port if port is None else port}/{database}"

    def create_database(self) -> str:
        self._databases += 1
        return str(self._databases % 16)

    def drop_database(self, name: str) -> None:
        self.command("FLUSHDB", database=name)

    def set_read_only(self) -> None:
        self.command("REPLICAOF", HOST, "1")  # of a primary that is not there

    def _ping(self) -> None:
        self.command("PING")

    def _install(self, data: Path) -> None:
        data.mkdir()
        own(data)

    def _command(self) -> list[str]:
        return [
            str(absent.find("redis-server")), "--bind", HOST, "--port", str(self.port), "--dir", str(self.data),
            "--requirepass", PASSWORD, "--save", "", "--appendonly", "yes",
            "--appendfsync", "always" if self.durable else "no",
        ]  # fmt: skip


def _encode(words: list[str]) -> Iterator[bytes]:
    yield b"*%d\r\n" % len(words)
    for word in words:
        data = word.encode()
        yield b"$%d\r\n%s\r\n" % (len(data), data)
