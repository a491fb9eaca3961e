"""Operations on each kind of running database server, such as ending sessions. Runs in the test process."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

import pymysql
import redis

from faultlab.mariadb import MariaDB
from faultlab.ports import HOST
from faultlab.postgresql import PostgreSQL
from faultlab.redis import Redis
from faultlab.servers import USER

TABLES = ("psched_schedules", "psched_queue")


class ServerControl(Protocol):
    """The operations on one kind of database. Each context manager undoes its operation at the end."""

    def end_sessions(self) -> None:
        """End every session of psched's user."""
        ...

    def taken(self) -> contextlib.AbstractContextManager[None]:
        """End all sessions of psched's user, and admit at most one more session."""
        ...

    def locked(self) -> contextlib.AbstractContextManager[None]:
        """Lock all tables, as a migration or backup of another program may."""
        ...

    def write(self) -> None:
        """Change something and undo the change. Raises the driver's error if this is impossible."""
        ...


class MariaDBControl:
    """Operations on a MariaDB server."""

    def __init__(self, server: MariaDB, database: str) -> None:
        self._server = server
        self._database = database

    def end_sessions(self) -> None:
        with self._server.admin() as cursor:
            cursor.execute("SELECT id FROM information_schema.processlist WHERE user = %s", [USER])
            for (session,) in cursor.fetchall():
                with contextlib.suppress(pymysql.Error):  # the session has ended by itself
                    cursor.execute("KILL %s", [session])

    @contextmanager
    def taken(self) -> Iterator[None]:
        self._admit(1)
        self.end_sessions()
        try:
            yield
        finally:
            self._admit(0)

    @contextmanager
    def locked(self) -> Iterator[None]:
        with self._server.admin(self._database) as cursor:
            cursor.execute("LOCK TABLES " + ", ".join(f"{table} WRITE" for table in TABLES))
            yield

    def _admit(self, connections: int) -> None:
        with self._server.admin() as cursor:
            cursor.execute(f"ALTER USER {USER}@'{HOST}' WITH MAX_USER_CONNECTIONS {connections}")

    def write(self) -> None:
        with self._server.admin(self._database) as cursor:
            cursor.execute("CREATE TABLE psched_written (n INTEGER)")
            cursor.execute("DROP TABLE psched_written")


class PostgreSQLControl:
    """Operations on a PostgreSQL server."""

    def __init__(self, server: PostgreSQL, database: str) -> None:
        self._server = server
        self._database = database

    def end_sessions(self) -> None:
        with self._server.admin() as connection:
            connection.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = %s", [USER])

    @contextmanager
    def taken(self) -> Iterator[None]:
        self._admit(0)
        self.end_sessions()
        try:
            yield
        finally:
            self._admit(-1)

    @contextmanager
    def locked(self) -> Iterator[None]:
        with self._server.admin(self._database) as connection, connection.transaction():
            connection.execute(f"LOCK TABLE {', '.join(TABLES)} IN ACCESS EXCLUSIVE MODE")
            yield

    def _admit(self, connections: int) -> None:
        with self._server.admin() as connection:
            connection.execute(f"ALTER ROLE {USER} CONNECTION LIMIT {connections}")

    def write(self) -> None:
        with self._server.admin(self._database) as connection:
            connection.execute("CREATE TABLE psched_written (n INTEGER)")
            connection.execute("DROP TABLE psched_written")


class RedisControl:
    """Operations on a Redis server."""

    def __init__(self, server: Redis) -> None:
        self._server = server

    def end_sessions(self) -> None:
        self._server.command("CLIENT", "KILL", "TYPE", "normal")

    @contextmanager
    def taken(self) -> Iterator[None]:
        url = self._server.url("0")
        with contextlib.closing(redis.Redis.from_url(url, single_connection_client=True)) as administrator:
            administrator.config_set("maxclients", 1)
            administrator.client_kill_filter(_type="normal", skipme=True)
            try:
                yield
            finally:
                administrator.config_set("maxclients", 10_000)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Pause all writes. Scripts that may write wait, too."""
        self._server.command("CLIENT", "PAUSE", "60000", "WRITE")
        try:
            yield
        finally:
            self._server.command("CLIENT", "UNPAUSE")

    def write(self) -> None:
        """Change something, undo the change, and rewrite the append-only file.

        Redis may be unable to load a file that was cut off when the disk was full.
        """
        self._server.command("SET", "psched_written", "1")
        self._server.command("DEL", "psched_written")
        self._server.rewrite()


class SQLiteControl:
    """Operations on a SQLite file, which has no sessions and no limit of connections."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def end_sessions(self) -> None:
        raise NotImplementedError("a file has no sessions")

    @contextmanager
    def taken(self) -> Iterator[None]:
        raise NotImplementedError("a file has no limit of connections")
        yield

    @contextmanager
    def locked(self) -> Iterator[None]:
        with contextlib.closing(sqlite3.connect(self._file, isolation_level=None, timeout=20)) as connection:
            connection.execute("BEGIN EXCLUSIVE")
            yield
            connection.execute("ROLLBACK")

    def write(self) -> None:
        with contextlib.closing(sqlite3.connect(self._file, isolation_level=None, timeout=20)) as connection:
            connection.execute("CREATE TABLE psched_written (n INTEGER)")
            connection.execute("DROP TABLE psched_written")
