"""The tables of PerfectSched and PerfectQueue, and their rows: whole seconds in 32 bits, the type inside the data."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from sqlalchemy import BigInteger, Column, Index, Integer, LargeBinary, MetaData, String, Table
from sqlalchemy.dialects.mysql import BIGINT
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.compiler import DDLCompiler

from psched.backends.common.rows import RowReader
from psched.backends.common.table_names import checked_name
from psched.backends.rdb_compat.ruby_cron_check import ruby_problem
from psched.backends.sql.dialect import ExactText
from psched.errors import NotSupportedError
from psched.model import Rule, ScheduleRow, TaskRow
from psched.payload import (
    MAX_DATA_SIZE,
    DataTooLargeError,
    check_stored,
    compress,
    decode,
    encode,
    is_compressed,
    type_from_key,
)

_LAST = 2**31 - 1
_LAST_CHARACTER = 0xFFFF
_LONGEST_CRON = 128
_LONGEST_TIMEZONE = 255
_ZERO: dict[str, Any] = {"nullable": False, "server_default": "0"}


class LongBlob(LargeBinary):
    """Bytes of any length. Read as whatever is stored: on SQLite the originals' may be text."""

    def result_processor(self, dialect: Any, coltype: Any) -> None:
        """Leave the value as it is."""


@compiles(LongBlob)
def _long_blob(element: LongBlob, compiler: DDLCompiler, **options: Any) -> str:
    return "BYTEA" if compiler.dialect.name == "postgresql" else "LONGBLOB"


def schedules_table(metadata: MetaData, name: str) -> Table:
    """Return the table as PerfectSched makes it, its keys compared byte by byte, with the index it lacks."""
    table = Table(
        checked_name(name),
        metadata,
        Column("id", ExactText(255), primary_key=True),
        Column("timeout", Integer, nullable=False),
        Column("next_time", Integer, nullable=False),
        Column("cron", String(_LONGEST_CRON), nullable=False),
        Column("delay", Integer, nullable=False),
        Column("data", LongBlob, nullable=False),
        Column("timezone", String(_LONGEST_TIMEZONE)),
        mysql_engine="InnoDB",
        mysql_charset="utf8mb4",
    )
    Index(f"index_{name}_on_timeout", table.c.timeout, table.c.id)
    return table


def queue_table(metadata: MetaData, name: str) -> Table:
    """Return the table as PerfectQueue makes it, its keys compared byte by byte."""
    table = Table(
        checked_name(name),
        metadata,
        Column("id", ExactText(255), primary_key=True),
        Column("timeout", Integer, nullable=False),
        Column("data", LongBlob, nullable=False),
        Column("created_at", Integer),
        Column("resource", ExactText(255)),
        Column("max_running", Integer),
        Column("owner", BigInteger().with_variant(BIGINT(21, unsigned=True), "mysql", "mariadb"), **_ZERO),
        mysql_engine="InnoDB",
        mysql_charset="utf8mb4",
    )
    Index(f"index_{name}_on_timeout", table.c.timeout)
    return table


def read_task(row: Mapping[Any, Any], max_data_size: int = MAX_DATA_SIZE) -> TaskRow:
    """Return a stored task; what cannot be used of it is its `problem`. `row` has `now` too, in unix seconds.

    The table does not distinguish a lease from the wait for a retry or for the first run: a task that is due later is
    `running`, as in PerfectQueue. It does not keep `run_at`, which becomes the time of submission. A finished task has
    neither: its timeout is the end of its retention, moved back.
    """
    fields = RowReader(row)
    key = fields.text("id")
    timeout, created = fields.seconds("timeout"), fields.optional_seconds("created_at")
    type_, data = _content(fields, row, key, max_data_size)
    waits = timeout <= row["now"]
    return TaskRow(
        key=key,
        type=type_,
        data=data,
        status="finished" if created is None else "waiting" if waits else "running",
        run_at=None if created is None else created or timeout,
        due=None if created is None else timeout,
        created_at=created or None,
        user=fields.optional_text("resource"),
        max_running=fields.optional_number("max_running"),
        cancel_requested=created == 0,
        compression="gzip" if is_compressed(_raw(row["data"])) else None,
        problem=fields.problem,
    )


def read_schedule(row: Mapping[Any, Any], max_data_size: int = MAX_DATA_SIZE) -> ScheduleRow:
    """Return a stored schedule; what cannot be used of it is its `problem`.

    The table does not distinguish a lease from the wait for a retry: in both the row is not due at its own time.
    """
    fields = RowReader(row)
    key = fields.text("id")
    timezone = fields.optional_text("timezone")
    rule = Rule(fields.text("cron"), "UTC" if timezone is None else timezone, fields.seconds("delay"))
    next_time, timeout = int(fields.seconds("next_time")), fields.seconds("timeout")
    settled = timeout == next_time + rule.delay
    type_, data = _content(fields, row, key, max_data_size)
    return ScheduleRow(
        key=key,
        type=type_,
        data=data,
        status="waiting" if settled else "leased",
        rule=rule,
        next_time=next_time,
        next_run_time=timeout,
        settled=settled,
        problem=fields.problem,
    )


def data_column(
    type_: str, data: Mapping[str, Any], max_data_size: int = MAX_DATA_SIZE, compressed: bool = False
) -> bytes:
    """Return the data as the originals write it: compact, with the type in the place of one it has, else at the end.

    Raises ValueError when it is too large.
    """
    text = encode({**data, "type": type_}, max_data_size)
    stored = compress(text) if compressed else text.encode()
    check_stored(len(stored), compressed)
    return stored


def rule_columns(rule: Rule) -> dict[str, Any]:
    """Return what is stored of a rule. Raises ValueError for what this table cannot hold."""
    if rule.delay != int(rule.delay):
        raise ValueError(f"delay must be whole seconds in this table, got {rule.delay!r}; round it, or use type: rdb")
    return {
        "cron": _fitting("cron", rule.cron, _LONGEST_CRON),
        "timezone": _fitting("timezone", rule.timezone, _LONGEST_TIMEZONE),
        "delay": whole_seconds("delay", rule.delay),
    }


def check_rule(key: str, rule: Rule) -> None:
    """Raise NotSupportedError for a rule that would stop the Ruby workers that may share the table."""
    problem = ruby_problem(rule.cron, rule.timezone)
    if problem is not None:
        raise NotSupportedError(
            f"{key!r}: cron {rule.cron!r} would stop the Ruby workers that may share this table: {problem}; "
            "type: rdb and redis take it"
        )


def check_text(name: str, text: str | None) -> None:
    """Raise NotSupportedError for characters in which Ruby workers do not recognise the row, and hang."""
    strange = next((character for character in text or "" if ord(character) > _LAST_CHARACTER), None)
    if strange is not None:
        raise NotSupportedError(
            f"{name} {text!r} would hang the Ruby workers that may share this table: U+{ord(strange):X} has four bytes "
            "in UTF-8, and they read characters of up to three; type: rdb and redis take it"
        )


def whole_seconds(name: str, seconds: float) -> int:
    """Return seconds as this table holds them, never less. Raises ValueError beyond its 32 bits."""
    if not abs(seconds) <= _LAST:
        raise ValueError(
            f"{name} {seconds!r} does not fit into the 32 bits of this table, which end in 2038; type: rdb takes it"
        )
    return math.ceil(seconds)


def _fitting(name: str, text: str, longest: int) -> str:
    if len(text) > longest:
        raise ValueError(
            f"{name} has {len(text)} characters; this table holds at most {longest}; shorten it, or use type: rdb"
        )
    return text


def _raw(data: Any) -> str | bytes:
    return data if isinstance(data, str | bytes) else bytes(data)


def _content(fields: RowReader, row: Mapping[Any, Any], key: str, max_data_size: int) -> tuple[str, dict[str, Any]]:
    """Return type and data; of what is no JSON object {}, as the original does. Too large data is a problem."""
    data: dict[str, Any] = {}
    try:
        data = decode(_raw(row["data"]), max_data_size)
    except DataTooLargeError as error:
        fields.problem = fields.problem or str(error)
    except (ValueError, TypeError, RecursionError):
        pass
    type_ = data.pop("type", None)
    return type_ if isinstance(type_, str) and type_ else type_from_key(key), data
