"""Reads and writes stored rows without psched, on each kind of database."""

from __future__ import annotations

import contextlib
import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import redis
import sqlalchemy as sa

from psched.backends.sql.bulk_statements import as_parameter, rows_in

DRIVERS = {"sqlite": "sqlite", "mysql": "mysql+pymysql", "postgresql": "postgresql+psycopg"}

_ARGUMENTS = {"mysql": {"ssl_disabled": True}, "postgresql": {"prepare_threshold": None}}
"""Arguments of the drivers. No statements are prepared, because a pooler uses another session for each transaction."""

Spoilt = tuple[str, str, str]
"""The key of a row, the name of a column, and a value for it, as a literal of the database."""

MANY = 500
"""If a test deletes this many rows, they leave traces in the table."""

_SHARED = ("psched_nodes", "psched_stats", "psched_actions")
"""The tables that all stores of a database share."""


def plain_engine(url: str) -> sa.Engine:
    """Return an engine without psched, which keeps one connection while it is idle."""
    parsed = sa.make_url(url)
    kind = parsed.get_backend_name()
    arguments = _ARGUMENTS.get(kind, {})
    plain = parsed.set(drivername=DRIVERS[kind])
    return sa.create_engine(plain, pool_size=1, pool_pre_ping=True, connect_args=arguments)


@dataclass(frozen=True)
class Columns:
    """A store's columns for key and due time, and the number of the due time's units in a second."""

    key: str
    due: str
    per_second: int


class Rows(Protocol):
    """The rows of one table."""

    def raw(self, key: str) -> dict[str, Any] | None:
        """Return the whole row as it is stored; None if there is none."""
        ...

    def write(self, key: str, values: dict[str, Any]) -> None:
        """Write columns of one row."""
        ...

    def spoil(self, values: Iterable[Spoilt]) -> int:
        """Write values that psched never writes, without its checks. Return how many of them the database accepted."""
        ...

    def copy(self, keys: Sequence[str], due: Callable[[int], int]) -> None:
        """Copy the only row, whose key is `keys[0]`, to all other keys.

        Number i is due at `due(i)`, in unix seconds.
        """
        ...

    def pass_time(self, seconds: int) -> None:
        """Move all due times back, as if time had passed."""
        ...

    def copy_entry(self, entries: Iterable[dict[str, Any]]) -> None:
        """Replace the only entry of the ledger by copies of it, each with these columns changed."""
        ...

    def copy_change(self, changes: Iterable[dict[str, Any]]) -> None:
        """Add copies of the only recorded change, each with these columns changed."""
        ...

    def no_entry_of(self, key: str, time: int, fence: int) -> contextlib.AbstractContextManager[None]:
        """Return a context in which no entry of the occurrence `time` (unix seconds) with this fence can be written."""
        ...

    def drop(self) -> None:
        """Drop the table."""
        ...

    def close(self) -> None:
        """Close the connection."""
        ...


class SqlRows:
    """A table of a SQL database."""

    def __init__(
        self, url: str, table: str, columns: Columns, beside: Sequence[str] = (), engine: sa.Engine | None = None
    ) -> None:
        """`beside`: the ends of the names of the tables that belong to it. `engine`: an engine that stays open."""
        self.url = url
        self.table = table
        self.as_made = True
        """Whether nothing but rows has been changed since the table was made, except by `spoil`."""
        self.unchecked = False
        """Whether `spoil` has dropped the table's CHECK constraints."""
        self.remembered = False
        """Whether the database may remember deleted rows: by its statistics, or because they were many."""
        self._columns = columns
        self._beside = beside
        parsed = sa.make_url(url)
        self.plain_url = parsed.set(drivername=DRIVERS[parsed.get_backend_name()])
        self._engine = engine
        self._owns_engine = engine is None
        self._reflected: sa.Table | None = None

    @contextlib.contextmanager
    def connect(self) -> Iterator[sa.Connection]:
        """Yield a connection without psched, in one transaction."""
        if self._engine is None:
            self._engine = plain_engine(self.url)
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

    def spoil(self, values: Iterable[Spoilt]) -> int:
        if not self.unchecked:
            with self.connect() as connection:
                self._lift_checks(connection)
        self.unchecked = True
        assert self._engine is not None, "the checks are lifted"
        with self._engine.connect() as connection:
            connection.execution_options(isolation_level="AUTOCOMMIT")  # the next one, where a value is refused
            return sum(self._spoil(connection, *each) for each in values)

    def _spoil(self, connection: sa.Connection, key: str, column: str, value: str) -> int:
        quote = "`" if connection.dialect.name == "mysql" else '"'
        name, names = f"{quote}{column}{quote}", f"{quote}{self._columns.key}{quote}"
        update = sa.text(f"UPDATE {self.table} SET {name} = {value} WHERE {names} = :key")
        try:
            return connection.execute(update, {"key": key}).rowcount
        except sa.exc.DBAPIError:
            return 0

    def _lift_checks(self, connection: sa.Connection) -> None:
        """Drop the table's CHECK constraints, so that rows can be written which they forbid."""
        if connection.dialect.name != "sqlite":
            quote = connection.dialect.identifier_preparer.quote
            checks = sa.inspect(connection).get_check_constraints(self.table)
            drops = [f"DROP CONSTRAINT {quote(str(check['name']))}" for check in checks]
            if drops:
                connection.exec_driver_sql(f"ALTER TABLE {self.table} {', '.join(drops)}")
            return
        connection.exec_driver_sql("PRAGMA writable_schema = ON")
        made = connection.execute(sa.text("SELECT sql FROM sqlite_schema WHERE name = :name"), {"name": self.table})
        lines = [line for line in made.scalar_one().split("\n") if " CHECK (" not in line]
        text = "\n".join(lines).rstrip().removesuffix(")").rstrip().removesuffix(",") + ")"
        update = sa.text("UPDATE sqlite_schema SET sql = :text WHERE name = :name")
        connection.execute(update, {"text": text, "name": self.table})
        version = connection.exec_driver_sql("PRAGMA schema_version").scalar_one()
        connection.exec_driver_sql(f"PRAGMA schema_version = {version + 1}")
        connection.exec_driver_sql("PRAGMA writable_schema = OFF")

    def copy(self, keys: Sequence[str], due: Callable[[int], int]) -> None:
        self.remembered |= len(keys) >= MANY
        copies = [{"copy": key, "copy_due": due(i) * self._columns.per_second} for i, key in enumerate(keys) if i]
        names = sa.column("copy", sa.String(255)), sa.column("copy_due", sa.BigInteger)
        with self.connect() as connection:
            table = self._reflect(connection)
            given = rows_in("copies", names)
            own = {self._columns.key: given.c.copy, self._columns.due: given.c.copy_due}
            written = [column.name for column in table.c if column.computed is None]
            copied = sa.select(*(own.get(name, table.c[name]) for name in written)).where(
                table.c[self._columns.key] == keys[0]
            )
            insert = table.insert().from_select(written, copied.select_from(table.join(given, sa.true())))
            connection.execute(insert, {"copies": as_parameter(copies, ["copy", "copy_due"])})

    def pass_time(self, seconds: int) -> None:
        due: sa.ColumnClause[int] = sa.column(self._columns.due)
        table = sa.table(self.table, due)
        with self.connect() as connection:
            connection.execute(table.update().values({due: due - seconds * self._columns.per_second}))

    def copy_entry(self, entries: Iterable[dict[str, Any]]) -> None:
        with self.connect() as connection:
            table, template = self._only_row(connection, "ledger")
            connection.execute(table.delete())
            connection.execute(table.insert(), [template | entry for entry in entries])

    def copy_change(self, changes: Iterable[dict[str, Any]]) -> None:
        with self.connect() as connection:
            table, template = self._only_row(connection, "changes")
            connection.execute(table.insert(), [template | change for change in changes])

    @contextlib.contextmanager
    def no_entry_of(self, key: str, time: int, fence: int) -> Iterator[None]:
        with self.connect() as connection:
            table, template = self._only_row(connection, "ledger")
            rival = template | {"scheduled_time": time * 1000, "fence": fence}
            connection.execute(table.insert(), rival)
        yield
        with self.connect() as connection:
            connection.execute(table.delete().where(table.c.fence == fence))

    @property
    def tables(self) -> list[str]:
        """The names of the table and of the tables that belong to it."""
        return [self.table, *(f"{self.table}_{end}" for end in self._beside)]

    def empty(self) -> None:
        """Delete all rows of the table, of the tables that belong to it, and of those that all stores share."""
        with self.connect() as connection:
            for name in (*self.tables, *(_SHARED if self._beside else ())):
                connection.execute(sa.table(name).delete())

    def renew(self) -> None:
        """Empty the tables as if they had just been made, and also those that the database's stores share.

        PostgreSQL's statistics of the columns stay.
        """
        with self.connect() as connection:
            on_postgresql = connection.dialect.name == "postgresql"
            for names in [", ".join(self.tables)] if on_postgresql else self.tables:
                connection.exec_driver_sql(f"TRUNCATE TABLE {names}")
            if on_postgresql:
                connection.exec_driver_sql(f"ALTER TABLE {self.table} RESET (autovacuum_enabled)")
            for name in _SHARED if self._beside else ():
                connection.execute(sa.table(name).delete())
        self.remembered = False

    def drop(self) -> None:
        self.as_made = False
        with self.connect() as connection:
            connection.execute(sa.text(f"DROP TABLE {self.table}"))

    def close(self) -> None:
        if self._engine is not None and self._owns_engine:
            self._engine.dispose()

    def _only_row(self, connection: sa.Connection, what: str) -> tuple[sa.Table, dict[str, Any]]:
        table = sa.Table(f"{self.table}_{what}", sa.MetaData(), autoload_with=connection)
        return table, dict(connection.execute(sa.select(table)).mappings().one())

    def _reflect(self, connection: sa.Connection) -> sa.Table:
        if self._reflected is None:
            self._reflected = sa.Table(self.table, sa.MetaData(), autoload_with=connection)
        return self._reflected


class RedisRows:
    """A table of a Redis: hashes of the rows, and for schedules the sorted sets of due times, alerts and the ledger."""

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
        if "alert_at" in values:
            self.client.zadd(f"{self.prefix}alert", {key: values["alert_at"]})

    def spoil(self, values: Iterable[Spoilt]) -> int:
        return sum(self._spoil(*each) for each in values)

    def _spoil(self, key: str, column: str, value: str) -> bool:
        row = f"{self.prefix}row:{key}"
        if value == "NULL":
            return bool(self.client.hdel(row, column))
        self.client.hset(row, column, value.encode("latin-1"))
        return True

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

    def copy_entry(self, entries: Iterable[dict[str, Any]]) -> None:
        kinds = [f"{self.prefix}settled:{trouble}" for trouble in (0, 1)]
        (key,) = [place.split(":", 2)[2] for kind in kinds for place in self.client.zrange(kind, 0, -1)]
        (text,) = self.client.zrange(f"{self.prefix}entries:{key}", 0, -1)
        template = json.loads(text) | {"key": key}
        self.client.delete(*kinds, f"{self.prefix}entries:{key}")
        sets: dict[str, dict[str, int]] = defaultdict(dict)
        for entry in entries:
            row = template | entry
            key, time = row.pop("key"), row["scheduled_time"]
            sets[f"entries:{key}"][json.dumps(row, separators=(",", ":"))] = time
            sets[f"settled:{row['trouble']}"][f"{time}:{row['fence']}:{key}"] = row["ended"] * 1000
        self._add(sets)

    def copy_change(self, changes: Iterable[dict[str, Any]]) -> None:
        (key,) = self.client.zrange(f"{self.prefix}recorded", 0, -1)
        ((text, version),) = self.client.zrange(f"{self.prefix}changes:{key}", 0, -1, withscores=True)
        sets: dict[str, dict[str, int]] = defaultdict(dict)
        for change in changes:
            row = json.loads(text) | change
            key = row.pop("key")
            sets[f"changes:{key}"][json.dumps(row)] = version
            sets["recorded"][key] = 0
        self._add(sets)

    @contextlib.contextmanager
    def no_entry_of(self, key: str, time: int, fence: int) -> Iterator[None]:
        entries, aside = f"{self.prefix}entries:{key}", f"{self.prefix}aside"
        self.client.rename(entries, aside)
        self.client.set(entries, "no sorted set")
        yield
        self.client.rename(aside, entries)

    def drop(self) -> None:
        keys = list(self.client.scan_iter(f"{self.prefix}*", count=1000))
        if keys:
            self.client.delete(*keys)

    def close(self) -> None:
        self.client.close()

    def bytes_sent(self) -> int:
        """Return the number of bytes that the server has sent to its clients."""
        return int(self.client.info("stats")["total_net_output_bytes"])

    def calls_of_scripts(self) -> int:
        """Return the number of scripts that the server has run."""
        found = self.client.info("commandstats")
        return sum(int(found.get(f"cmdstat_{name}", {}).get("calls", 0)) for name in ("evalsha", "eval"))

    def commands(self) -> int:
        """Return the number of commands that the server has executed, including commands in scripts."""
        return sum(int(command["calls"]) for command in self.client.info("commandstats").values())

    def _add(self, sets: Mapping[str, Mapping[str, int]]) -> None:
        pipeline = self.client.pipeline(transaction=False)
        for name, members in sets.items():
            pipeline.zadd(f"{self.prefix}{name}", members)
        pipeline.execute()

    def _index(self, client: Any, row: dict[str, Any], key: str) -> None:
        client.zadd(f"{self.prefix}due:", {key: row["due"]})
        client.zadd(f"{self.prefix}due:{row['type']}", {key: row["due"]})
