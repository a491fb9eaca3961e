"""Adding one schedule by way of adding many, the same for every store. Used in children and clients."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

from psched.errors import AlreadyExistsError
from psched.model import Policy, Rule, ScheduleRow

_ALL = Policy()


class Adding(ABC):
    """What has `ScheduleStore.add_many` has `add` too."""

    @abstractmethod
    def add_many(self, schedules: Sequence[ScheduleRow]) -> list[str]:
        """Create schedules and return the keys that existed before."""

    def add(
        self,
        key: str,
        type: str,
        rule: Rule,
        next_time: int,
        next_run_time: float,
        data: Mapping[str, Any],
        policy: Policy = _ALL,
    ) -> None:
        """Create a schedule. Raises AlreadyExistsError, ValueError for what does not fit into the table."""
        row = ScheduleRow(
            key, type, dict(data), "waiting", rule=rule, next_time=next_time, next_run_time=next_run_time, policy=policy
        )
        if self.add_many([row]):
            raise AlreadyExistsError(f"a schedule has the key {key!r} already")
