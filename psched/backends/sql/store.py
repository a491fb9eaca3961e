"""The base class of the stores on SQL databases: tables, clock and errors."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Collection, Iterator
from typing import Any

from sqlalchemy import Connection, RowMapping, select

from psched.backends.common.retries import sent_within
from psched.backends.sql.compiled_statements import Statement
from psched.backends.sql.database import Database
from psched.backends.sql.dialect import now_ms
from psched.backends.sql.schema_setup import Schema
from psched.store import Accepts, Finding, LeaseStore, Wakeup

_NOW = Statement(select(now_ms()))


class SqlStore(LeaseStore):
    def __init__(self, database: Database, schema: Schema) -> None:
        """Opens no connection."""
        self._database = database
        self._schema = schema
        self.sent_within = sent_within(database.dialect.timeouts)

    def create_tables(self) -> None:
        self._schema.create()

    def check_tables(self) -> None:
        self._schema.check()

    def pending_statements(self) -> list[str]:
        return self._schema.pending()

    def prepare(self, types: Collection[str] | None = None) -> None:
        return

    def diagnose(self, writing: bool = True) -> Iterator[Finding]:
        return self._schema.diagnose(writing)

    def now(self) -> float:
        return self._database.run(_read_clock) / 1000

    def is_unavailable(self, error: Exception) -> bool:
        return self._database.retry_reason(error) is not None

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

    @abstractmethod
    def _row(self, connection: Connection, key: str, locked: bool = False) -> RowMapping | None:
        """Return the row of `key`, or None."""

    def _delete_row(
        self, key: str, identity: Callable[[RowMapping], Any], delete: Callable[[Connection, RowMapping], object]
    ) -> bool:
        """Lock the row of `key` and call `delete`, in one transaction. Return False if there is no row.

        `identity` returns a value that identifies the row. If the answer to the delete was lost, a later row with the
        same key is not deleted.
        """
        seen: Any = None

        def work(connection: Connection, uncertain: bool) -> bool:
            nonlocal seen
            with self._database.transaction(connection):
                row = self._row(connection, key, locked=True)
                if row is None or (uncertain and seen not in (None, identity(row))):
                    return uncertain and seen is not None
                seen = identity(row)
                delete(connection, row)
            return True

        return self._database.run(work)


def _read_clock(connection: Connection, _: bool) -> int:
    [(milliseconds,)] = _NOW.rows(connection, {})
    return int(milliseconds)
