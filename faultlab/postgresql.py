"""A private PostgreSQL. Runs in the test process."""

from __future__ import annotations

import signal
import tempfile
from pathlib import Path
from typing import Any

import psycopg

from faultlab import prerequisites
from faultlab.ports import HOST
from faultlab.servers import PASSWORD, USER, Server
from faultlab.unprivileged import chown_to_server_user, run_as_server_user

SUPERUSER = "postgres"
_USERS = f"CREATE ROLE {USER} LOGIN PASSWORD '{PASSWORD}';\n"


class PostgreSQL(Server):
    """A PostgreSQL server. `admin` connects as superuser."""

    name = "PostgreSQL"
    orderly_end = signal.SIGINT  # at SIGTERM it would wait until all clients have disconnected
    quick_end = signal.SIGQUIT  # after SIGKILL its shared memory segment would stay

    def admin(self, database: str = "postgres") -> psycopg.Connection[tuple[Any, ...]]:
        """Return a connection of the superuser, in autocommit, for use in a `with` statement."""
        return self._connect(SUPERUSER, database)

    def url(self, database: str, port: int | None = None) -> str:
        return f"postgresql://{USER}:{PASSWORD}@{HOST}:{self.port if port is None else port}/{database}"

    def create_database(self) -> str:
        name = self._new_name()
        with self.admin() as connection:
            connection.execute(f"CREATE DATABASE {name} OWNER {USER} TEMPLATE template0")
        return name

    def drop_database(self, name: str) -> None:
        with self.admin() as connection:
            connection.execute(f"DROP DATABASE {name} WITH (FORCE)")

    def set_read_only(self) -> None:
        with self.admin() as connection:
            connection.execute("ALTER SYSTEM SET default_transaction_read_only = on")
            connection.execute("SELECT pg_reload_conf()")

    def set_writable(self) -> None:
        with self.admin() as connection:
            connection.execute("ALTER SYSTEM RESET default_transaction_read_only")
            connection.execute("SELECT pg_reload_conf()")

    def _connect(self, user: str, database: str) -> psycopg.Connection[tuple[Any, ...]]:
        return psycopg.connect(
            host=HOST, port=self.port, user=user, password=PASSWORD, dbname=database, autocommit=True, connect_timeout=5
        )

    def _ping(self) -> None:
        self._connect(USER, "postgres").close()

    def _install(self, data: Path) -> None:
        """Create the data folder.

        Passwords are checked by md5, because each check by SCRAM takes 14 ms of processor time.
        """
        with tempfile.NamedTemporaryFile("w") as password:
            password.write(PASSWORD)
            password.flush()
            chown_to_server_user(Path(password.name))
            run_as_server_user([
                prerequisites.find("initdb"), "--no-sync", "--encoding=UTF8", "--locale=C", f"--pgdata={data}",
                f"--username={SUPERUSER}", f"--pwfile={password.name}", "--auth=md5",
            ])  # fmt: skip
        run_as_server_user([prerequisites.find("postgres"), "--single", "-F", "-D", data, "postgres"], _USERS)

    def _command(self) -> list[str]:
        settings = {
            "listen_addresses": HOST,
            "port": self.port,
            "unix_socket_directories": "",
            "max_connections": 200,
            **({} if self.place is None else {"max_wal_size": "64MB"}),
            "fsync": "on" if self.durable else "off",  # off: commits are written, but not synced
        }
        return [
            str(prerequisites.find("postgres")),
            "-D",
            str(self.data),
            *(f"--{key}={value}" for key, value in settings.items()),
            *self.options,
        ]
