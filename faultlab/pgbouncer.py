"""A private PgBouncer, a connection pooler in front of a PostgreSQL. Runs in the test process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import psycopg

from faultlab import prerequisites
from faultlab.pooler import Pooler
from faultlab.ports import HOST
from faultlab.postgresql import SUPERUSER, PostgreSQL
from faultlab.servers import PASSWORD, USER, Server
from faultlab.unprivileged import chown_to_server_user


class PgBouncer(Pooler[PostgreSQL]):
    """A pooler with `sessions` sessions for each database and user."""

    name = "PgBouncer"

    def __init__(self, server: Server, mode: str, sessions: int = 1) -> None:
        """`mode`: how long a client keeps a session of the server.

        Until it disconnects (`session`), for a `transaction`, or for a `statement`.
        """
        assert isinstance(server, PostgreSQL)
        super().__init__(server, sessions)
        self.mode = mode

    def connect(self, database: str) -> psycopg.Connection[tuple[Any, ...]]:
        """Return a client's connection to the pooler, in autocommit, for use in a `with` statement."""
        return psycopg.connect(self.url(database), autocommit=True, connect_timeout=5, prepare_threshold=None)

    def _ping(self) -> None:
        self.connect("postgres").close()

    def _install(self, data: Path) -> None:
        data.mkdir()
        chown_to_server_user(data)

    def _command(self) -> list[str]:
        users, settings = self.data / "users.txt", self.data / "pgbouncer.ini"
        users.write_text("".join(f'"{user}" "{PASSWORD}"\n' for user in (USER, SUPERUSER)))
        settings.write_text(
            f"[databases]\n* = host={HOST} port={self.server.port}\n"
            f"[pgbouncer]\nlisten_addr = {HOST}\nlisten_port = {self.port}\nunix_socket_dir =\n"
            f"auth_type = md5\nauth_file = {users}\n"
            f"pool_mode = {self.mode}\ndefault_pool_size = {self.sessions}\nserver_round_robin = 1\n"
        )
        return [str(prerequisites.find("pgbouncer")), str(settings)]
