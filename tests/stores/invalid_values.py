"""Values that psched never writes, for any column of a row, as literals for each kind of database."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import MetaData, Table

from psched.backends.rdb.schema import queue_table, schedules_table
from tests.stores.bench import Bench
from tests.stores.rows import Spoilt

IN_SQL = [
    *("NULL", "'text'", "''", "'{\"a\": 1}'", "'99999999999999999999'"),
    *("X'FF'", "CAST(X'FFFE' AS TEXT)", "CAST(X'610062' AS TEXT)", "'a\\0b'"),
    *("0", "-1", "2147483647", "-2147483648", "9223372036854775807", "-9223372036854775808", "1000000000000000000"),
    *("1.5", "9e999", "-9e999", "TRUE"),
]
"""BLOBs, text that is not UTF-8, NUL, and the largest numbers. A database refuses most of them."""

IN_REDIS = [
    *("NULL", "text", "", '{"a": 1}', "99999999999999999999", "\xff\xfe", "a\0b"),
    *("0", "-1", "9223372036854775807", "-9223372036854775808", "1.5", "1e400", "-inf", "nan", "0x10"),
]

_AT_ONCE = 8


def _columns_of(table: Table) -> list[str]:
    return [column.name for column in table.columns]


def _in_groups(columns: Sequence[str], size: int) -> list[Sequence[str]]:
    return [columns[number : number + size] for number in range(0, len(columns), size)]


_QUEUE_COLUMNS = _columns_of(queue_table(MetaData(), "q", partial_indexes=True))
QUEUE_COLUMNS = [
    *((database, group) for database in ("sqlite", "redis") for group in _in_groups(_QUEUE_COLUMNS, 1)),
    *((database, group) for database in ("mariadb", "postgresql") for group in _in_groups(_QUEUE_COLUMNS, _AT_ONCE)),
]
SCHEDULE_COLUMNS = _in_groups(_columns_of(schedules_table(MetaData(), "s")), _AT_ONCE)
"""All columns, in groups, for tasks also by database. A test spoils the columns of one group, each in a row of its own.

For tasks a group has a single column if this column takes any value: an acquire reads few rows of each user, so it
could not reach all rows with many spoilt users.
"""


def invalid_values(bench: Bench, columns: Sequence[str], end: str = "") -> list[Spoilt]:
    """Return each invalid value for each column, with the key of a row for it. `end`: the end of these keys."""
    values = IN_REDIS if bench.database == "redis" else IN_SQL
    return [
        (
            f"bad {column} {number:02}{end}",
            "user" if (bench.database, column) == ("redis", "user_name") else column,
            value,
        )
        for column in columns
        for number, value in enumerate(values)
    ]
