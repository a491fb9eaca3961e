"""Callers that submit in their own transactions, for each library and driver that psched knows, blocking and async."""

from __future__ import annotations

import asyncio
import sqlite3
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine
from typing import Any, ClassVar, TypeVar

import aiosqlite  # noqa: F401 – SQLAlchemy's URL names it
import asyncpg
import django
import psycopg
import pymysql
import sqlalchemy as sa
from django.conf import settings
from django.db.utils import ConnectionHandler
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from faultlab import prerequisites
from psched.queue.queue import Queue, QueuedTask

T = TypeVar("T")


class Caller(ABC):
    """A caller with a connection in a transaction.

    All methods are coroutines; for blocking callers, `run` needs no event loop.
    """

    awaited: ClassVar[bool] = False

    connection: Any
    """The connection that is passed to `submit`."""

    def __init__(self, url: sa.URL) -> None:
        self.url = url

    def run(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Run `work` on an open connection. What is not committed is rolled back."""
        if self.awaited:
            return asyncio.run(self._opened(work))
        try:
            self._opened(work).send(None)
        except StopIteration as end:
            return end.value
        raise AssertionError("a blocking caller has awaited something")

    async def _opened(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        await self.open()
        try:
            return await work()
        finally:
            await self.close()

    async def submit(self, queue: Queue, *fields: Any, **options: Any) -> QueuedTask:
        if self.awaited:
            return await queue.asubmit(*fields, **options, connection=self.connection)
        return queue.submit(*fields, **options, connection=self.connection)

    async def submit_many(self, queue: Queue, tasks: Any) -> list[str]:
        if self.awaited:
            return await queue.asubmit_many(tasks, self.connection)
        return queue.submit_many(tasks, self.connection)

    @abstractmethod
    async def open(self) -> None: ...

    @abstractmethod
    async def execute(self, statement: str) -> Any:
        """Execute SQL without parameters. Return the first value of its result, or None."""

    @abstractmethod
    async def commit(self) -> None: ...

    async def rollback(self) -> None:
        self.connection.rollback()

    @abstractmethod
    async def close(self) -> None: ...


class DriverCaller(Caller):
    """A connection of a PEP 249 driver, without autocommit."""

    def connect(self) -> Any:
        raise NotImplementedError

    async def open(self) -> None:
        self.connection = self.connect()

    async def execute(self, statement: str) -> Any:
        cursor = self.connection.cursor()
        cursor.execute(statement)
        row = cursor.fetchone() if cursor.description else None
        cursor.close()
        return None if row is None else row[0]

    async def commit(self) -> None:
        self.connection.commit()

    async def close(self) -> None:
        self.connection.close()

    @property
    def login(self) -> dict[str, Any]:
        return {"host": self.url.host, "port": self.url.port, "user": self.url.username, "password": self.url.password}


class Sqlite3Caller(DriverCaller):
    def connect(self) -> Any:
        return sqlite3.connect(str(self.url.database))


class PyMySQLCaller(DriverCaller):
    def connect(self) -> Any:
        return pymysql.connect(**self.login, database=self.url.database)


class MysqlclientCaller(DriverCaller):
    def connect(self) -> Any:
        prerequisites.require_mysqlclient()
        import MySQLdb  # noqa: PLC0415 – an extra

        return MySQLdb.connect(**self.login, database=self.url.database, charset="utf8mb4")


class PsycopgCaller(DriverCaller):
    def connect(self) -> Any:
        return psycopg.connect(**self.login, dbname=self.url.database)


class RawConnectionCaller(DriverCaller):
    """A driver's connection from SQLAlchemy's pool."""

    def connect(self) -> Any:
        self.engine = sa.create_engine(self.url)
        return self.engine.raw_connection()

    async def close(self) -> None:
        await super().close()
        self.engine.dispose()


class DjangoCaller(DriverCaller):
    def connect(self) -> Any:
        if not settings.configured:
            settings.configure()
            django.setup()
        backend = self.url.get_backend_name()
        if backend == "mysql":
            prerequisites.require_mysqlclient()
        names = {"NAME": str(self.url.database), **{name.upper(): value for name, value in self.login.items()}}
        names["ENGINE"] = "sqlite3" if backend == "sqlite" else backend
        names["ENGINE"] = f"django.db.backends.{names['ENGINE']}"
        if backend == "sqlite":
            names = {name: names[name] for name in ("NAME", "ENGINE")}
        connection = ConnectionHandler({"default": names})["default"]
        connection.set_autocommit(False)
        return connection


class ConnectionCaller(DriverCaller):
    """A Connection of SQLAlchemy."""

    def connect(self) -> Any:
        self.engine = sa.create_engine(self.url)
        return self.engine.connect()

    async def execute(self, statement: str) -> Any:
        answer = self.connection.execute(sa.text(statement))
        return answer.scalar() if answer.returns_rows else None

    async def close(self) -> None:
        self.connection.close()
        self.engine.dispose()


class SessionCaller(ConnectionCaller):
    def connect(self) -> Any:
        self.engine = sa.create_engine(self.url)
        return Session(self.engine)


_ASYNC = {"sqlite": "sqlite+aiosqlite", "mysql": "mysql+asyncmy", "postgresql": "postgresql+asyncpg"}


class AsyncConnectionCaller(Caller):
    """An AsyncConnection of SQLAlchemy."""

    awaited = True

    async def open(self) -> None:
        self.engine = create_async_engine(self.url.set(drivername=_ASYNC[self.url.get_backend_name()]))
        self.connection = await self.engine.connect()

    async def execute(self, statement: str) -> Any:
        answer = await self.connection.execute(sa.text(statement))
        return answer.scalar() if answer.returns_rows else None

    async def commit(self) -> None:
        await self.connection.commit()

    async def rollback(self) -> None:
        await self.connection.rollback()

    async def close(self) -> None:
        await self.connection.close()
        await self.engine.dispose()


class AsyncSessionCaller(AsyncConnectionCaller):
    async def open(self) -> None:
        self.engine = create_async_engine(self.url.set(drivername=_ASYNC[self.url.get_backend_name()]))
        self.connection = AsyncSession(self.engine)


class AsyncPsycopgCaller(AsyncConnectionCaller):
    async def open(self) -> None:
        login = {"host": self.url.host, "port": self.url.port, "user": self.url.username, "password": self.url.password}
        self.connection = await psycopg.AsyncConnection.connect(**login, dbname=self.url.database)

    async def execute(self, statement: str) -> Any:
        cursor = await self.connection.execute(statement)
        row = await cursor.fetchone() if cursor.description else None
        return None if row is None else row[0]

    async def close(self) -> None:
        await self.connection.close()


class AsyncpgCaller(Caller):
    awaited = True

    async def open(self) -> None:
        self.connection = await self.connect()
        await self._begin()

    async def connect(self) -> Any:
        url = self.url.set(drivername="postgresql").render_as_string(hide_password=False)
        return await asyncpg.connect(url, statement_cache_size=0)

    async def _begin(self) -> None:
        self.transaction = self.connection.transaction()
        await self.transaction.start()

    async def execute(self, statement: str) -> Any:
        return await self.connection.fetchval(statement)

    async def commit(self) -> None:
        await self.transaction.commit()
        await self._begin()

    async def rollback(self) -> None:
        await self.transaction.rollback()
        await self._begin()

    async def close(self) -> None:
        await self.connection.close()


class AsyncpgPoolCaller(AsyncpgCaller):
    """A connection from asyncpg's pool."""

    async def connect(self) -> Any:
        url = self.url.set(drivername="postgresql").render_as_string(hide_password=False)
        self.pool = await asyncpg.create_pool(url, min_size=1, max_size=1)
        return await self.pool.acquire()

    async def close(self) -> None:
        await self.transaction.rollback()
        await self.pool.release(self.connection)
        await self.pool.close()


_OF_ALL: tuple[type[Caller], ...] = (
    *(ConnectionCaller, SessionCaller, DjangoCaller, RawConnectionCaller),
    *(AsyncConnectionCaller, AsyncSessionCaller),
)
CALLERS: dict[str, tuple[type[Caller], ...]] = {
    "sqlite": (*_OF_ALL, Sqlite3Caller),
    "mariadb": (*_OF_ALL, PyMySQLCaller, MysqlclientCaller),
    "postgresql": (*_OF_ALL, PsycopgCaller, AsyncPsycopgCaller, AsyncpgCaller, AsyncpgPoolCaller),
}
"""The kinds of callers on each database."""
