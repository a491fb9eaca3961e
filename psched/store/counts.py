"""The contract of the queries for `psched.insight`: numbers of rows, and the rules in use.

No method reads a whole table in one statement or script, and none writes. Each counts up to a bound.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from psched.model import Rule


@dataclass(frozen=True, slots=True)
class Counted:
    """A number of rows. `more`: there may be more, as counting ended at a bound."""

    count: int
    more: bool = False

    @classmethod
    def up_to(cls, most: int, found: int) -> Counted:
        """Return the number of rows, of which at most `most` + 1 were found."""
        return cls(min(found, most), found > most)

    def __str__(self) -> str:
        return f"{self.count:,}{'+' if self.more else ''}"


@dataclass(frozen=True, slots=True)
class TypeCounts:
    """The rows of one type: `waiting` ones, and those of them that are `due`; `running` ones.

    A row whose lease has ended is due. `oldest`: seconds for which the first due row has been due, None without one.
    """

    type: str
    waiting: Counted
    due: Counted
    running: Counted
    oldest: float | None


@dataclass(frozen=True, slots=True)
class UserCounts:
    """The tasks of one user. `user` is None for tasks without a user, which take turns as one more user.

    `due`: the tasks that are due, for `oldest` seconds the first of them. `running`: those that run; at most
    `max_running` may (None: no limit).
    """

    user: str | None
    due: Counted
    oldest: float
    running: int
    max_running: int | None

    @property
    def weight(self) -> float:
        """The precedence of the user's next task; 0 while as many run as may."""
        if self.max_running is None:
            return 1 / (self.running + 1)
        return self.max_running / (self.running + 1) if self.running < self.max_running else 0.0


class DueUsers(NamedTuple):
    """Users with due tasks. `more`: others may have due tasks, too."""

    users: Sequence[UserCounts]
    more: bool


@dataclass(frozen=True, slots=True)
class RuleUse:
    """How many schedules of one type have one rule. Paused schedules do not count.

    `type` is None where types are in the data (`rdb_compat`). `key` is that of one of these schedules.
    """

    rule: Rule
    type: str | None
    count: int
    key: str


class TableCounts(Protocol):
    """The numbers of one table. Methods may be called from any thread; they raise the driver's errors."""

    def counts(self, most: int) -> Mapping[str, Counted]:
        """Return the number of rows by their state; each is counted up to `most`.

        Schedules: `total`, `due`, `running`, `failing` (not paused), `paused` and `ended`. Tasks: `waiting`, `due`
        (they wait, or their lease has ended), `running`, `finished`, `failed` and `cancelled`. A state that the store
        cannot count is missing. Where a store has to look at each row of a state, it counts up to a tenth of `most`,
        and finished tasks up to 1,000.
        """

    def types(self, limit: int, most: int) -> list[TypeCounts]:
        """Return up to `limit` types with rows that are not retired, those with the earliest due time first.

        Each number is counted up to `most`. Raises NotSupportedError unless the store `keeps_types`.
        """


class ScheduleCounts(TableCounts, Protocol):
    """The numbers of a table of schedules."""

    def rules(self) -> Iterator[RuleUse]:
        """Yield how often each rule is used, a page of schedules at a time: the same rule may come more than once."""


class TaskCounts(TableCounts, Protocol):
    """The numbers of a queue."""

    def running_of(self, user: str) -> tuple[int, int | None]:
        """Return how many tasks of a user run, and the least `max_running` of these (None: no limit)."""

    def users(self, limit: int, most: int) -> DueUsers:
        """Return up to `limit` users with due tasks, those whose first task has been due longest first.

        Looks at up to `most` due tasks of each priority. Raises NotSupportedError on `rdb_compat`.
        """
