"""Rows that cannot be run, written directly into the tables. Runs in the test process."""

from __future__ import annotations

import base64
import gzip
import time
from collections.abc import Iterator
from typing import Any

from faultlab.trials.environment import ALONE
from faultlab.trials.fault import TrialFault
from faultlab.trials.raw_tables import raw_tables

ROWS = 10_000
"""The number of rows that are written into each table."""
ON_SQLITE = 1000
"""The number of rows on SQLite. It is smaller because psched commits each postponed row to the disk."""

BOMB = gzip.compress(bytes(20_000_000), mtime=0)
"""A few kilobytes that decompress to more data than any row may have."""
LARGE = 10_000
"""If a value has more characters than this, only its first row has the whole value; further rows have one character."""

_TEXTS = [
    "{broken",
    '{"a": }',
    "[1, 2]",
    '"text"',
    "",
    '{"a": NaN}',
    "null",
    "\x01\x02\x7f",
    "{" * 5000,
    '{"a": "' + "x" * 10**6,
]
BAD: dict[str, list[Any]] = {
    "data": [*_TEXTS, base64.b64encode(BOMB).decode()],
    "cron": ["nonsense", "0 0 30 2 *", "61 * * * *", "", "*/0 * * * *", "a" * 200, "* * * * * * *", "\x01"],
    "timezone": ["Mars/Olympus", "../../etc/passwd", "localtime", "", "posixrules", "\x1b[31m"],
    "next_time": [10**17, -(10**17)],
    "delay_ms": [10**17],
    "type": ["nobody", "", "\x01\x1b[2J"],
    "run_at": [10**17],
}
"""For each column, values with which a row cannot be run."""
BAD_ON_REDIS: dict[str, list[Any]] = {
    "data": [None, b"\xff\xfe"],
    "cron": [None, b"\xff"],
    "timezone": [None],
    "next_time": [None, "soon"],
    "delay_ms": ["later"],
    "type": [None],
    "run_at": ["now"],
    "row": ["no hash"],
}
"""For each field, more values with which a row on Redis cannot be run. Fields have no type. None: the field is
missing.
"""
BAD_ON_SQLITE: dict[str, list[Any]] = {"data": [b"\xff\xfe", BOMB], "type": [b"\xff"]}
"""For each column, more values with which a row on SQLite cannot be run. SQLite stores them in spite of the column's
type.
"""
BAD_IN_COMPAT: dict[str, list[Any]] = {
    "data": [*(text.encode() for text in _TEXTS), BOMB],
    "cron": [cron for cron in BAD["cron"] if len(cron) <= 128],
    "timezone": BAD["timezone"],
}
"""For each column of `rdb_compat`, values with which a row cannot be run. Times are left out: any stored time can be
run.
"""


class BadRows(TrialFault):
    """In each table, 10,000 rows (1,000 on SQLite) that cannot be run, for many different reasons.

    Deleted at the healing.
    """

    kind = "rows: malformed by the thousand"
    subject = "database"
    stores = ALONE
    excuses = False

    def begin(self) -> None:
        self.all_nodes()
        self.tables = raw_tables(self.environment)
        for table in self.tables:
            table.write(list(self._rows(table.columns)))

    def heal(self) -> None:
        for table in self.tables:
            table.delete([f"bad-{number}" for number in range(self._count)])
            table.close()

    @property
    def _count(self) -> int:
        return ON_SQLITE if self.environment.store == "sqlite" else ROWS

    def _rows(self, columns: frozenset[str]) -> Iterator[dict[str, Any]]:
        good, bad = self._kinds()
        known = {name: value for name, value in good.items() if name in columns}
        reasons = [(name, value) for part in bad for name in part if name in columns for value in part[name]]
        for number in range(self._count):
            column, value = reasons[number % len(reasons)]
            if isinstance(value, str | bytes) and len(value) > LARGE and number > len(reasons):
                value = value[:1]
            yield {self.environment.key_column: f"bad-{number}", **known, column: value}

    def _kinds(self) -> tuple[dict[str, Any], list[dict[str, list[Any]]]]:
        """Return a row that could be run and is due now, and for each column the values with which it cannot be run."""
        now = time.time()
        ours, theirs = int(now * 1000), int(now)
        if self.environment.type == "rdb_compat":
            good = {
                "data": b'{"type": "work"}', "cron": "* * * * *", "timezone": "UTC", "delay": 0,
                "next_time": theirs, "timeout": theirs, "created_at": theirs, "owner": 0,
            }  # fmt: skip
            return good, [BAD_IN_COMPAT]
        good = {
            "type": "work", "data": "{}", "status": "waiting", "cron": "* * * * *", "timezone": "UTC", "delay_ms": 0,
            "next_time": ours, "run_at": ours, "due": ours, "band": 0, "user": "", "priority": 0,
        }  # fmt: skip
        return good, [BAD, {"redis": BAD_ON_REDIS, "sqlite": BAD_ON_SQLITE}.get(self.environment.store, {})]
