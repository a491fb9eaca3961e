"""A psched database on Django's connection. Each statement joins the transaction that Django has open.

So a web process needs no other connections than Django's. A task submitted in `transaction.atomic()` exists if and only
if the transaction commits. The tests of a `TestCase` see the tasks that they submit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from threading import Lock
from typing import Any, TypeVar

from django.db import connections, transaction
from sqlalchemy import Connection, Engine, NullPool, create_engine

from psched.backends.sql.compiled_statements import Statement
from psched.backends.sql.database import Database, Work
from psched.backends.sql.dialect import Dialect

T = TypeVar("T")


class DjangoDatabase(Database):
    """Runs work on the calling thread's connection to one database of DATABASES. Repeats nothing after an error."""

    def __init__(self, dialect: Dialect, alias: str) -> None:
        """Opens no connection."""
        self._alias = alias
        self._initializing = Lock()
        self._initialized = False
        super().__init__(dialect)

    def _new_engine(self) -> Engine:
        """Return an engine that uses Django's connections.

        The engine neither sets up nor closes these connections, and ends no transaction.
        """
        options = self.dialect.engine_options()
        kept = {name: options[name] for name in ("paramstyle", "use_native_hstore") if name in options}
        engine = create_engine(self.dialect.url, hide_parameters=True, **kept)
        # The engine's own pool would set up each connection again, and replace Django's REGEXP function on SQLite.
        engine.pool = NullPool(
            lambda: connections[self._alias].connection, dialect=engine.dialect, reset_on_return=None
        )
        driver: Any = engine.dialect
        driver.do_rollback = driver.do_commit = driver.do_close = driver.do_terminate = lambda connection: None
        return engine

    def run(self, work: Work[T], until: float | None = None) -> T:
        """Return `work(connection, False)`. The call is never repeated. Raises DBAPIError."""
        connections[self._alias].ensure_connection()
        with self._engine.connect() as connection:
            if not self._initialized:
                self._initialize(connection)
            return work(connection, False)

    def _initialize(self, connection: Connection) -> None:
        """Let SQLAlchemy read the server's version and settings once."""
        with self._initializing:
            if not self._initialized:
                self._engine.dialect.initialize(connection)
                self._initialized = True

    @contextmanager
    def transaction(self, connection: Connection) -> Iterator[None]:
        """Run the statements in one transaction. Within a transaction of the caller, uses a savepoint."""
        with transaction.atomic(using=self._alias):
            yield

    @contextmanager
    def savepoint(self, connection: Connection) -> Iterator[None]:
        """See `Database.savepoint`. Without a savepoint, an error on PostgreSQL aborts the whole transaction."""
        with transaction.atomic(using=self._alias) if connections[self._alias].in_atomic_block else nullcontext():
            yield

    def change_rows(
        self, connection: Connection, count: int, change: Callable[[], int], *steps: Callable[[], object]
    ) -> bool:
        with transaction.atomic(using=self._alias):
            done = change() == count
            for step in steps if done else ():
                step()
            if not done:
                transaction.set_rollback(True, using=self._alias)
        return done

    def _joined(
        self, connection: Connection, statement: Statement, then: Statement, values: Mapping[str, Any]
    ) -> bool | None:
        """Return None, because a compound statement would begin its own transaction."""
        return None

    def dedicated(self) -> Any:
        """Return a new connection, set up by Django, in autocommit and outside of pools; see `Database.dedicated`."""
        own = connections[self._alias].copy()
        own.settings_dict["OPTIONS"].pop("pool", None)
        own.connect()
        connection = NullPool(lambda: own.connection, reset_on_return=None).connect()
        connection.detach()
        return connection

    def patient(self) -> Any:
        """Return this database unchanged, because Django sets the timeouts of its connections."""
        return self._itself()

    @contextmanager
    def _itself(self) -> Iterator[Database]:
        yield self

    def reset_after_fork(self) -> None:
        """In a forked process, make a new engine. `child_setup` leaves Django's connections to the parent."""
        self._initializing = Lock()
        self._initialized = False
        self._engine = self._new_engine()
