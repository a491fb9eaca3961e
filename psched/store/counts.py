"""The contract of the queries for `psched.insight`: numbers of rows, and the rules in use.

No method writes. Each statement or script counts up to a limit, so that none reads a whole table.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from psched.model import Overlap, Rule


@dataclass(frozen=True, slots=True)
class Counted:
    """A number of rows. `more`: whether counting ended at a limit, so that there may be more rows."""

    count: int
    more: bool = False

    @classmethod
    def up_to(cls, most: int, found: int) -> Counted:
        """Return the count for a query that stops at `most` + 1 rows. `found`: the result of the query."""
        return cls(min(found, most), found > most)

    def __str__(self) -> str:
        return f"{self.count:,}{'+' if self.more else ''}"


@dataclass(frozen=True, slots=True)
class TypeCounts:
    """The rows of one type: how many are `waiting`, how many are `due`, and how many are `running`.

    A row is due if it waits and its time has come, or if its lease has ended. `oldest`: how many seconds the first due
    row has been due; None if no row is due.
    """

    type: str
    waiting: Counted
    due: Counted
    running: Counted
    oldest: float | None


@dataclass(frozen=True, slots=True)
class UserCounts:
    """The tasks of one user. All tasks that have no user are counted together, under the user None.

    - `due`: how many tasks are due.
    - `oldest`: how many seconds the first due task has been due.
    - `running`: how many tasks run.
    - `max_running`: how many may run at a time; None: no limit.
    """

    user: str | None
    due: Counted
    oldest: float
    running: int
    max_running: int | None

    @property
    def weight(self) -> float:
        """The precedence of the user: workers take the next task from the user with the greatest weight.

        0 if the user is at `max_running`.
        """
        if self.max_running is None:
            return 1 / (self.running + 1)
        return self.max_running / (self.running + 1) if self.running < self.max_running else 0.0


class DueUsers(NamedTuple):
    """Users with due tasks. `more`: whether other users may have due tasks, too."""

    users: Sequence[UserCounts]
    more: bool


@dataclass(frozen=True, slots=True)
class RuleUse:
    """How many schedules of one type have the same rule. Paused and ended schedules do not count.

    `type`: None on `rdb_compat`. `key`: the key of one of these schedules. `overlap`, `on_failure`: as in the policy of
    these schedules.
    """

    rule: Rule
    type: str | None
    count: int
    key: str
    overlap: Overlap = "wait"
    on_failure: str | None = None


class TableCounts(Protocol):
    """The row counts of one table. Methods may be called from any thread and raise the driver's errors."""

    def counts(self, most: int) -> Mapping[str, Counted]:
        """Return the number of rows in each state, each counted up to `most`.

        The states of schedules are `total`, `due`, `running`, `failing`, `paused` and `ended`. A paused schedule does
        not count as `failing`. The states of tasks are `waiting`, `due`, `running`, `finished`, `failed` and
        `cancelled`. A task is due if its time has come, or its lease has ended. A state that the store cannot count is
        missing. If a store has to look at each row of a state, it counts up to a tenth of `most`. `rdb` counts finished
        tasks up to 1,000.
        """

    def types(self, limit: int, most: int) -> list[TypeCounts]:
        """Return up to `limit` types of schedules, or of tasks that have not ended, the earliest due time first.

        `most`: the limit up to which each number in a `TypeCounts` is counted. Raises NotSupportedError if
        `keeps_types` of the store is False.
        """


class ScheduleCounts(TableCounts, Protocol):
    """The row counts of a table of schedules, and the rules that these schedules use."""

    def rules(self) -> Iterator[RuleUse]:
        """Yield how many schedules use each rule.

        Schedules are read a page at a time, so the same rule may occur repeatedly.
        """


class TaskCounts(TableCounts, Protocol):
    """The row counts of a queue, also by user."""

    def running_of(self, user: str) -> tuple[int, int | None]:
        """Return the number of running tasks of a user, and the smallest `max_running` of these tasks.

        A `max_running` of None means no limit.
        """

    def users(self, limit: int, most: int) -> DueUsers:
        """Return up to `limit` users with due tasks. The user whose first task has been due longest comes first.

        The query looks at up to `most` due tasks of each priority. Raises NotSupportedError on `rdb_compat`.
        """
