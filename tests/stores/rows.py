"""Rows as they are stored, looked at and written past psched, on each kind of database. In the test process."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import redis
import sqlalchemy as sa

DRIVERS = {"sqlite": "sqlite", "mysql": "mysql+pymysql", "postgresql": "postgresql+psycopg"}


@dataclass(frozen=True)
class Columns:
    """How a store names the due time, and how many of its units make a second."""

    key: str
    due: str
    per_second: int


class Rows(Protocol):
    """One table."""

    def raw(self, key: str) -> dict[str, Any] | None:
        """Return the whole stored row as the database has it, or None."""
        ...

    def write(self, key: str, values: dict[str, Any]) -> None:
        """Write columns of one row."""
        ...

    def copy(self, keys: Sequence[str], due: Callable[[int], int]) -> None:
        """Copy the only row there is, which is `keys[0]`, to all other keys; number i is due at `due(i)` (seconds)."""
        ...

    def pass_time(self, seconds: int) -> None:
        """Move all due times back, as if time had passed."""
        ...

    def drop(self) -> None:
        """Drop the table."""
        ...

    def close(self) -> None:
        """Close the connection."""
        ...


class SqlRows:
    """A table of a SQL database."""

    def __init__(self, url: str, table: str, columns: Columns) -> None:
        self.table = table
        self._columns = columns
        parsed = sa.make_url(url)
        self.plain_url = parsed.set(drivername=DRIVERS[parsed.get_backend_name()])
        self._engine: sa.Engine | None = None
        self._reflected: sa.Table | None = None

    @contextlib.contextmanager
    def connect(self) -> Iterator[sa.Connection]:
        """Yield a connection that knows nothing of psched, in one transaction."""
        if self._engine is None:
            self._engine = sa.create_engine(self.plain_url, pool_size=1, pool_pre_ping=True)
        with self._engine.begin() as connection:
            yield connection

    def raw(self, key: str) -> dict[str, Any] | None:
        with self.connect() as connection:
            table = self._reflect(connection)
            found = connection.execute(sa.select(table).where(table.c[self._columns.key] == key)).mappings().first()
            return None if found is None else dict(found)

    def write(self, key: str, values: dict[str, Any]) -> None:
        with self.connect() as connection:
            table = self._reflect(connection)
            done = connection.execute(table.update().where(table.c[self._columns.key] == key).values(**values))
            assert done.rowcount == 1, f"{key!r} is not there"

    def copy(self, keys: Sequence[str], due: Callable[[int], int]) -> None:
        with self.connect() as connection:
            table = self._reflect(connection)
            template = dict(connection.execute(sa.select(table)).mappings().one())
            rows = [
                {**template, self._columns.key: key, self._columns.due: due(i) * self._columns.per_second}
                for i, key in enumerate(keys)
            ]
            connection.execute(table.insert(), rows[1:])

    def pass_time(self, seconds: int) -> None:
        due: sa.ColumnClause[int] = sa.column(self._columns.due)
        table = sa.table(self.table, due)
        with self.connect() as connection:
            connection.execute(table.update().values({due: due - seconds * self._columns.per_second}))

    def drop(self) -> None:
        with self.connect() as connection:
            connection.execute(sa.text(f"DROP TABLE {self.table}"))

    def close(self) -> None:
        if self._engine is not None:
            self._engine.dispose()

    def _reflect(self, connection: sa.Connection) -> sa.Table:
        if self._reflected is None:
            self._reflected = sa.Table(self.table, sa.MetaData(), autoload_with=connection)
        return self._reflected


class RedisRows:
    """A table of a Redis: the hash of a row, and the due times of schedules in their sorted sets."""

    def __init__(self, url: str, table: str) -> None:
        self.prefix = f"{{psched}}:{table}:"
        self.client: Any = redis.Redis.from_url(url, decode_responses=True, protocol=2)

    def raw(self, key: str) -> dict[str, Any] | None:
        found = self.client.hgetall(f"{self.prefix}row:{key}")
        if not found:
            return None
        places = ("due:", f"due:{found.get('type')}", "later:", "leases:", "purge")
        scores = {f"in {place}": self.client.zscore(f"{self.prefix}{place}", key) for place in places}
        return {name: int(value) if value.isdecimal() else value for name, value in found.items()} | scores

    def write(self, key: str, values: dict[str, Any]) -> None:
        row = f"{self.prefix}row:{key}"
        assert self.client.exists(row), f"{key!r} is not there"
        type_ = self.client.hget(row, "type")
        self.client.hset(row, mapping=values)
        if "type" in values:
            self.client.zrem(f"{self.prefix}due:{type_}", key)
        if "due" in values or "type" in values:
            self._index(self.client, self.client.hgetall(row), key)

    def copy(self, keys: Sequence[str], due: Callable[[int], int]) -> None:
        template = self.client.hgetall(f"{self.prefix}row:{keys[0]}")
        pipeline = self.client.pipeline(transaction=False)
        for i, key in enumerate(keys[1:], start=1):
            row = {**template, "due": due(i) * 1000}
            pipeline.hset(f"{self.prefix}row:{key}", mapping=row)
            self._index(pipeline, row, key)
        pipeline.execute()

    def pass_time(self, seconds: int) -> None:
        for key in self.client.zrange(f"{self.prefix}due:", 0, -1):
            row = f"{self.prefix}row:{key}"
            self.client.hincrby(row, "due", -seconds * 1000)
            self._index(self.client, self.client.hgetall(row), key)

    def drop(self) -> None:
        keys = list(self.client.scan_iter(f"{self.prefix}*", count=1000))
        if keys:
            self.client.delete(*keys)

    def close(self) -> None:
        self.client.close()

    def _index(self, client: Any, row: dict[str, Any], key: str) -> None:
        client.zadd(f"{self.prefix}due:", {key: row["due"]})
        client.zadd(f"{self.prefix}due:{row['type']}", {key: row["due"]})
