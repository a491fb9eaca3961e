"""The tables of PerfectSched and PerfectQueue."""

from __future__ import annotations

from typing import Any

from sqlalchemy import BigInteger, Column, Index, Integer, LargeBinary, MetaData, String, Table
from sqlalchemy.dialects.mysql import BIGINT
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.compiler import DDLCompiler

from psched.backends.common.table_names import checked_name
from psched.backends.sql.dialect import ExactText

LONGEST_CRON = 128
LONGEST_TIMEZONE = 255


class LongBlob(LargeBinary):
    """Bytes of any length. Read as whatever is stored: on SQLite the originals' may be text."""

    def result_processor(self, dialect: Any, coltype: Any) -> None:
        """Leave the value as it is."""


@compiles(LongBlob)
def _long_blob(element: LongBlob, compiler: DDLCompiler, **options: Any) -> str:
    return "BYTEA" if compiler.dialect.name == "postgresql" else "LONGBLOB"


def schedules_table(metadata: MetaData, name: str) -> Table:
    """Return the table as PerfectSched makes it, its keys compared byte by byte, with the index it lacks."""
    table = _table(
        metadata,
        name,
        Column("next_time", Integer, nullable=False),
        Column("cron", String(LONGEST_CRON), nullable=False),
        Column("delay", Integer, nullable=False),
        Column("data", LongBlob, nullable=False),
        Column("timezone", String(LONGEST_TIMEZONE)),
    )
    Index(f"index_{name}_on_timeout", table.c.timeout, table.c.id)
    return table


def queue_table(metadata: MetaData, name: str) -> Table:
    """Return the table as PerfectQueue makes it, its keys compared byte by byte."""
    unsigned = BigInteger().with_variant(BIGINT(21, unsigned=True), "mysql", "mariadb")
    table = _table(
        metadata,
        name,
        Column("data", LongBlob, nullable=False),
        Column("created_at", Integer),
        Column("resource", ExactText(255)),
        Column("max_running", Integer),
        Column("owner", unsigned, nullable=False, server_default="0"),
    )
    Index(f"index_{name}_on_timeout", table.c.timeout)
    return table


def _table(metadata: MetaData, name: str, *columns: Column[Any]) -> Table:
    key, timeout = Column("id", ExactText(255), primary_key=True), Column("timeout", Integer, nullable=False)
    of_table = checked_name(name)
    return Table(of_table, metadata, key, timeout, *columns, mysql_engine="InnoDB", mysql_charset="utf8mb4")
