"""A private MariaDB, or a MySQL if PSCHED_TEST_SERVERS has one. Runs in the test process."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pymysql
from pymysql.constants import ER
from pymysql.cursors import Cursor

from faultlab import mysql, prerequisites
from faultlab.ports import HOST
from faultlab.servers import PASSWORD, USER, Server
from faultlab.unprivileged import chown_to_server_user, run_as_server_user

_SMALL = ["--innodb-log-file-size=16M", "--innodb-buffer-pool-size=32M", "--aria-pagecache-buffer-size=8M"]
_USERS = f"""
CREATE USER root@'127.0.0.1' IDENTIFIED BY '{PASSWORD}';
GRANT ALL ON *.* TO root@'127.0.0.1' WITH GRANT OPTION;
CREATE USER {USER}@'127.0.0.1' IDENTIFIED BY '{PASSWORD}';
GRANT ALL ON `psched\\_%`.* TO {USER}@'127.0.0.1';
"""
"""psched's user has all privileges in psched's databases, and no others, so that `read_only` applies to this user."""
_BEFORE_USERS = "FLUSH PRIVILEGES;\nDROP USER IF EXISTS root@'127.0.0.1';\n"
"""mariadb-install-db has created this user, and checks no privileges until they are flushed."""


class MariaDB(Server):
    """A MariaDB server. `admin` connects as root."""

    name = "MariaDB"

    @contextmanager
    def admin(self, database: str | None = None) -> Iterator[Cursor]:
        """Yield a cursor of root, in autocommit."""
        with self._connect("root", database) as connection, connection.cursor() as cursor:
            yield cursor

    def url(self, database: str, port: int | None = None) -> str:
        return f"mysql://{USER}:{PASSWORD}@{HOST}:{self.port if port is None else port}/{database}"

    def create_database(self) -> str:
        name = self._new_name()
        with self.admin() as cursor:
            cursor.execute(f"CREATE DATABASE {name} CHARACTER SET utf8mb4")
        return name

    def drop_database(self, name: str) -> None:
        with self.admin() as cursor:
            # A session that holds a lock on a table would block the DROP.
            cursor.execute("SELECT id FROM information_schema.processlist WHERE db = %s", [name])
            for (session,) in cursor.fetchall():
                try:
                    cursor.execute("KILL %s", [session])
                except pymysql.err.OperationalError as error:
                    if error.args[0] != ER.NO_SUCH_THREAD:  # the session may have ended in the meantime
                        raise
            cursor.execute(f"DROP DATABASE {name}")

    def set_read_only(self) -> None:
        with self.admin() as cursor:
            cursor.execute("SET GLOBAL read_only = ON")

    def set_writable(self) -> None:
        with self.admin() as cursor:
            cursor.execute("SET GLOBAL read_only = OFF")

    def _connect(self, user: str, database: str | None = None) -> pymysql.Connection[Any]:
        return pymysql.connect(
            host=HOST, port=self.port, user=user, password=PASSWORD, database=database, autocommit=True,
            connect_timeout=5, read_timeout=30, write_timeout=30,
            ssl_disabled=True,  # loading the host's certificates would take longer than the rest of the login
        )  # fmt: skip

    def _ping(self) -> None:
        self._connect(USER).close()

    def _install(self, data: Path) -> None:
        if mysql.is_chosen():
            mysql.install(data, _USERS)
        else:
            self._install_mariadb(data)

    def _install_mariadb(self, data: Path) -> None:
        program = prerequisites.find("mariadb-install-db", "mysql_install_db")
        # Servers that share a temporary folder remove each other's files from it.
        with tempfile.TemporaryDirectory() as folder, tempfile.NamedTemporaryFile("w", suffix=".sql") as users:
            users.write(_BEFORE_USERS + _USERS)
            users.flush()
            chown_to_server_user(Path(users.name))
            chown_to_server_user(Path(folder))
            run_as_server_user([
                program, "--no-defaults", f"--datadir={data}", f"--tmpdir={folder}",
                "--auth-root-authentication-method=normal", "--skip-test-db", "--skip-name-resolve",
                f"--extra-file={users.name}", *_SMALL,
            ])  # fmt: skip

    def _command(self) -> list[str]:
        kind = mysql.OPTIONS if mysql.is_chosen() else _SMALL
        quick = ["--innodb-flush-log-at-trx-commit=2", "--innodb-doublewrite=0", "--innodb-flush-method=nosync"]
        return [
            str(prerequisites.find("mariadbd", "mysqld")), "--no-defaults", f"--datadir={self.data}",
            f"--bind-address={HOST}", f"--port={self.port}", f"--socket={self.folder}/s",
            f"--pid-file={self.folder}/pid", f"--tmpdir={self.folder}", "--skip-name-resolve", "--skip-log-bin",
            "--max-connections=400", *kind, *([] if self.durable else quick), *self.options,
        ]  # fmt: skip
