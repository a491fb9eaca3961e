"""One database: its connections, and bounded retries.

Usually at most one idle connection stays open; processes with many threads keep more. A small overflow lets a heartbeat
open a second connection while a long statement runs. Connections are in autocommit mode: each statement is a
transaction of its own, except in `transaction` and `change_rows`.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext, suppress
from dataclasses import replace
from functools import partial
from queue import Empty, SimpleQueue
from types import MappingProxyType
from typing import Any, TypeVar

from sqlalchemy import (
    Connection,
    Delete,
    Engine,
    Executable,
    NullPool,
    RowMapping,
    Select,
    Update,
    create_engine,
    event,
)
from sqlalchemy import Dialect as SqlAlchemyDialect
from sqlalchemy.exc import ArgumentError, DBAPIError, NoSuchModuleError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError

from psched import fork_safety as forks
from psched.backends.common.connection_options import Timeouts, missing_driver
from psched.backends.common.retries import LoginBackoff, Retries, RetryReason
from psched.backends.sql.compiled_statements import PooledConnection, Statement, execute_text, wrapped
from psched.backends.sql.dialect import Dialect
from psched.clock import boottime
from psched.errors import ConfigError

_OVERFLOW = 4

T = TypeVar("T")
Work = Callable[[Connection, bool], T]
"""Work on one connection. The flag tells whether an earlier attempt may have been executed although its answer was
lost.
"""


class Database:
    """Runs work on connections to one database.

    Safe to use from several threads. After a fork, safe to use in both processes: the child opens its own connections.
    """

    def __init__(self, dialect: Dialect) -> None:
        """Opens no connection. Raises ConfigError if the URL or the driver cannot be used."""
        self.dialect = dialect
        self._sleep = time.sleep
        self._parents: list[Any] = []
        self._logins = LoginBackoff()
        self._is_dedicated = False
        """Whether `_engine` ever opened a connection outside the pool."""
        self._engine = self._new_engine()
        self._pool = self._new_pool()
        self._work: AbstractContextManager[None] = nullcontext()
        forks.register_for_fork(self)
        if not dialect.crosses_forks:
            self._work = forks.work_on_closing
            forks.close_before_fork(self)

    def _new_engine(self) -> Engine:
        """Create SQLAlchemy's engine. Raises ConfigError if the URL or the driver cannot be used."""
        dialect = self.dialect
        try:
            engine = create_engine(
                dialect.url,
                poolclass=NullPool,
                isolation_level="AUTOCOMMIT",
                pool_reset_on_return=None,
                skip_autocommit_rollback=True,
                hide_parameters=True,
                **dialect.engine_options(),
            )
        except ImportError as error:
            driver = dialect.url.get_driver_name()
            scheme = dialect.name if driver == dialect.driver else dialect.url.drivername
            raise missing_driver(error, driver, f"{scheme}://") from error
        except (ArgumentError, NoSuchModuleError, ValueError) as error:  # ValueError: an option has a wrong value
            raise ConfigError(f"url: {dialect.url.drivername}:// cannot be used: {error}") from error
        if engine.dialect.is_async:
            raise ConfigError(
                f"url: {dialect.url.drivername}:// is an asynchronous driver; remove the +driver from the URL"
            )
        logins = self._logins

        # Not a method: compiled statements keep the engine's listeners, and must not keep this object alive.
        def log_in(driver: Any, _: object, given: Sequence[Any], options: Mapping[str, Any]) -> Any:
            try:
                return logins.log_in(partial(dialect.connect, driver, given, options), dialect.is_refused)
            except (AttributeError, NotImplementedError, TypeError, ValueError) as error:
                if not dialect.url.query:
                    raise
                names = ", ".join(dialect.url.query)
                raise ConfigError(
                    f"url: the driver reports {type(error).__name__}: {error}, probably because of an option of the URL"
                    f" ({names}); correct or remove it"
                ) from error

        event.listen(engine, "do_connect", log_in)
        event.listen(engine, "connect", lambda connection, _: dialect.prepare(connection))
        return engine

    def _new_pool(self) -> ConnectionPool:
        dialect = self.dialect
        size, overflow = (1, 0) if dialect.ephemeral else (dialect.connections, _OVERFLOW)
        return ConnectionPool(self._engine, size, overflow, dialect.timeouts.read, dialect.keeps_cursors)

    def run(self, work: Work[T], until: float | None = None) -> T:
        """Return `work(connection, uncertain)`. Repeats the call after conflicts and lost connections; see `Retries`.

        `until`: deadline in boottime seconds. `work` must be repeatable. After an error of `work` that is not the
        driver's, the connection is closed.
        """
        begun = boottime()
        retries: Retries | None = None
        uncertain = False
        while True:
            try:
                with self._work:
                    pool = self._pool
                    connection = pool.take()
                    try:
                        result = work(connection, uncertain)
                    except BaseException as error:
                        self._release_after(error, pool, connection)
                        raise
                    pool.release(connection)
                    return result
            except (DBAPIError, PoolTimeoutError) as error:
                reason = self.retry_reason(error)
                if retries is None:
                    retries = Retries(begun, until, boottime, self._logins)
                # a read has no conflicts except timeouts
                has_timed_out = self.dialect.read_only and reason is RetryReason.CONFLICT
                pause = None if has_timed_out else retries.pause(reason, self.is_refused(error))
                if pause is None:
                    raise
                uncertain = uncertain or reason is RetryReason.LOST
            self._sleep(pause)

    def _release_after(self, error: BaseException, pool: ConnectionPool, connection: PooledConnection) -> None:
        """Release or close a connection whose work raised `error`. Raises an error of the driver as a DBAPIError."""
        # The driver may have been interrupted while it read an answer. The next statement would read the rest of that
        # answer.
        is_stale = isinstance(error, DBAPIError) and self.dialect.is_stale(error)
        is_kept = isinstance(error, DBAPIError) and self.retry_reason(error) is not RetryReason.LOST and not is_stale
        pool.release(connection, is_kept)
        if is_stale or (isinstance(error, DBAPIError) and error.connection_invalidated):
            pool.close_idle()  # the idle connections are probably stale or lost, too
        if isinstance(error, self._engine.dialect.loaded_dbapi.Error):  # an error raised while rows were fetched
            raise wrapped(error, self._engine.dialect) from error

    @contextmanager
    def transaction(self, connection: Connection) -> Iterator[None]:
        """Run the statements in one READ COMMITTED transaction.

        On SQLite the transaction holds the write lock from its start.
        """
        execute_text(connection, self.dialect.begin)
        try:
            yield
            execute_text(connection, "COMMIT")
        except DBAPIError as error:
            self._roll_back(connection, error)
            raise

    @contextmanager
    def savepoint(self, connection: Connection) -> Iterator[None]:
        """Do nothing.

        A subclass sets a savepoint, so that a failed statement does not abort the caller's transaction.
        """
        yield

    def change_row(
        self,
        connection: Connection,
        statement: Statement,
        values: Mapping[str, Any],
        also: Callable[[Connection], object] | None = None,
    ) -> bool:
        """Change one row. If the row exists, run `statement.then` and `also` in the same transaction.

        Return whether the row exists.
        """
        then = statement.then
        if then is not None and also is None and self.dialect.compound_statements:
            joined = self._joined(connection, statement, then, values)
            if joined is not None:
                return joined
        if then is None and also is None:
            return statement.execute(connection, values) == 1
        with self.transaction(connection):
            done = statement.execute(connection, values) == 1
            if done and then is not None:
                then.execute(connection, values)
            if done and also is not None:
                also(connection)
        return done

    def _joined(
        self, connection: Connection, statement: Statement, then: Statement, values: Mapping[str, Any]
    ) -> bool | None:
        """Execute both statements as one. Return whether the first changed a row.

        Return None if the database cannot execute both as one.
        """
        first, second = statement.prepare(connection), then.prepare(connection)
        text = self.dialect.joined(connection, first.text, second.text)
        if text is None or first.places is not None or first.constants.keys() & second.constants.keys():
            return None
        parameters = {**first.constants, **second.constants, **values}
        with closing(execute_text(connection, text, parameters)) as cursor:  # closing reads the rest of the answer
            return bool(cursor.fetchone()[0])

    def change_rows(
        self, connection: Connection, count: int, change: Callable[[], int], *steps: Callable[[], object]
    ) -> bool:
        """Change `count` rows, then run `steps`, in one transaction. Return whether `count` rows were changed.

        `change` returns the number of rows that it has changed. If this is not `count`, the transaction is rolled back.
        Without steps there is no transaction, so `change` must be one statement, and its changes stay.
        """
        if not steps:
            return change() == count
        execute_text(connection, self.dialect.begin)
        try:
            done = change() == count
            if done:
                for step in steps:
                    step()
            execute_text(connection, "COMMIT" if done else "ROLLBACK")
        except DBAPIError as error:
            self._roll_back(connection, error)
            raise
        return done

    def _roll_back(self, connection: Connection, error: DBAPIError) -> None:
        if self.retry_reason(error) is not RetryReason.LOST:
            execute_text(connection, "ROLLBACK")

    def retry_reason(self, error: Exception) -> RetryReason | None:
        if isinstance(error, PoolTimeoutError):
            return RetryReason.LOST
        driver = self._engine.dialect.loaded_dbapi.Error
        if isinstance(error, driver):  # an error raised on a dedicated connection
            error = DBAPIError.instance(None, None, error, driver)
        if not isinstance(error, DBAPIError):
            return None
        return RetryReason.LOST if error.connection_invalidated else self.dialect.retry_reason(error)

    def is_refused(self, error: Exception) -> bool:
        """Return whether the server refuses psched's user."""
        return self.dialect.is_refused(getattr(error, "orig", None) or error)

    def rows(self, statement: Select[Any], values: Mapping[str, Any] = MappingProxyType({})) -> Sequence[RowMapping]:
        return self.run(lambda connection, _: connection.execute(statement, values).mappings().all())

    def change(self, statement: Update | Delete, values: Mapping[str, Any]) -> int:
        """Execute a statement that may be repeated, and return the number of changed rows."""

        def work(connection: Connection, uncertain: bool) -> int:
            changed: int = connection.execute(statement, values).rowcount
            return changed

        return self.run(work)

    def scalar(self, statement: Executable, values: Mapping[str, Any] = MappingProxyType({})) -> Any:
        return self.run(lambda connection, _: connection.execute(statement, values).scalar())

    def dedicated(self) -> Any:
        """Return a new connection. The caller must close it. Its `dbapi_connection` is the driver's own connection."""
        self._is_dedicated = True
        connection = self._engine.raw_connection()
        connection.detach()
        return connection

    @property
    def compiler(self) -> SqlAlchemyDialect:
        """SQLAlchemy's dialect of this database. The dialect knows the server's version after the first connection."""
        return self._engine.dialect

    @contextmanager
    def patient(self) -> Iterator[Database]:
        """Yield this database with limits of up to an hour for a statement, because creating an index may take long."""
        dialect = self.dialect
        if dialect.ephemeral:
            yield self
            return
        lock = dialect.timeouts.lock if dialect.waits_block_others else None
        timeouts = Timeouts(dialect.timeouts.connect, read=3600, longest_lock=lock)
        with closing(Database(replace(dialect, timeouts=timeouts))) as patient:
            yield patient

    @property
    def fork_patience(self) -> float:
        """Seconds that a fork waits for a running statement: a little more than a statement waits for a lock."""
        return self.dialect.timeouts.lock + 1

    def close_before_fork(self) -> None:
        """Close idle connections before a fork. An in-memory database stays open: parent and child each get a copy."""
        if not self.dialect.ephemeral:
            self._pool.close_idle()

    def reset_after_fork(self) -> None:
        """Leave the connections to the parent. Called in a forked process.

        A child has its own copy of an in-memory database. If there are connections, a new engine is needed, because a
        thread of the parent may have held a lock of the old engine. The old engine must not close its connections when
        they are freed, because that would end the parent's sessions.
        """
        if self.dialect.ephemeral or not (self._pool.has_connections or self._is_dedicated):
            return
        self.dialect.abandon_connections()
        parents: Any = self._engine.dialect
        parents.do_close = parents.do_terminate = lambda connection: None
        self._parents.append((self._pool, self._engine))
        self._engine = self._new_engine()
        self._is_dedicated = False
        self._pool = self._new_pool()

    def close(self) -> None:
        """Close idle connections now, and each other connection when its work ends. Idempotent."""
        self._pool.close()


class ConnectionPool:
    """Keeps up to `size` idle connections open. At most `size` + `overflow` connections are open at a time.

    Safe to use from several threads.
    """

    def __init__(self, engine: Engine, size: int, overflow: int, timeout: float, keeps_cursors: bool) -> None:
        """`timeout`: seconds that `take` waits for a free connection."""
        self._engine = engine
        self._size = size
        self._most = size + overflow
        self._timeout = timeout
        self._keeps_cursors = keeps_cursors
        self._idle: deque[PooledConnection] = deque()
        self._free: SimpleQueue[None] = SimpleQueue()
        """Holds an item for each connection that may be taken. A queue is 2 µs faster than a semaphore (2026-11-23)."""
        for _ in range(self._most):
            self._free.put(None)

    @property
    def has_connections(self) -> bool:
        """Whether a connection is idle, taken or being opened. If not, no thread holds a lock of the engine."""
        return bool(self._idle) or self._free.qsize() < self._most

    def take(self) -> PooledConnection:
        """Return an idle connection, or open a new one.

        Raises:
            DBAPIError: no new connection could be opened.
            PoolTimeoutError: all connections stayed busy for `timeout` seconds.
        """
        try:
            self._free.get(timeout=self._timeout)
        except Empty:
            raise PoolTimeoutError(f"no connection became free within {self._timeout:g} s") from None
        try:
            try:
                return self._idle.pop()
            except IndexError:
                return PooledConnection(self._engine, self._keeps_cursors)
        except BaseException:
            self._free.put(None)
            raise

    def release(self, connection: PooledConnection, usable: bool = True) -> None:
        """Keep a connection for the next call. Close it if it is unusable, or if `size` connections are idle."""
        try:
            if usable and not connection.invalidated and len(self._idle) < self._size:
                self._idle.append(connection)
                if self._size == 0:  # The pool may have been closed before this connection was idle.
                    self.close_idle()
                return
            if not usable:
                connection.invalidate()
            connection.close()
        finally:
            self._free.put(None)

    def close_idle(self) -> None:
        while self._idle:
            with suppress(IndexError):  # another thread may have taken the connection
                self._idle.pop().close()

    def close(self) -> None:
        """Close idle connections now, and each other connection when it is released. Idempotent."""
        self._size = 0
        self.close_idle()
