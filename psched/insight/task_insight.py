"""Queries about the tasks of one queue."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from psched.errors import NotFoundError
from psched.insight.pages import LOOKED_AT, Page, first_page
from psched.insight.table_insight import TableInsight
from psched.insight.why_waiting import Reason, why_waiting
from psched.model import TaskFilter, TaskRow, TaskStatus
from psched.queue.queue import Queue
from psched.store.counts import DueUsers

_MOST_OF_USERS = 1000
_FOUND_BY_INDEX = ("waiting", "running")
"""Statuses in which an index finds tasks by type and user. Tasks in other statuses are read one after another."""


class TaskDetails(NamedTuple):
    """One task, and the reasons why it is not running. A running or ended task has no reasons."""

    row: TaskRow
    waits: Sequence[Reason]


class TaskInsight(TableInsight):
    """Queries about the tasks of one queue. Reads only; safe to use from several threads."""

    def __init__(self, queue: Queue) -> None:
        """`queue`: must be opened with `read_only`."""
        super().__init__(queue.store)
        self._queue = queue
        self._store = queue.store

    def page(
        self,
        *,
        status: TaskStatus | None = None,
        type: str | None = None,
        user: str | None = None,
        prefix: str | None = None,
        after: str | None = None,
        limit: int = 50,
    ) -> Page[TaskRow, str]:
        """Return the first tasks after the key `after` that match, sorted by key.

        None in an argument matches any task.
        """
        is_indexed = status in _FOUND_BY_INDEX
        known = (type if self._store.keeps_types else None, user) if is_indexed else (None, None)
        is_filtered_here = (known[0] or type, known[1] or user) != known
        page = LOOKED_AT + 1 if is_filtered_here else limit + 1
        rows = self._store.list(TaskFilter(status, *known, prefix, after=after, page=page))
        return first_page(
            rows,
            limit,
            lambda row: type in (None, row.type) and user in (None, row.user),
            lambda row: row.key,
        )

    def late(self, seconds: float = 60.0, *, limit: int = 50) -> list[TaskRow]:
        """Return the waiting tasks that have been due for at least `seconds`, those due longest first.

        On Redis and `rdb_compat`, reads only 1,000 such tasks, perhaps not those due longest.
        """
        return self._store.long_due(seconds, limit)

    def rows(
        self,
        *,
        status: TaskStatus | None = None,
        type: str | None = None,
        user: str | None = None,
        prefix: str | None = None,
        late: float | None = None,
        after: str | None = None,
    ) -> Iterator[TaskRow]:
        """Yield all tasks after the key `after` that match, sorted by key. `late`: as for `TaskFilter`."""
        return self._queue.list(status=status, type=type, user=user, prefix=prefix, late=late, after=after)

    def users(self, limit: int = 20, most: int = _MOST_OF_USERS) -> DueUsers:
        """Return users with due tasks, sorted by whose task is acquired next. Users at their `max_running` are last.

        Reads up to `most` due tasks of each priority. The result says whether other users may have due tasks. Raises
        NotSupportedError on `rdb_compat`.
        """
        found = self._store.reads.users(limit, most)
        return DueUsers(sorted(found.users, key=lambda each: (-each.weight, -each.oldest)), found.more)

    def details(self, key: str) -> TaskDetails:
        """Return one task, and why it is not running. Raises NotFoundError."""
        row = self._store.get(key)
        if row is None:
            raise NotFoundError(f"no task has the key {key!r}")
        return TaskDetails(row, why_waiting(row, self._store, self._store.now()))
