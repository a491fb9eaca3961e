"""The tables of PerfectSched and PerfectQueue."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from sqlalchemy import BigInteger, Column, Index, Integer, LargeBinary, MetaData, String, Table
from sqlalchemy.dialects.mysql import BIGINT
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.compiler import DDLCompiler

from psched.backends.common.table_name_check import checked_name
from psched.backends.sql.dialect import ExactText
from psched.backends.sql.schema_setup import Schema

LONGEST_CRON = 128
LONGEST_TIMEZONE = 255


class LongBlob(LargeBinary):
    """Bytes of any length.

    Reading does not convert the stored value, because on SQLite the Ruby programs may have stored text.
    """

    def result_processor(self, dialect: Any, coltype: Any) -> None:
        """Return None, so that values are not converted."""


@compiles(LongBlob)
def _long_blob(element: LongBlob, compiler: DDLCompiler, **options: Any) -> str:
    return "BYTEA" if compiler.dialect.name == "postgresql" else "LONGBLOB"


def schedules_table(metadata: MetaData, name: str) -> Table:
    """Return the table as PerfectSched creates it, with keys compared byte by byte and one more index."""
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
    """Return the table as PerfectQueue creates it, with keys compared byte by byte."""
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


_MARKS = (
    ("PerfectSched", "schedules", "psched …", {"cron", "next_time"}),
    ("PerfectQueue", "queue", "psched queue …", {"created_at", "resource"}),
)
"""PerfectSched and PerfectQueue, each with its section, its commands, and columns that only its table has."""


class OriginalSchema(Schema):
    """A table of PerfectSched or PerfectQueue. The original program may have created it."""

    def _lacking(self, missing: Sequence[str], present: Collection[str]) -> str:
        name = self._table.name
        if missing == ["owner"]:
            return (
                f"the table {name} was created by an older PerfectQueue, without the column owner; add it (MySQL, "
                f"MariaDB): ALTER TABLE {name} ADD COLUMN owner BIGINT UNSIGNED NOT NULL DEFAULT 0"
            )
        for maker, section, commands, columns in _MARKS:
            if maker != self._maker and columns <= set(present):
                return (
                    f"the table {name} belongs to {maker}, but is configured for {self._maker}; write its type, url "
                    f"and table under `{section}:`, or use `{commands}`"
                )
        return super()._lacking(missing, present)


def _table(metadata: MetaData, name: str, *columns: Column[Any]) -> Table:
    key, timeout = Column("id", ExactText(255), primary_key=True), Column("timeout", Integer, nullable=False)
    of_table = checked_name(name)
    return Table(of_table, metadata, key, timeout, *columns, mysql_engine="InnoDB", mysql_charset="utf8mb4")
