"""The base class of the stores on SQL databases: tables, clock and errors."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from sqlalchemy import Connection, select

from psched.backends.common.retries import sent_within
from psched.backends.sql.database import Database
from psched.backends.sql.dialect import now_ms
from psched.backends.sql.schema import Schema
from psched.backends.sql.statement import Statement
from psched.store import Accepts, Finding, LeaseStore
from psched.store.wakeup import Wakeup

_NOW = Statement(select(now_ms()))


class SqlStore(LeaseStore):
    """A store in one table of one database."""

    def __init__(self, database: Database, layout: Schema) -> None:
        """Connects to nothing yet."""
        self._database = database
        self._layout = layout
        self.sent_within = sent_within(database.dialect.timeouts)

    def create_tables(self) -> None:
        self._layout.create()

    def check_tables(self) -> None:
        self._layout.check()

    def prepare(self, types: Collection[str] | None = None) -> None:
        return

    def diagnose(self) -> Iterator[Finding]:
        return self._layout.diagnose()

    def now(self) -> float:
        return self._database.run(_read_clock) / 1000

    def is_unavailable(self, error: Exception) -> bool:
        return self._database.fault(error) is not None

    def is_refused(self, error: Exception) -> bool:
        return self._database.is_refused(error)

    def open_wakeup(self, accepts: Accepts | None = None) -> Wakeup | None:
        return None

    def shares_database(self, other: object) -> bool:
        if not isinstance(other, SqlStore):
            return False
        ours, theirs = self._database.dialect, other._database.dialect
        return not ours.ephemeral and ours.url == theirs.url

    def close(self) -> None:
        self._database.close()


def _read_clock(connection: Connection, _: bool) -> int:
    [(milliseconds,)] = _NOW.rows(connection, {})
    return int(milliseconds)
