"""The tables of `rdb`: times are unix milliseconds, keys compare byte by byte. Children and clients."""

from __future__ import annotations

from typing import Any

from sqlalchemy import BigInteger, Column, Index, Integer, MetaData, String, Table

from psched.backends.sql.layout import checked_name
from psched.dialects.base import ExactText, LongText

LAYOUT = 1
"""The version of these tables; kept per table in `psched_meta`, so that older code refuses what it does not know."""

WAITING = "waiting"
RUNNING = "running"


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
    return _leased_table(
        metadata,
        name,
        Column("cron", ExactText(255), nullable=False),
        Column("timezone", ExactText(255), nullable=False),
        Column("delay_ms", BigInteger, nullable=False),
        Column("next_time", BigInteger, nullable=False),
        Column("due", BigInteger, nullable=False),
    )


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
    columns_of = table.c
    Index(f"{name}_due", columns_of.due, columns_of.key)
    Index(f"{name}_type_due", columns_of.type, columns_of.due, columns_of.key)
    held = columns_of.holder.is_not(None)
    Index(f"{name}_holder", columns_of.holder, postgresql_where=held, sqlite_where=held)
    return table
