"""Rows that nobody can run, written straight into the tables. In the test process."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any, TypeVar

import sqlalchemy as sa

from tests.trials.fault import Fault
from tests.trials.sabotage import TABLES
from tests.trials.stage import direct_engine

ROWS = 1000
"""How many are written into each table."""
AT_A_TIME = 50
T = TypeVar("T")

_TEXTS = ["{broken", "[1, 2]", '"text"', "", '{"a": NaN}', "null", "\x01\x02\x7f", "{" * 5000, '{"a": "' + "x" * 10**6]
BAD: dict[str, list[Any]] = {
    "data": _TEXTS,
    "cron": ["nonsense", "0 0 30 2 *", "61 * * * *", "", "*/0 * * * *", "a" * 200, "* * * * * * *", "\x01"],
    "timezone": ["Mars/Olympus", "../../etc/passwd", "localtime", "", "posixrules", "\x1b[31m"],
    "next_time": [10**17, -(10**17)],
    "delay_ms": [10**17],
    "type": ["nobody", "", "\x01\x1b[2J"],
    "run_at": [10**17],
}
"""By column, what makes a row unfit to be run."""


class BadRows(Fault):
    """A thousand rows in each table that cannot be run, each for one of many reasons; somebody deletes them later."""

    kind = "rows: malformed by the thousand"
    subject = "database"
    stores = frozenset({"sqlite", "mariadb", "postgresql"})
    excuses = False

    def begin(self) -> None:
        assert self.stage.type == "rdb", "these are rows of rdb"
        self.all_nodes()
        self.engine = direct_engine(self.stage)
        for name in TABLES:
            table = sa.Table(name, sa.MetaData(), autoload_with=self.engine)
            for rows in batched(list(self._rows(table))):
                self._do(table.insert(), rows)

    def heal(self) -> None:
        for name in TABLES:
            table = sa.Table(name, sa.MetaData(), autoload_with=self.engine)
            for numbers in batched(range(ROWS)):
                self._do(table.delete().where(table.c.key.in_([f"bad-{number}" for number in numbers])))
        self.engine.dispose()

    def _do(self, statement: sa.Executable, rows: Sequence[dict[str, Any]] = ()) -> None:
        """Execute in a short transaction, which keeps nobody waiting: locked tables are a fault of their own."""
        with self.engine.begin() as connection:
            connection.execute(statement, rows or None)

    def _rows(self, table: sa.Table) -> Iterator[dict[str, Any]]:
        now = int(time.time() * 1000)
        good = {
            "type": "work", "data": "{}", "status": "waiting", "cron": "* * * * *", "timezone": "UTC", "delay_ms": 0,
            "next_time": now, "run_at": now, "due": now, "band": 0,
        }  # fmt: skip
        known = {name: value for name, value in good.items() if name in table.c}
        reasons = [(name, value) for name in BAD if name in table.c for value in BAD[name]]
        for number in range(ROWS):
            column, value = reasons[number % len(reasons)]
            if len(str(value)) > 10**5 and number > len(reasons):
                value = "{"  # a megabyte is told once
            yield {"key": f"bad-{number}", **known, column: value}


def batched(things: Sequence[T]) -> Iterator[Sequence[T]]:
    """Yield a few at a time."""
    for first in range(0, len(things), AT_A_TIME):
        yield things[first : first + AT_A_TIME]
