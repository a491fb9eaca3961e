"""Rows that cannot be run, written directly into the tables. In the test process."""

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
"""How many are written into each table."""
ON_SQLITE = 1000
"""Fewer, since each of them costs a commit to the disk when it is put off."""

BOMB = gzip.compress(bytes(20_000_000), mtime=0)
"""A few kilobytes that stand for more than any row may have."""
LARGE = 10_000
"""Characters above which a value is written once, and its first character after that."""

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
"""By column, what makes a row unfit to be run."""
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
"""What else is possible where nothing has a type; None: there is no such field."""
BAD_ON_SQLITE: dict[str, list[Any]] = {"data": [b"\xff\xfe", BOMB], "type": [b"\xff"]}
"""What SQLite stores besides, whatever type the column has."""
BAD_IN_COMPAT: dict[str, list[Any]] = {
    "data": [*(text.encode() for text in _TEXTS), BOMB],
    "cron": [cron for cron in BAD["cron"] if len(cron) <= 128],
    "timezone": BAD["timezone"],
}
"""The same in the originals' table; whatever its columns of time can hold is a time that they would run."""


class BadRows(TrialFault):
    """Ten thousand rows in each table that cannot be run, each for one of many reasons; somebody deletes them later."""

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
        """Return a row that could be run, due now, and by column what makes it one that cannot."""
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
