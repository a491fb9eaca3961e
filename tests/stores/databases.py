"""Databases that many tests share, each test with its own tables. A new database would take a quarter of a second."""

from __future__ import annotations

import contextlib
import itertools
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from faultlab import prerequisites
from faultlab.laboratory import Lab
from faultlab.mariadb import MariaDB
from faultlab.mysql_multiplexer import MultiplexedMariaDB
from faultlab.pgbouncer import PgBouncer
from faultlab.postgresql import SUPERUSER, PostgreSQL
from faultlab.redis import Redis
from faultlab.servers import Server
from tests.stores.bench import Bench
from tests.stores.reused_sessions import ReusedSessions
from tests.stores.rows import SqlRows, plain_engine

KINDS: dict[str, type[Server]] = {"mariadb": MariaDB, "postgresql": PostgreSQL}
DATABASES = ["sqlite", *KINDS]
STORES = ["rdb", "rdb_compat"]
"""The stores on SQL databases."""

MYSQLCLIENT = "mysqlclient"
"""MariaDB with another driver than psched's own. NOT RUN if mysqlclient is not installed."""

PGBOUNCER = "pgbouncer"
MULTIPLEXER = "multiplexer"
POOLERS = {PGBOUNCER: PgBouncer, MULTIPLEXER: MultiplexedMariaDB}
"""PostgreSQL and MariaDB behind poolers that use another session for each transaction."""

SQL_PAIRS = [(type_, database) for database in DATABASES for type_ in STORES]
PAIRS = [*SQL_PAIRS, ("rdb", MYSQLCLIENT), *(("rdb", pooler) for pooler in POOLERS), ("redis", "redis")]
"""Each store on each database."""

SERVER_PAIRS = [(type_, database) for database in KINDS for type_ in STORES]
"""The stores on each SQL server."""

_FORGET = sa.text("DELETE FROM pg_statistic WHERE starelid IN (SELECT oid FROM pg_class WHERE relname = ANY(:tables))")

on_our_tables = pytest.mark.parametrize(
    "bare",
    [*(("rdb", database) for database in (*DATABASES, PGBOUNCER)), ("redis", "redis")],
    indirect=True,
    ids="-".join,
)
"""Parameters for tests of features that rdb_compat's tables do not have."""

on_sql = pytest.mark.parametrize("bare", SQL_PAIRS, indirect=True, ids="-".join)
"""Parameters for tests of features that only SQL databases have."""


def folder_for(request: pytest.FixtureRequest, database: str) -> Path:
    """Return a folder for SQLite's file. Other databases need no folder, and making one takes a millisecond."""
    folder: Path = request.getfixturevalue("tmp_path") if database == "sqlite" else Path("/nowhere")
    return folder


def pooler_of(database: str) -> str:
    """Return the setting `pooler`. psched detects PgBouncer, but no other pooler."""
    return "transaction" if database == MULTIPLEXER else "auto"


class SharedDatabases:
    """Gives each test a bench. The tables are not dropped: they vanish with the servers."""

    def __init__(self, lab: Lab) -> None:
        self._lab = lab
        self._urls: dict[str, str] = {}
        self._engines: dict[str, sa.Engine] = {}
        self.sessions = ReusedSessions(lab.kept)
        self._numbers = defaultdict[tuple[str, str], Iterator[int]](itertools.count)
        self._unused = defaultdict[tuple[str, str], list[int]](list)
        self._kept = defaultdict[tuple[type[Bench], str, str, bool], list[SqlRows]](list)

    def bench(self, type_: str, database: str, folder: Path) -> Bench:
        """Return a bench for a table that does not exist yet. `folder`: the place of SQLite's file.

        Different databases have tables of the same few names, because a store needs 30 ms to build the statements for a
        new name.
        """
        url = f"sqlite:///{folder}/psched.db" if database == "sqlite" else self._url(database)
        unused = self._unused[type_, url]
        number = unused.pop() if unused else next(self._numbers[type_, url])
        return Bench(type_, url, f"schedules_{type_}_{number}", pooler_of(database), self._engine(url, database))

    @contextlib.contextmanager
    def made(self, bench: Bench, new: bool = False, unchecked: bool = False) -> Iterator[None]:
        """Give the bench an empty table: a new one, or an emptied table of an earlier test, which takes less time.

        Tests with the mark `new_table` check plans. Databases keep statistics of a table's former rows, so these are
        removed, and SQLite's tables are copied anew. Tests with the mark `unchecked` write what CHECK constraints
        forbid, and share tables without these constraints.
        """
        url = sa.make_url(bench.url)
        on_sqlite = url.drivername == "sqlite"
        kind = (type(bench), bench.type, f"{url.drivername}:{url.port}")
        kept = self._kept[*kind, unchecked]
        if kept and not (new and on_sqlite):
            self._unused[bench.type, bench.url].append(int(bench.table.rpartition("_")[2]))
            rows = kept.pop(0 if new else -1)
            bench.settle_on(rows)
            if new or rows.remembered:
                self._forget(rows)
                rows.renew()
            else:
                rows.empty()
        else:
            bench.make()
        yield
        rows = bench.rows
        if isinstance(rows, SqlRows) and rows.as_made and not (on_sqlite and rows.remembered):
            kept = self._kept[*kind, rows.unchecked]
            kept.insert(0 if rows.remembered else len(kept), rows)

    def _forget(self, rows: SqlRows) -> None:
        """Remove PostgreSQL's statistics of the tables, for which a superuser is needed."""
        url = sa.make_url(rows.url)
        if url.drivername == "postgresql":
            server = self._lab.shared(PostgreSQL)
            place = url.set(username=SUPERUSER, port=server.port).render_as_string(hide_password=False)
            with self._kept_engine(place).begin() as connection:
                connection.execute(_FORGET, {"tables": rows.tables})

    def _engine(self, url: str, database: str) -> sa.Engine | None:
        """Return the engine that reads the rows of all tests on a server. Then no test needs a connection for this."""
        return None if database in ("sqlite", "redis") else self._kept_engine(url)

    def _kept_engine(self, url: str) -> sa.Engine:
        if url not in self._engines:
            self._engines[url] = engine = plain_engine(url)
            sa.event.listen(engine, "connect", self._keep)
            sa.event.listen(engine, "close", lambda _, record: self._lab.kept.discard(record.info["descriptor"]))
        return self._engines[url]

    def _keep(self, connection: Any, record: Any) -> None:
        """Record the descriptor of a PyMySQL or psycopg connection for the leak check."""
        record.info["descriptor"] = getattr(connection, "_sock", connection).fileno()
        self._lab.kept.add(record.info["descriptor"])

    def close(self) -> None:
        """Close the connections that stay open between tests."""
        for engine in self._engines.values():
            engine.dispose()
        self.sessions.close()

    def _url(self, database: str) -> str:
        if database == MYSQLCLIENT:
            prerequisites.require_mysqlclient()
        if database not in self._urls:
            kinds = {**KINDS, MYSQLCLIENT: MariaDB, "redis": Redis}
            server = (
                self._lab.shared_pooler(POOLERS[database]) if database in POOLERS else self._lab.shared(kinds[database])
            )
            url = server.url(server.create_database())
            if database == "postgresql":
                self.sessions.port = server.port
            self._urls[database] = url.replace("mysql:", "mysql+mysqldb:") if database == MYSQLCLIENT else url
        return self._urls[database]
