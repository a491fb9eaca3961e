"""Settles runs of queue tasks. A task that has ended is retired: its row and key are kept for its retention."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from psched.errors import NotSupportedError, ScheduleError
from psched.model import Claim, Row
from psched.settlement_base import Settlement
from psched.store import NO_RESULTS, TaskStore

FINISHED: Final = "finished"
FAILED: Final = "failed"
CANCELLED: Final = "cancelled"

_BATCH = 500
"""How many rows one statement purges."""
_PURGE_INTERVALS = (1.0, 60.0)
"""The shortest and the longest time between two purges of an idle queue, in seconds."""


class TaskSettlement(Settlement):
    """Deletes finished and cancelled tasks after `retention` seconds, and failed tasks after `failed_retention`.

    `failed_retention` None: failed tasks stay until they are deleted or retried. Retention times of a task's type take
    precedence. No task is deleted while its submit may be repeated after a lost answer, because the repeated submit
    must find the row.
    """

    store: TaskStore
    keeps_data = True

    def __init__(
        self,
        store: TaskStore,
        retention: float,
        max_attempts: int | None,
        failed_retention: float | None = None,
        stats_retention: float = 30 * 86400.0,
    ) -> None:
        super().__init__(store, max_attempts, stats_retention)
        self.retention = max(retention, store.sent_within)
        self._failed_retention = None if failed_retention is None else max(failed_retention, store.sent_within)
        least, most = _PURGE_INTERVALS
        self.maintenance_interval = max(least, min(self.retention / 10, most))

    def finish(self, claim: Claim, until: float) -> None:
        self.store.retire(claim, FINISHED, None, self._retention_of(claim), until)

    def finish_many(self, claims: Sequence[Claim], until: float) -> list[ScheduleError | None]:
        retentions = [self._retention_of(claim) for claim in claims]
        if len(set(retentions)) == 1:
            return self.store.retire_many(claims, FINISHED, retentions[0], until)
        answers: list[ScheduleError | None] = [None] * len(claims)
        for retention in dict.fromkeys(retentions):
            places = [place for place, own in enumerate(retentions) if own == retention]
            found = self.store.retire_many([claims[place] for place in places], FINISHED, retention, until)
            for place, answer in zip(places, found, strict=True):
                answers[place] = answer
        return answers

    def fail(self, claim: Claim, error: str | None, until: float) -> Row | None:
        if not self.store.keeps_results:
            raise NotSupportedError(f"{claim.row.key!r}: rdb_compat keeps no failed tasks; use `type: rdb`")
        own = None if claim.result is None else claim.result.failed_retention
        retention = self._failed_retention if own is None else max(own, self.store.sent_within)
        self.store.retire(claim, FAILED, error, retention, until)
        return None

    def cancel(self, claim: Claim, until: float) -> None:
        self.store.retire(claim, CANCELLED, None, self._retention_of(claim), until)

    def _retention_of(self, claim: Claim) -> float:
        own = None if claim.result is None else claim.result.retention
        return self.retention if own is None else max(own, self.store.sent_within)

    @property
    def result_problem(self) -> str | None:
        return None if self.store.keeps_results else NO_RESULTS

    def save_progress(self, claim: Claim, progress: str, until: float) -> None:
        self.store.update_progress(claim, progress, until)

    def save(self, claim: Claim, data: Mapping[str, Any], until: float) -> None:
        self.store.update_data(claim, data, until)

    def purge(self) -> bool:
        return self.store.purge(_BATCH) == _BATCH
