"""A bench for a store under test: opens stores on a fresh table, and reads and writes its rows without psched.

The differences between stores are described here once (`Bench.times`, `columns`), so that the tests are the same for
all stores.
"""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import sqlalchemy as sa

from psched.backends import open_stores
from psched.clock import boottime
from psched.errors import AlreadyFinishedError, PreemptedError
from psched.model import Claim, Rule, ScheduleRow
from psched.store import ScheduleStore, StoreSettings
from tests.prepared_sqlite import make_tables
from tests.stores.rows import Columns, RedisRows, Rows, SqlRows

Result = TypeVar("Result")

LONG_AGO = 1_600_000_000
"""An occurrence that is always due, in unix seconds."""

FAR_OFF = 2_000_000_000
"""An occurrence that is not due before 2033, and fits into 32 bits, in unix seconds."""

HOURLY = Rule("0 * * * *", "UTC")

_OF_ROWS = ("INSERT INTO {table}", "UPDATE {table}", "DELETE FROM {table}", "SELECT")
"""The beginnings of statements that read or change only the rows of a table."""

_OF_STATISTICS = ("ANALYZE", "ALTER TABLE {table} SET (autovacuum_enabled =")
"""The beginnings of statements that change only what a database knows of the rows."""

LOST = (PreemptedError, AlreadyFinishedError)
"""Errors that a call with a lease may raise if the lease's own holder has settled it. Both mean that nothing was
changed.
"""


@dataclass
class Bench:
    """One kind of store, on one database, with one fresh table.

    `lease`: the seconds of a short lease, for whose end a test can wait. `grain`: the smallest difference of due times.
    """

    beside: ClassVar[Sequence[str]] = ("ledger", "changes", "output", "failures", "watermarks", "outbox", "calendars")

    type: str
    url: str
    table: str = "schedules"
    pooler: str = "auto"
    engine: sa.Engine | None = None
    """The engine that reads the rows, if it stays open when the test ends."""
    _opened: list[ScheduleStore] = field(default_factory=list)
    _numbers: Iterator[int] = field(default_factory=itertools.count)
    _rows: Rows | None = None

    @property
    def compat(self) -> bool:
        """Whether this is an original's table: whole seconds, no holder, no attempts, no types column."""
        return self.type == "rdb_compat"

    def takes(self, key: str) -> bool:
        """Return whether this key may be written. Ruby workers hang on characters of four bytes."""
        return not self.compat or max(key) <= "\uffff"

    @property
    def database(self) -> str:
        """The kind of database: sqlite, mysql, postgresql or redis."""
        return sa.make_url(self.url).get_backend_name()

    @property
    def grain(self) -> float:
        return 1.0 if self.compat else 0.001

    @property
    def lease(self) -> float:
        return 1.0 if self.compat else 0.2

    @property
    def columns(self) -> Columns:
        return Columns("id", "timeout", 1) if self.compat else Columns("key", "due", 1000)

    @property
    def rows(self) -> Rows:
        """The table, read and written without psched."""
        if self._rows is None:
            is_redis = self.database == "redis"
            self._rows = RedisRows(self.url, self.table) if is_redis else self._sql_rows()
        return self._rows

    def _sql_rows(self) -> SqlRows:
        return SqlRows(self.url, self.table, self.columns, () if self.compat else self.beside, self.engine)

    @property
    def sql(self) -> SqlRows:
        """The table of a SQL database, read and written without psched."""
        assert isinstance(self.rows, SqlRows), "this is no SQL database"
        return self.rows

    def make(self) -> None:
        """Make the table."""
        if self.database == "sqlite":
            file = Path(str(sa.make_url(self.url).database))
            make_tables(file, (type(self), self.type, self.table), self._create)
        else:
            self._create()

    def _create(self) -> None:
        self.open().create_tables()
        self._opened[-1].close()

    def settle_on(self, rows: SqlRows) -> None:
        """Use this table, which exists already."""
        self.url, self.table, self._rows = rows.url, rows.table, rows

    @property
    def plain_url(self) -> sa.URL:
        """The URL for SQLAlchemy, with the driver's name."""
        self.sql.as_made = False  # who knows what will be done there
        return self.sql.plain_url

    @property
    def quoted_key(self) -> str:
        """The name of the key column, quoted for SQL."""
        quote = "`" if self.database == "mysql" else '"'
        return f"{quote}{self.columns.key}{quote}"

    def open(
        self, holder: str | None = None, url: str | None = None, read_only: bool = False, long_reads: bool = False
    ) -> ScheduleStore:
        """Open another store, like another process. It is closed at the end of the test."""
        name = f"host/1/{next(self._numbers)}" if holder is None else holder
        place = self.url if url is None else url
        access = {"read_only": read_only, "long_reads": long_reads}
        settings = StoreSettings(url=place, holder=name, schedules=self.table, pooler=self.pooler, **access)
        store = open_stores(self.type, settings).schedules
        assert store is not None
        self._opened.append(store)
        return store

    def close(self) -> None:
        """Close everything that this bench has opened."""
        for store in self._opened:
            store.close()
        if self._rows is not None:
            self._rows.close()

    def connect(self) -> contextlib.AbstractContextManager[sa.Connection]:
        """Return a connection to the SQL database without psched, in one transaction."""
        self.sql.as_made = False  # who knows what will be done there
        return self.sql.connect()

    def execute(self, statement: str, **values: Any) -> int:
        """Execute SQL without psched, with `{table}` replaced by the table's name. Return the number of rows."""
        self.sql.as_made &= statement.startswith((*_OF_ROWS, *_OF_STATISTICS))
        self.sql.remembered |= statement.startswith(_OF_STATISTICS)
        with self.sql.connect() as connection:
            done: int = connection.execute(sa.text(statement.format(table=self.table)), values).rowcount
            return done

    def raw(self, key: str) -> dict[str, Any] | None:
        """Return the whole row as it is stored; None if there is none."""
        return self.rows.raw(key)

    def write(self, key: str, **values: Any) -> None:
        """Write columns of one row without psched."""
        self.rows.write(key, values)

    def make_due(self, key: str) -> None:
        """Move the row's due time to long ago, as if time had passed. On `rdb_compat` this changes the fence."""
        self.write(key, **{self.columns.due: LONG_AGO * self.columns.per_second})

    def fill(self, store: ScheduleStore, keys: list[str], due: Callable[[int], int]) -> None:
        """Create a schedule for each key.

        Number n is due at `due(n)`. The store adds the first; the others are copies of it.
        """
        self.add(store, keys[0], due=due(0))
        self.rows.copy(keys, due)

    def add(self, store: ScheduleStore, key: str, due: float = LONG_AGO, **values: Any) -> None:
        """Create a schedule with this due time. `values` replace other arguments of `ScheduleStore.add`."""
        arguments: dict[str, Any] = {"type": "type1", "rule": HOURLY, "next_time": int(due), "data": {"n": 1}} | values
        store.add(key, next_run_time=due, **arguments)

    def take(self, store: ScheduleStore, key: str, alive_time: float = 100) -> Claim:
        """Acquire one row, and check that its key is `key`."""
        claims = store.acquire(1, alive_time)
        assert [claim.row.key for claim in claims] == [key]
        return claims[0]


def new_row(key: str, data: dict[str, Any], due: int = LONG_AGO, **fields: Any) -> ScheduleRow:
    """Return a new schedule, as an argument for `add_many`."""
    usual = {"type": "type1", "status": "waiting", "rule": HOURLY, "next_time": due, "next_run_time": due}
    return ScheduleRow(key, data=data, **{**usual, **fields})


def soon() -> float:
    """Return a deadline in 5 s, for writes with a lease."""
    return boottime() + 5


def eventually(condition: Callable[[], Result], within: float = 10) -> Result:
    """Return the first true value of `condition`. It is called less and less often. Fail after `within` seconds."""
    deadline = time.monotonic() + within
    pause = 0.01
    while not (answer := condition()):
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(pause)
        pause = min(1.2 * pause, 0.05)
    return answer


def unless_away(store: ScheduleStore, call: Callable[[], Result]) -> Result | None:
    """Return the result of the call; None if it raises an error that the store calls transient."""
    try:
        return call()
    except Exception as error:
        if not store.is_unavailable(error):
            raise
        return None


def keys_of(claims: list[Claim]) -> list[str]:
    return [claim.row.key for claim in claims]
