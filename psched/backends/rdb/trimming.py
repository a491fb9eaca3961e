"""Deleting what a ledger of `rdb` need not keep any more, little by little. Used in children."""

from __future__ import annotations

import random
from typing import Any

from sqlalchemy import BigInteger, Column, Connection, Select, Table, bindparam, delete, func, select

from psched.backends.rdb.ledger import RdbLedger
from psched.dialects.base import now_ms
from psched.dialects.database import Database
from psched.dialects.once import once
from psched.ledger import DELETE

_OLDEST = now_ms() - bindparam("age", type_=BigInteger)
_ALL = 2**62
"""Later than any time."""


class TrimmedLedger(RdbLedger):
    """A ledger that can be trimmed. Each batch ends at a row that is found by its place in an index."""

    def __init__(self, database: Database, ledger: Table, changes: Table) -> None:
        super().__init__(database, ledger, changes)
        self._write_statements(ledger, changes)
        self._after = chr(random.randrange(0x20, 0x7F))  # not every process begins with the same key

    @once
    def _write_statements(self, ledger: Table, changes: Table) -> None:
        c, change = ledger.c, changes.c
        of_key, old = c.key == bindparam("of_key"), (c.trouble == bindparam("trouble")) & (c.ended < _OLDEST)
        self._old = _nth(c.ended, (c.ended, c.key, c.scheduled_time, c.fence)).where(old)
        self._delete_old = delete(ledger).where(old, c.ended <= bindparam("end"))
        self._first = _nth(c.scheduled_time, (c.scheduled_time, c.fence)).where(of_key)
        self._last = _nth(c.scheduled_time, (c.scheduled_time.desc(), c.fence.desc())).where(of_key)
        self._delete_first = delete(ledger).where(of_key, c.scheduled_time <= bindparam("end"))
        this = change.key == bindparam("of_key")
        self._version = select(func.max(change.version)).where(this, change.changed < _OLDEST)
        self._superseded = delete(changes).where(this, change.version < bindparam("of_version"))
        gone = change.action == DELETE
        self._deleted = delete(changes).where(this, change.version == bindparam("of_version"), gone)

    def trim(self, retention: float, count: int, limit: int, key: str | None) -> bool:
        """Delete about `limit` entries that are too old, and of `key` those before its last `count`."""
        age = round(retention * 1000)

        def work(connection: Connection, uncertain: bool) -> bool:
            deleted = [self._trim_old(connection, age, limit, trouble) for trouble in (0, 1)]
            if key is not None:
                deleted.append(self._trim_key(connection, key, count, limit))
            self._trim_changes(connection, age)
            return max(deleted) >= limit

        return self._database.run(work)

    def _trim_old(self, connection: Connection, age: int, limit: int, trouble: int) -> int:
        kind = {"age": age, "trouble": trouble}
        end = connection.execute(self._old, {**kind, "skipped": limit - 1}).scalar()
        done: int = connection.execute(self._delete_old, {**kind, "end": _ALL if end is None else end}).rowcount
        return done

    def _trim_key(self, connection: Connection, key: str, count: int, limit: int) -> int:
        surplus = connection.execute(self._last, {"of_key": key, "skipped": count}).scalar()
        if surplus is None:
            return 0
        end = connection.execute(self._first, {"of_key": key, "skipped": limit - 1}).scalar()
        values = {"of_key": key, "end": surplus if end is None else min(surplus, end)}
        done: int = connection.execute(self._delete_first, values).rowcount
        return done

    def _trim_changes(self, connection: Connection, age: int) -> None:
        """Delete, of the next key, the changes that an old one has superseded, and an old one that deleted it."""
        key = connection.execute(self._next_key, {"after_key": self._after}).scalar()
        self._after = "" if key is None else key
        version = None if key is None else connection.execute(self._version, {"of_key": key, "age": age}).scalar()
        if version is not None:
            values = {"of_key": key, "of_version": version}
            connection.execute(self._superseded, values)
            connection.execute(self._deleted, values)


def _nth(column: Column[Any], order: Any) -> Select[Any]:
    """Return `column` of the row that comes after :skipped others in `order`."""
    return select(column).order_by(*order).limit(1).offset(bindparam("skipped"))
