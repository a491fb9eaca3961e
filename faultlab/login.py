"""A database user whose password the test changes. Runs in the test process."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import sqlalchemy as sa

from faultlab.mariadb import MariaDB
from faultlab.postgresql import PostgreSQL
from faultlab.redis import Redis
from faultlab.servers import USER, Server

NAME = "late"
PASSWORD = "rotated"


class Login:
    """The user `late`, who has all privileges in one database. `url` contains the password `rotated`."""

    def __init__(self, server: Server, database: str) -> None:
        self._server = server
        self._database = database

    @property
    def url(self) -> str:
        """The URL with which psched logs in. Its password is wrong until `accept`."""
        url = sa.make_url(self._server.url(self._database))
        return url.set(username=NAME, password=PASSWORD).render_as_string(hide_password=False)

    def create(self) -> None:
        """Create the user, with another password than the URL's."""
        if isinstance(self._server, Redis):
            self._server.command("ACL", "SETUSER", NAME, "on", ">other", "~*", "&*", "+@all")
        elif isinstance(self._server, PostgreSQL):
            self._execute(f"CREATE ROLE {NAME} LOGIN PASSWORD 'other'", f"GRANT {USER} TO {NAME}")
        else:
            on = f"GRANT ALL ON `{self._database}`.* TO {NAME}@'127.0.0.1'"
            self._execute(f"CREATE USER {NAME}@'127.0.0.1' IDENTIFIED BY 'other'", on)

    def accept(self, password: str = PASSWORD) -> None:
        """Set the user's password, by default to the URL's password."""
        self._set(password)

    def refuse(self, accepted: str = "another") -> None:
        """Change the user's password to another one, and end the user's sessions."""
        self._set(accepted)
        if isinstance(self._server, Redis):
            self._server.command("CLIENT", "KILL", "USER", NAME)
        elif isinstance(self._server, PostgreSQL):
            self._execute(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = '{NAME}'")
        else:
            self._execute(f"KILL USER {NAME}")

    def allow_nothing(self) -> None:
        """Remove all privileges. The user can still log in."""
        if isinstance(self._server, Redis):
            self._server.command("ACL", "SETUSER", NAME, "-@all", "+select")
        elif isinstance(self._server, PostgreSQL):
            self._execute(f"REVOKE {USER} FROM {NAME}")
        else:
            self._execute(f"REVOKE ALL ON `{self._database}`.* FROM {NAME}@'127.0.0.1'")

    def drop(self) -> None:
        """Remove the user."""
        if isinstance(self._server, Redis):
            self._server.command("ACL", "DELUSER", NAME)
        elif isinstance(self._server, PostgreSQL):
            self._execute(f"DROP ROLE {NAME}")
        else:
            self._execute(f"DROP USER {NAME}@'127.0.0.1'")

    def _set(self, password: str) -> None:
        if isinstance(self._server, Redis):
            self._server.command("ACL", "SETUSER", NAME, "resetpass", f">{password}")
        elif isinstance(self._server, PostgreSQL):
            self._execute(f"ALTER ROLE {NAME} PASSWORD '{password}'")
        else:
            self._execute(f"ALTER USER {NAME}@'127.0.0.1' IDENTIFIED BY '{password}'")

    def _execute(self, *statements: str) -> None:
        assert isinstance(self._server, PostgreSQL | MariaDB)
        with self._server.admin() as admin:
            for statement in statements:
                session: Any = admin
                session.execute(statement)


@contextmanager
def made_login(server: Server, database: str) -> Iterator[Login]:
    """Create a user with access to the database, and remove the user in the end. Logins are refused until `accept`."""
    login = Login(server, database)
    login.create()
    try:
        yield login
    finally:
        login.drop()
