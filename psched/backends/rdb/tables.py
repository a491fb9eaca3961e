"""The tables of `rdb`: times are unix milliseconds, keys compare byte by byte. Children and clients."""

from __future__ import annotations

from typing import Any

from sqlalchemy import BigInteger, Column, Index, Integer, MetaData, String, Table

from psched.backends.sql.layout import checked_name
from psched.dialects.base import ExactText, LongText

LAYOUT = 1
"""The version of these tables; kept per table in `psched_meta`, so that older code refuses what it does not know."""

USER_BAND = 1000
"""What sets the bands of tasks with a user apart; more than twice any priority."""

WAITING = "waiting"
RUNNING = "running"
FINISHED = "finished"
FAILED = "failed"
CANCELLED = "cancelled"


def versions_table(metadata: MetaData) -> Table:
    """Return the table that keeps the layout version of every table."""
    return Table(
        "psched_meta",
        metadata,
        Column("table_name", ExactText(64), primary_key=True),
        Column("layout", Integer, nullable=False),
        mysql_engine="InnoDB",
        mysql_charset="utf8mb4",
    )


def schedules_table(metadata: MetaData, name: str) -> Table:
    """Return the table of schedules. Raises ConfigError for a name that is no plain identifier."""
    table = _leased_table(
        metadata,
        name,
        Column("cron", ExactText(255), nullable=False),
        Column("timezone", ExactText(255), nullable=False),
        Column("delay_ms", BigInteger, nullable=False),
        Column("next_time", BigInteger, nullable=False),
        Column("due", BigInteger, nullable=False),
    )
    c = table.c
    Index(f"{name}_due", c.due, c.key)
    Index(f"{name}_type_due", c.type, c.due, c.key)
    return table


def queue_table(metadata: MetaData, name: str) -> Table:
    """Return the table of queue tasks. Raises ConfigError for a name that is no plain identifier.

    `band` (see `band_of`) is NULL once a task is retired, as is `due`; `purge_at` is NULL until then. `user_name` is
    empty for a task without user. The indexes, in turn: what is due in a band; what is due of one user in a band; how
    many tasks of a user are running; what is due of a type; whose retention is over.
    """
    table = _leased_table(
        metadata,
        name,
        Column("run_at", BigInteger, nullable=False),
        Column("due", BigInteger),
        Column("user_name", ExactText(255), nullable=False, server_default=""),
        Column("max_running", Integer),
        Column("priority", Integer, nullable=False, server_default="0"),
        Column("band", Integer),
        Column("max_attempts", Integer),
        Column("cancel_requested", Integer, nullable=False, server_default="0"),
        Column("finished_at", BigInteger),
        Column("purge_at", BigInteger),
    )
    c = table.c
    in_band, running, retired = c.band.is_not(None), c.holder.is_not(None), c.purge_at.is_not(None)
    Index(f"{name}_due", c.band, c.due, c.key, postgresql_where=in_band, sqlite_where=in_band)
    Index(f"{name}_user_due", c.band, c.user_name, c.due, c.key, postgresql_where=in_band, sqlite_where=in_band)
    Index(f"{name}_user_run", c.user_name, c.holder, postgresql_where=running, sqlite_where=running)
    Index(f"{name}_type_due", c.type, c.band, c.due, c.key, postgresql_where=in_band, sqlite_where=in_band)
    Index(f"{name}_purge", c.purge_at, postgresql_where=retired, sqlite_where=retired)
    return table


def users_table(metadata: MetaData, queue: str) -> Table:
    """Return the table of a queue's users: a row to be changed, and so locked, by whoever claims tasks of one."""
    return Table(
        f"{checked_name(queue)}_users",
        metadata,
        Column("user_name", ExactText(255), primary_key=True),
        Column("version", BigInteger, nullable=False, server_default="0"),
        mysql_engine="InnoDB",
        mysql_charset="utf8mb4",
    )


def band_of(user: str | None, priority: int) -> int:
    """Return the band of a waiting or running task: rows that are claimed alike, the highest priority first."""
    return priority if user is None else priority + USER_BAND


def has_users(band: int) -> bool:
    """Tell whether the rows of a band have users."""
    return band > USER_BAND // 2


def _leased_table(metadata: MetaData, name: str, *columns: Column[Any]) -> Table:
    """Return a table of due rows with leases: everything that leases.py writes, and `columns`.

    Among them is `due`: when the row is due or its lease ends, NULL once it is finished for good. `ready` is what `due`
    was before the last acquire, `claim` which acquire that was, `nonce` which `add` made the row; `holder` is NULL
    unless it is leased.
    """
    table = Table(
        checked_name(name),
        metadata,
        Column("key", ExactText(255), primary_key=True),
        Column("type", ExactText(255), nullable=False),
        Column("data", LongText, nullable=False),
        *columns,
        Column("ready", BigInteger),
        Column("status", String(16), nullable=False, server_default=WAITING),
        Column("fence", BigInteger, nullable=False, server_default="0"),
        Column("claim", BigInteger),
        Column("nonce", BigInteger, nullable=False, server_default="0"),
        Column("holder", ExactText(255)),
        Column("node", ExactText(255)),
        Column("attempts", Integer, nullable=False, server_default="0"),
        Column("crashes", Integer, nullable=False, server_default="0"),
        Column("last_error", LongText),
        Column("created", BigInteger, nullable=False, server_default="0"),
        Column("updated", BigInteger, nullable=False, server_default="0"),
        mysql_engine="InnoDB",
        mysql_charset="utf8mb4",
    )
    held = table.c.holder.is_not(None)
    Index(f"{name}_holder", table.c.holder, postgresql_where=held, sqlite_where=held)
    return table
