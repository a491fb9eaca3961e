"""The base class of connection poolers. Databases and tables are those of the server behind the pooler."""

from __future__ import annotations

from typing import Generic, TypeVar

from faultlab.servers import Server

S = TypeVar("S", bound=Server)


class Pooler(Server, Generic[S]):
    """A pooler whose clients use sessions of `server`, at most `sessions` for each database and user."""

    def __init__(self, server: S, sessions: int) -> None:
        super().__init__()
        self.server = server
        self.sessions = sessions

    def url(self, database: str, port: int | None = None) -> str:
        return self.server.url(database, self.port if port is None else port)

    def create_database(self) -> str:
        return self.server.create_database()

    def drop_database(self, name: str) -> None:
        self.server.drop_database(name)

    def set_read_only(self) -> None:
        self.server.set_read_only()

    def set_writable(self) -> None:
        self.server.set_writable()
