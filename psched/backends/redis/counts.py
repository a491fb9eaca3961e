"""Implements the queries of `psched.insight` on a table on Redis."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

from psched.backends.common.rows import (
    RUNNING,
    TASK_CANCELLED,
    TASK_FAILED,
    TASK_FINISHED,
    WAITING,
    milliseconds,
    read_rule_use,
)
from psched.backends.redis.ledger import Run
from psched.backends.redis.rows import stored
from psched.model import NEVER, NO_OCCURRENCE
from psched.store.counts import Counted, DueUsers, RuleUse, TypeCounts, UserCounts

_PAGE = 1000
"""The maximum number of schedules whose rules one script reads."""
_RULE = (b"type", b"cron", b"timezone", b"delay_ms", b"options")
_SCHEDULES = ("total", "due", "running", "failing", "paused", "ended")
_TASKS = (WAITING, "due", RUNNING, TASK_FAILED, TASK_CANCELLED, TASK_FINISHED)
"""The counts that the scripts `counts` return, in this order."""


class RedisCounts:
    """Implements `TableCounts` for tables of schedules and of tasks.

    Sorted sets know their sizes, so most counts need no limit.
    """

    def __init__(self, run: Run) -> None:
        """`run(verb, *arguments)`: runs the script `verb` of this table, and returns its answer."""
        self._run = run

    def types(self, limit: int, most: int) -> list[TypeCounts]:
        found = self._run("type_counts", limit)
        return [
            TypeCounts(
                name.decode(errors="replace"),
                _counted(waiting),
                _counted(due),
                _counted(running),
                int(wait) / 1000 if wait else None,
            )
            for name, wait, waiting, due, running in found
        ]


class RedisScheduleCounts(RedisCounts):
    def counts(self, most: int) -> Mapping[str, Counted]:
        return _named(_SCHEDULES, self._run("counts", milliseconds(NEVER), milliseconds(NO_OCCURRENCE)))

    def rules(self) -> Iterator[RuleUse]:
        last = b""
        while True:
            last, page = self._run("rules", last, _PAGE, milliseconds(NO_OCCURRENCE))
            for key, *values in page:
                row = stored(key, list(chain.from_iterable(zip(_RULE, values, strict=True))))
                row["options"] = row["options"] or None
                yield read_rule_use(row, 1)
            if not last:
                return


class RedisTaskCounts(RedisCounts):
    def counts(self, most: int) -> Mapping[str, Counted]:
        return _named(_TASKS, self._run("counts"))

    def running_of(self, user: str) -> tuple[int, int | None]:
        count, least = self._run("running_of", user)
        return int(count), int(least) if least else None

    def users(self, limit: int, most: int) -> DueUsers:
        found, more = self._run("users", limit, most)
        users = [
            UserCounts(
                name.decode(errors="replace") or None,
                _counted(due),
                int(wait) / 1000,
                int(running),
                int(max_running) if max_running else None,
            )
            for name, due, wait, running, max_running in found
        ]
        return DueUsers(users, bool(more))


def _named(names: Sequence[str], found: Sequence[Sequence[int]]) -> Mapping[str, Counted]:
    """Return the counts by name. Leaves out counts that the script could not determine."""
    return {name: _counted(number) for name, number in zip(names, found, strict=True) if number}


def _counted(number: Sequence[Any]) -> Counted:
    return Counted(int(number[0]), bool(number[1]))
