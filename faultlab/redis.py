"""A private Redis. Runs in the test process."""

from __future__ import annotations

import re
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from faultlab import prerequisites
from faultlab.ports import HOST, free_port
from faultlab.servers import PASSWORD, Server
from faultlab.unprivileged import chown_to_server_user

_RUNNING = re.compile(rb"aof_rewrite_(in_progress|scheduled):1")


class Redis(Server):
    """A Redis server. Its databases have numbers; 16 may be in use at the same time."""

    name = "Redis"

    def command(self, *words: str, database: str = "0") -> bytes:
        """Send one command, and return the first line of the answer in the form of the protocol, such as `+OK`.

        Raises:
            OSError: the server cannot be reached, or refuses the password, the database or the command.
        """
        requests = [["AUTH", PASSWORD], ["SELECT", database], list(words)]
        with socket.create_connection((HOST, self.port), timeout=5) as connection, connection.makefile("rwb") as stream:
            return _asked(stream, requests)

    def text(self, *words: str) -> bytes:
        """Send one command whose answer is a text, and return the text. Raises OSError like `command`."""
        with socket.create_connection((HOST, self.port), timeout=5) as connection, connection.makefile("rwb") as stream:
            length = _asked(stream, [["AUTH", PASSWORD], list(words)])
            text: bytes = stream.read(int(length[1:]))
            return text

    def url(self, database: str, port: int | None = None) -> str:
        return f"redis://:{PASSWORD}@{HOST}:{self.port if port is None else port}/{database}"

    def create_database(self) -> str:
        self._databases += 1
        return str(self._databases % 16)

    def drop_database(self, name: str) -> None:
        self.command("FLUSHDB", database=name)

    def set_read_only(self) -> None:
        self.command("REPLICAOF", HOST, "1")  # a primary that does not exist

    def set_writable(self) -> None:
        self.command("REPLICAOF", "NO", "ONE")

    def rewrite(self) -> None:
        """Let Redis rewrite its append-only file, and wait for the end. Raises OSError if Redis cannot do this."""
        self.command("BGREWRITEAOF")
        while _RUNNING.search(persistence := self.text("INFO", "persistence")):
            time.sleep(0.1)
        if b"aof_last_bgrewrite_status:ok" not in persistence:
            raise OSError("Redis cannot rewrite its append-only file")

    def _ping(self) -> None:
        self.command("PING")

    def _install(self, data: Path) -> None:
        data.mkdir()
        chown_to_server_user(data)

    def _command(self) -> list[str]:
        return [
            str(prerequisites.find("redis-server")), "--bind", HOST, "--port", str(self.port), "--dir", str(self.data),
            "--requirepass", PASSWORD, "--save", "", "--appendonly", "yes",
            "--appendfsync", "always" if self.durable else "no", *self.options,
        ]  # fmt: skip


class RedisNode(Redis):
    """A node of a Redis Cluster. A new node has no slots."""

    bus = 0
    """The port on which the nodes talk to each other. 0: a free port is chosen at the start."""

    def create_database(self) -> str:
        return "0"  # a cluster has one database

    def serve(self, first: int = 0, last: int = 16383) -> None:
        """Take the slots from `first` to `last`."""
        self.command("CLUSTER", "ADDSLOTSRANGE", str(first), str(last))

    def meet(self, other: RedisNode) -> None:
        """Join the clusters of this node and of `other`."""
        self.command("CLUSTER", "MEET", HOST, str(other.port), str(other.bus))

    def _command(self) -> list[str]:
        self.bus = free_port() if self.bus == 0 else self.bus
        cluster = ("--cluster-enabled", "yes", "--cluster-node-timeout", "2000", "--cluster-port", str(self.bus))
        return [*super()._command(), *cluster]

    def is_up(self) -> bool:
        """Return whether all slots are served, as far as this node knows."""
        return b"cluster_state:ok" in self.text("CLUSTER", "INFO")


def _asked(stream: Any, requests: list[list[str]]) -> bytes:
    """Send one request after another, and return the first line of the last answer."""
    for request in requests:
        stream.write(b"".join(_encode(request)))
        stream.flush()
        answer: bytes = stream.readline().rstrip()
        if not answer or answer.startswith(b"-"):
            raise OSError(f"Redis refuses {request[0]}: {answer.decode()}")
    return answer


def _encode(words: list[str]) -> Iterator[bytes]:
    yield b"*%d\r\n" % len(words)
    for word in words:
        data = word.encode()
        yield b"$%d\r\n%s\r\n" % (len(data), data)
