"""One database: its connections, each with its timeouts, and retries with a bound.

A pool of one connection (of more for a process of many threads) with a small overflow, so that a heartbeat beside a
long statement opens a second one and nothing else does. Connections are in autocommit: one statement is one transaction
unless `transaction` says otherwise.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from functools import partial
from typing import Any, TypeVar

from sqlalchemy import Connection, Engine, Insert, Table, Update, create_engine, event
from sqlalchemy.exc import ArgumentError, DBAPIError, NoSuchModuleError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError
from sqlalchemy.sql.elements import TextClause

from psched import fork_safety as forks
from psched.backends.common.connection_options import Timeouts
from psched.backends.common.errors import Fault
from psched.backends.common.retries import LoginBackoff, Retries
from psched.backends.sql.base import Dialect
from psched.backends.sql.connection import IdleConnections, RawConnection, as_sqlalchemy, wrapped
from psched.backends.sql.statement import Executing, TwoStatements
from psched.clock import Clock, boottime
from psched.errors import ConfigError, NotSupportedError
from psched.store import Accepts, Wakeup

log = logging.getLogger(__name__)

_PACKAGES = {"MySQLdb": "'psched[mysqlclient]'"}
"""Module of a driver → the package that has it, where their names differ."""

T = TypeVar("T")
Work = Callable[[Connection, bool], T]
"""What is done on one connection; the flag says whether an earlier attempt may have been done without our knowing."""
DirectWork = Callable[[Executing, bool], T]
"""The same by prepared statements."""


class Database:
    """Runs work on connections to one database.

    Safe to use from several threads, and after a fork in both processes: the new one makes connections of its own.
    """

    def __init__(self, dialect: Dialect, clock: Clock = boottime, sleep: Callable[[float], None] = time.sleep) -> None:
        """Connect to nothing yet. Raises ConfigError when the URL or the driver cannot be used."""
        self.dialect = dialect
        self._clock = clock
        self._sleep = sleep
        self._kept = IdleConnections(dialect.connections)
        self._parents: list[Any] = []
        self._logins = LoginBackoff()
        self._engine = self._new_engine()
        self._work: AbstractContextManager[None] = nullcontext()
        forks.register_for_fork(self)
        if not dialect.crosses_forks:
            self._work = forks.work_on_closing
            forks.close_before_fork(self)

    def _new_engine(self) -> Engine:
        """Return an engine of SQLAlchemy's without connections. Raises ConfigError."""
        dialect = self.dialect
        try:
            engine = create_engine(
                dialect.url,
                isolation_level="AUTOCOMMIT",
                pool_reset_on_return=None,
                skip_autocommit_rollback=True,
                hide_parameters=True,
                **dialect.engine_options(),
            )
        except ModuleNotFoundError as error:
            package = _PACKAGES.get(str(error.name), error.name)
            raise ConfigError(
                f"the driver of {dialect.url.drivername}:// is not installed: pip install {package}"
            ) from error
        except (ArgumentError, NoSuchModuleError) as error:
            raise ConfigError(f"url: {dialect.url.drivername}:// cannot be used: {error}") from error
        if engine.dialect.is_async:
            raise ConfigError(f"url: {dialect.url.drivername}:// is an asynchronous driver; leave out the +driver")
        event.listen(engine, "do_connect", lambda driver, _, given, options: self._log_in(driver, given, options))
        event.listen(engine, "connect", lambda connection, _: dialect.prepare(connection))
        return engine

    def _log_in(self, driver: Any, given: Sequence[Any], options: Mapping[str, Any]) -> Any:
        """Return a new driver connection; `driver`: SQLAlchemy's dialect. Raises what the driver does."""

        def connect() -> Any:
            connection = self.dialect.connect(given, options)
            return driver.connect(*given, **options) if connection is None else connection

        return self._logins.log_in(connect, self.dialect.is_refused)

    def run(self, work: Work[T], until: float | None = None) -> T:
        """Return `work(connection, uncertain)`, done again on a fresh connection when the old one was lost.

        Conflicts are tried again too; with `until` (boottime seconds) both go on up to then. `work` must bear being
        done twice, returns its findings, and raises nothing but what the driver does.
        """
        return self._retried(partial(self._attempt, work), until)

    def run_direct(self, work: DirectWork[T], until: float | None = None) -> T:
        """Return `work(connection, uncertain)` as `run` does, of statements whose texts are known, most of them.

        Listeners of SQLAlchemy's events, such as tracers, are called for each.
        """
        heard = self._engine.dispatch
        if heard.before_cursor_execute or heard.after_cursor_execute:
            return self.run(work, until)
        return self._retried(partial(self._attempt_directly, work), until)

    def _retried(self, attempt: Callable[[bool], T], until: float | None) -> T:
        retries = Retries(until, self._clock)
        uncertain = False
        while True:
            try:
                return attempt(uncertain)
            except (DBAPIError, PoolTimeoutError) as error:
                fault = self.fault(error)
                pause = retries.pause(fault)
                if pause is None and (left := self._logins.pause()) and self.is_refused(error):
                    pause = retries.pause_of_login(left)
                if pause is None:
                    raise
                uncertain = uncertain or fault is Fault.LOST
            self._sleep(pause)

    @contextmanager
    def transaction(self, connection: Executing) -> Iterator[None]:
        """Make the statements within one transaction: READ COMMITTED, on SQLite with the write lock from the start."""
        connection.exec_driver_sql(self.dialect.begin)
        try:
            yield
            connection.exec_driver_sql("COMMIT")
        except DBAPIError as error:
            self._roll_back(connection, error)
            raise

    def execute_with(
        self,
        connection: Connection,
        statement: Update | Insert,
        values: Mapping[str, Any],
        also: Callable[[Connection], object] | None,
    ) -> bool:
        """Change one row and tell whether it was there; if so do `also`, in the same transaction."""
        if also is None:
            return connection.execute(statement, values).rowcount == 1
        with self.transaction(connection):
            done = connection.execute(statement, values).rowcount == 1
            if done:
                also(connection)
        return done

    def execute_all(
        self, connection: Executing, count: int, change: Callable[[], int], then: Callable[[], object]
    ) -> bool:
        """Change `count` rows and do what follows, in one transaction; False, and nothing is done, when it is fewer."""
        connection.exec_driver_sql(self.dialect.begin)
        try:
            done = change() == count
            if done:
                then()
            connection.exec_driver_sql("COMMIT" if done else "ROLLBACK")
        except DBAPIError as error:
            self._roll_back(connection, error)
            raise
        return done

    def execute_pair(
        self,
        connection: Executing,
        pair: TwoStatements,
        values: Mapping[str, Any],
        also: Callable[[Connection], object] | None,
    ) -> bool:
        """Change one row and tell whether it was there; if so do what follows, and `also`, in the same transaction."""
        joined = None
        if also is None:
            joined = self.dialect.joined(connection, pair.first.prepare(connection), pair.second.prepare(connection))
        if joined is not None:
            with closing(connection.exec_driver_sql(joined.text, joined.parameters(values))) as cursor:
                return bool(cursor.fetchone()[0])  # to close it reads the rest of the answer
        with self.transaction(connection):
            done = pair.first.execute(connection, values) == 1
            if done:
                pair.second.execute(connection, values)
            if done and also is not None:
                also(as_sqlalchemy(connection))
        return done

    def fault(self, error: Exception) -> Fault | None:
        """Return how `error` passes by itself; None when it will not, or is no error of the database's."""
        if isinstance(error, PoolTimeoutError):
            return Fault.LOST
        driver = self._engine.dialect.loaded_dbapi.Error
        if isinstance(error, driver):  # of a connection that is not the pool's any more
            error = DBAPIError.instance(None, None, error, driver)
        if not isinstance(error, DBAPIError):
            return None
        return Fault.LOST if error.connection_invalidated else self.dialect.fault(error)

    def is_refused(self, error: Exception) -> bool:
        """Return whether `error` means that the server refuses our user."""
        return self.dialect.is_refused(getattr(error, "orig", None) or error)

    def execute(self, statement: TextClause, values: Mapping[str, Any]) -> Any:
        """Execute a statement and return its first value, or None."""
        return self.run(lambda connection, _: connection.execute(statement, values).scalar())

    def dedicated(self) -> Any:
        """Return a connection that no longer belongs to the pool; its `dbapi_connection` is the driver's own."""
        connection = self._kept.asking(self._engine.raw_connection)
        connection.detach()
        return connection

    def shares_sessions(self) -> bool:
        """Return whether a pooler is seen to give two connections of ours one session. Opens two connections."""
        with closing(self.dedicated()) as first, closing(self.dedicated()) as second:
            return self.dialect.shares_sessions(first.dbapi_connection, second.dbapi_connection)

    def install_wakeup(self, table: Table) -> None:
        """Let rows of `table` that become due call who listens, where the database can do that; idempotent."""

        def work(connection: Connection, uncertain: bool) -> None:
            with self.transaction(connection):
                self.dialect.install_wakeup(connection, table)

        try:
            self.run(work)
        except DBAPIError as error:
            if self.fault(error) is not None:
                raise
            log.warning("%s cannot notify idle workers of due rows, so workers poll: %s", table.name, error.orig)

    def open_wakeup(self, table: str, accepts: Accepts | None = None) -> Wakeup | None:
        """Return the notification of due rows of `table`; None where the database sends none."""
        return self.dialect.open_wakeup(self, table, accepts)

    def is_same(self, other: Database) -> bool:
        """Return whether `other` is the same database, reached in the same way."""
        return not self.dialect.ephemeral and self.dialect.url == other.dialect.url

    def of_caller(self, given: Any) -> Connection:
        """Return the caller's Connection, or his Session's. Raises NotSupportedError for another kind of database."""
        connection: Connection = given if isinstance(given, Connection) else given.connection()
        if connection.dialect.name.replace("mariadb", "mysql") != self.dialect.name:
            raise NotSupportedError(
                f"connection: it is of a {connection.dialect.name} database, but the table is in {self.dialect.name}; "
                "submit without it, or keep the table in that database"
            )
        return connection

    @contextmanager
    def patient(self) -> Iterator[Database]:
        """Give the same database with an hour for each statement: creating an index may take that long."""
        dialect = self.dialect
        if dialect.ephemeral:
            yield self
            return
        timeouts = Timeouts(dialect.timeouts.connect, read=3600)
        patient = Database(type(dialect)(dialect.url, dialect.tls, timeouts, pooler=dialect.pooler))
        try:
            yield patient
        finally:
            patient.close()

    @property
    def fork_patience(self) -> float:
        """The seconds that a fork waits for a statement: as long as it may wait for a locked row or file, and more."""
        return self.dialect.timeouts.lock + 1

    def close_before_fork(self) -> None:
        """Close what is idle; a database in memory goes on, in both processes."""
        if not self.dialect.ephemeral:
            self._kept.give_back()
            self._engine.dispose()

    def begin_anew(self) -> None:
        """In a process that was forked off: leave the connections to the parent. A database in memory was copied.

        The engine has locks of its own besides its pool's: a thread that connects first holds one meanwhile.
        """
        if self.dialect.ephemeral:
            return
        self.dialect.abandon_connections()
        self._parents.append((self._kept, self._engine))
        self._kept = self._kept.anew()
        self._engine = self._new_engine()

    def close(self) -> None:
        """Close the pooled connections; idempotent."""
        self._kept.close()
        self._engine.dispose()

    def _roll_back(self, connection: Executing, error: DBAPIError) -> None:
        if self.fault(error) is not Fault.LOST:
            connection.exec_driver_sql("ROLLBACK")

    def _attempt(self, work: Work[T], uncertain: bool) -> T:
        with self._work:
            return self._attempt_once(work, uncertain)

    def _attempt_once(self, work: Work[T], uncertain: bool) -> T:
        pool = self._engine.pool
        with self._kept.asking(self._engine.connect) as connection:
            try:
                return work(connection, uncertain)
            except BaseException as error:
                if self._is_spoilt(error):
                    connection.invalidate()
                raise
            finally:
                if self._engine.pool is not pool:  # who would close what is given back to a pool that is gone?
                    connection.invalidate()

    def _attempt_directly(self, work: DirectWork[T], uncertain: bool) -> T:
        with self._work:
            return self._attempt_directly_once(work, uncertain)

    def _attempt_directly_once(self, work: DirectWork[T], uncertain: bool) -> T:
        direct = self._kept.take(self._connected)
        try:
            done = work(direct, uncertain)
        except BaseException as error:
            self._let_go(direct, error)
            if isinstance(error, self._engine.dialect.loaded_dbapi.Error):  # SQLite finds more rows as it is asked
                raise wrapped(error, self._engine.dialect) from error
            raise
        self._kept.keep(direct)
        return done

    def _let_go(self, direct: RawConnection, error: BaseException) -> None:
        """Give a connection back after `error`, closed if it cannot be used any more."""
        try:
            if self._is_spoilt(error):
                direct.invalidate()
        finally:
            direct.close()
        if isinstance(error, DBAPIError) and error.connection_invalidated:
            self._kept.give_back()
            self._engine.dispose()  # the others in the pool are as old

    def _is_spoilt(self, error: BaseException) -> bool:
        """Return whether a connection cannot be used after `error`.

        A driver interrupted amid an answer would give the rest of it to the next question.
        """
        return not isinstance(error, DBAPIError) or self.fault(error) is Fault.LOST

    def _connected(self) -> RawConnection:
        """Return a connection of the pool's. Raises DBAPIError."""
        try:
            return RawConnection(self._engine, self.dialect.keeps_cursors)
        except self._engine.dialect.loaded_dbapi.Error as error:
            raise wrapped(error, self._engine.dialect) from error
