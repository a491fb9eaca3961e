"""Writes rows into the tables of a trial directly, without psched. Runs in the test process."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any, Protocol, TypeVar

import redis
import sqlalchemy as sa

from faultlab.trials.environment import TrialEnvironment, direct_engine
from faultlab.trials.server_control import TABLES

AT_A_TIME = 200
"""The number of rows in one transaction: few enough that no other client waits long, because locked tables are another
fault.
"""
T = TypeVar("T")

_OF_SCHEDULES = frozenset({"type", "data", "status", "due", "cron", "timezone", "delay_ms", "next_time", "row"})
_OF_TASKS = frozenset({"type", "data", "status", "due", "run_at", "user", "priority", "row"})


class RawTable(Protocol):
    """One table."""

    columns: frozenset[str]

    def write(self, rows: Sequence[dict[str, Any]]) -> None:
        """Write new rows."""
        ...

    def delete(self, keys: Sequence[str]) -> None:
        """Delete rows, like a program that knows only the rows, and no other structure of the table."""
        ...

    def close(self) -> None:
        """Close the connections."""
        ...


def raw_tables(environment: TrialEnvironment) -> Sequence[RawTable]:
    """Return the table of schedules and the table of tasks."""
    if environment.store == "redis":
        return [OnRedis(environment.url(), TABLES[0], _OF_SCHEDULES), OnRedis(environment.url(), TABLES[1], _OF_TASKS)]
    return [OnSql(environment, name) for name in TABLES]


class OnSql:
    """A table of a SQL database."""

    def __init__(self, environment: TrialEnvironment, name: str) -> None:
        self._engine = direct_engine(environment)
        self._table = sa.Table(name, sa.MetaData(), autoload_with=self._engine)
        self._key = self._table.c[environment.key_column]
        self.columns = frozenset(self._table.c.keys())

    def write(self, rows: Sequence[dict[str, Any]]) -> None:
        for part in batched(rows):
            with self._engine.begin() as connection:
                for row in part:  # a single `execute` for all rows would use the columns of the first row
                    connection.execute(self._table.insert(), row)

    def delete(self, keys: Sequence[str]) -> None:
        for part in batched(keys):
            self._delete(part)

    def close(self) -> None:
        self._engine.dispose()

    def _delete(self, keys: Sequence[str], tries: int = 20) -> None:
        """Delete rows. Try again after a deadlock, because workers write the same rows in another order."""
        for left in reversed(range(tries)):
            try:
                with self._engine.begin() as connection:
                    connection.execute(self._table.delete().where(self._key.in_(keys)))
            except sa.exc.OperationalError:
                if left == 0:
                    raise
            else:
                return


class OnRedis:
    """A table in Redis: a hash for each row, and sorted sets. A value for `row` is written instead of the hash."""

    def __init__(self, url: str, name: str, columns: frozenset[str]) -> None:
        self.columns = columns
        self._prefix = f"{{psched}}:{name}:"
        self._client: Any = redis.Redis.from_url(url)

    def write(self, rows: Sequence[dict[str, Any]]) -> None:
        for part in batched(rows):
            pipeline = self._client.pipeline(transaction=False)
            for row in part:
                self._write(pipeline, dict(row))
            pipeline.execute()

    def delete(self, keys: Sequence[str]) -> None:
        for part in batched(keys):
            self._client.delete(*(f"{self._prefix}row:{key}" for key in part))

    def close(self) -> None:
        self._client.close()

    def _write(self, pipeline: Any, row: dict[str, Any]) -> None:
        key, text = row.pop("key"), row.pop("row", None)
        name = f"{self._prefix}row:{key}"
        if text is None:
            pipeline.hset(name, mapping={field: value for field, value in row.items() if value is not None})
        else:
            pipeline.set(name, text)
        if "cron" not in self.columns:
            pipeline.zadd(f"{self._prefix}keys", {key: 0})
        kind = "due" if "cron" in self.columns else "later"
        for type_ in {"", row["type"] or ""}:
            pipeline.zadd(f"{self._prefix}{kind}:{type_}", {key: row["due"]})


def batched(things: Sequence[T]) -> Iterator[list[T]]:
    """Yield lists of up to `AT_A_TIME` things."""
    those = iter(things)
    while part := list(islice(those, AT_A_TIME)):
        yield part
