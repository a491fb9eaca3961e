"""Doing for many what a store does for one, where it cannot be done together."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

from psched.errors import AlreadyExistsError, IdempotentAlreadyFinishedError, ScheduleError
from psched.model import Policy, Rule, ScheduleRow
from psched.store import ScheduleStore
from psched.store.ledger import Step


def advanced(
    store: ScheduleStore, step: Step, until: float, uncertain: bool = False
) -> ScheduleRow | ScheduleError | None:
    """Advance one schedule and return what comes of it, or why it cannot be. Raises what the driver does.

    `uncertain`: it may have been advanced by an attempt whose answer was lost.
    """
    lease = step.claim.lease
    claim = step.claim._replace(lease=lease._replace(unanswered=lease.unanswered or uncertain))
    try:
        return store.advance(claim, step.next_time, step.next_run_time, until, entry=step.entry)
    except ScheduleError as error:
        return None if uncertain and isinstance(error, IdempotentAlreadyFinishedError) else error


_ALL = Policy()


class SingleAdd(ABC):
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
