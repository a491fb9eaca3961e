"""Values that psched never writes, for any column of a row, as literals of each kind of database."""

from __future__ import annotations

from collections.abc import Iterable

from sqlalchemy import MetaData

from psched.backends.rdb.schema import queue_table, schedules_table
from tests.stores.bench import Bench

IN_SQL = [
    *("NULL", "'text'", "''", "'{\"a\": 1}'", "'99999999999999999999'"),
    *("X'FF'", "CAST(X'FFFE' AS TEXT)", "CAST(X'610062' AS TEXT)", "'a\\0b'"),
    *("0", "-1", "2147483647", "-2147483648", "9223372036854775807", "-9223372036854775808", "1000000000000000000"),
    *("1.5", "9e999", "-9e999", "TRUE"),
]
"""BLOBs, text that is not UTF-8, NUL, and the largest numbers; a database refuses most of them."""

IN_REDIS = [
    *("NULL", "text", "", '{"a": 1}', "99999999999999999999", "\xff\xfe", "a\0b"),
    *("0", "-1", "9223372036854775807", "-9223372036854775808", "1.5", "1e400", "-inf", "nan", "0x10"),
]

_COMPUTED = {"user_band", "user_due", "user_holder"}

_OF_ROW = ["type", "data", "status", "due", "ready", "fence", "claim", "nonce", "holder", "node", "attempts", "crashes"]
_OF_ROW += ["last_error", "created", "updated"]

QUEUE_COLUMNS = [column.name for column in queue_table(MetaData(), "q", partial_indexes=True).columns]
SCHEDULE_COLUMNS = [column.name for column in schedules_table(MetaData(), "s").columns]


def spoil(bench: Bench, keys: Iterable[str], column: str) -> int:
    """Write one invalid value into the column of each row; return how many values the database accepted."""
    values = IN_REDIS if bench.database == "redis" else IN_SQL
    return sum(bench.rows.spoil(key, column, value) for key, value in zip(keys, values, strict=False))
