"""Databases that many tests share, each test with its own tables: a new database costs a quarter of a second."""

from __future__ import annotations

import contextlib
import itertools
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa

from faultlab import prerequisites
from faultlab.laboratory import Lab
from faultlab.mariadb import MariaDB
from faultlab.mysql_multiplexer import MultiplexedMariaDB
from faultlab.pgbouncer import PgBouncer
from faultlab.postgresql import PostgreSQL
from faultlab.redis import Redis
from faultlab.servers import Server
from tests.stores.bench import Bench
from tests.stores.rows import SqlRows

KINDS: dict[str, type[Server]] = {"mariadb": MariaDB, "postgresql": PostgreSQL}
DATABASES = ["sqlite", *KINDS]
STORES = ["rdb", "rdb_compat"]
"""The SQL databases, and the stores on them."""

MYSQLCLIENT = "mysqlclient"
"""MariaDB by another driver than psched's own; NOT RUN where mysqlclient is not installed."""

PGBOUNCER = "pgbouncer"
MULTIPLEXER = "multiplexer"
POOLERS = {PGBOUNCER: PgBouncer, MULTIPLEXER: MultiplexedMariaDB}
"""PostgreSQL and MariaDB behind poolers that give each transaction another session."""

SQL_PAIRS = [(type_, database) for database in DATABASES for type_ in STORES]
PAIRS = [*SQL_PAIRS, ("rdb", MYSQLCLIENT), *(("rdb", pooler) for pooler in POOLERS), ("redis", "redis")]
"""Each store on each database."""

SERVER_PAIRS = [(type_, database) for database in KINDS for type_ in STORES]
"""The stores on a SQL server."""

on_our_tables = pytest.mark.parametrize(
    "bare",
    [*(("rdb", database) for database in (*DATABASES, PGBOUNCER)), ("redis", "redis")],
    indirect=True,
    ids="-".join,
)
"""For tests of features that the tables of rdb_compat do not have."""

on_sql = pytest.mark.parametrize("bare", SQL_PAIRS, indirect=True, ids="-".join)
"""For tests of features that only SQL databases have."""


def pooler_of(database: str) -> str:
    """Return the setting `pooler`: PgBouncer is found out, other poolers are not."""
    return "transaction" if database == MULTIPLEXER else "auto"


class SharedDatabases:
    """Gives each test a bench. Tables are not dropped: they disappear with their servers."""

    def __init__(self, lab: Lab) -> None:
        self._lab = lab
        self._urls: dict[str, str] = {}
        self._numbers = itertools.count()
        self._kept = defaultdict[tuple[type[Bench], str, str, bool], list[SqlRows]](list)

    def bench(self, type_: str, database: str, folder: Path) -> Bench:
        """Return a bench for a table that does not exist yet; SQLite's file is in `folder`."""
        url = f"sqlite:///{folder}/psched.db" if database == "sqlite" else self._url(database)
        return Bench(type_, url, f"schedules_{next(self._numbers)}", pooler=pooler_of(database))

    @contextlib.contextmanager
    def made(self, bench: Bench, new: bool = False, unchecked: bool = False) -> Iterator[None]:
        """Give the bench an empty table: a new one, or an emptied table of an earlier test, which costs less.

        Tests marked `new_table` look at plans: databases keep statistics of the rows that a table had. Tests marked
        `unchecked` write what CHECK constraints forbid: they share the tables without these among themselves.
        """
        url = sa.make_url(bench.url)
        kind = (type(bench), bench.type, f"{url.drivername}:{url.port}")
        if not new and (kept := self._kept[*kind, unchecked]):
            bench.settle_on(kept.pop())
            bench.sql.empty()
        else:
            bench.make()
        yield
        if not new and isinstance(bench.rows, SqlRows) and bench.rows.as_made:
            self._kept[*kind, bench.rows.unchecked].append(bench.rows)

    def _url(self, database: str) -> str:
        if database == MYSQLCLIENT:
            prerequisites.require_mysqlclient()
        if database not in self._urls:
            kinds = {**KINDS, MYSQLCLIENT: MariaDB, "redis": Redis}
            server = (
                self._lab.shared_pooler(POOLERS[database]) if database in POOLERS else self._lab.shared(kinds[database])
            )
            url = server.url(server.create_database())
            self._urls[database] = url.replace("mysql:", "mysql+mysqldb:") if database == MYSQLCLIENT else url
        return self._urls[database]
