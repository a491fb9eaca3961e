"""Retries or settles acquired rows that cannot be run, such as unreadable or cancelled rows."""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Sequence

from psched.clock import Clock
from psched.error_messages import one_line
from psched.errors import RUN_IS_OVER, ScheduleError
from psched.model import Claim, LeaseTimes, Retry, version_of
from psched.settlement_base import Settlement
from psched.store import LeaseStore

log = logging.getLogger(__name__)

_REMEMBERED = 10_000
"""The maximum number of keys whose last problem is remembered. The problem of a remembered key is logged only once."""
_MANY = 100
"""A number of attempts so large that every growing retry wait has reached its maximum."""
LOST_ATTEMPTS = "all allowed attempts began, but none was settled: their workers died or lost their leases"
"""The error of a task if all its allowed attempts began, but none was settled."""


class RunnableFilter:
    """Retries or settles the claims that cannot be run. Safe to use from several threads."""

    def __init__(self, store: LeaseStore, settlement: Settlement, times: LeaseTimes, clock: Clock) -> None:
        self._store = store
        self._settlement = settlement
        self._wait = times.backoff.seconds
        self._clock = clock
        self._reported: OrderedDict[str, str] = OrderedDict()

    def split_runnable(self, claims: Sequence[Claim]) -> list[Claim]:
        runnable, unrunnable = [], []
        for claim in claims:
            reason = self._why_not(claim)
            if reason is None:
                runnable.append(claim)
            else:
                unrunnable.append((claim, reason))
        if unrunnable:
            self._defer(unrunnable)
        return runnable

    def _why_not(self, claim: Claim) -> str | None:
        row = claim.row
        problem = row.problem if row.problem is not None else self._settlement.problem(row)
        if problem is not None:
            self._report(row.key, problem)
            return problem
        if claim.lease.cancel_requested:
            return "its cancellation was requested"
        allowed = self._settlement.attempts_allowed(row, None) if row.attempts > 1 else None
        if allowed is None or row.attempts <= allowed or self._settlement.is_paused(row):
            return None
        return LOST_ATTEMPTS

    def _report(self, key: str, problem: str) -> None:
        if self._reported.get(key) != problem:
            self._reported[key] = problem
            if len(self._reported) > _REMEMBERED:
                self._reported.popitem(last=False)
            log.error("key=%s cannot be run: %s; retrying later", key, problem)

    def _is_only_retried(self, claim: Claim) -> bool:
        """Return whether the row has attempts left and no cancel was requested."""
        allowed = self._settlement.attempts_allowed(claim.row, None)
        return not claim.lease.cancel_requested and (allowed is None or claim.row.attempts < allowed)

    def _defer(self, unrunnable: Sequence[tuple[Claim, str]]) -> None:
        """Retry or settle the rows of these claims.

        One statement retries the rows that have attempts left and no cancel request. The other rows are settled one by
        one. If the database refuses the statement, all rows are handled one by one. If the database does not answer,
        the rows are due when their leases end.
        """
        together: list[tuple[Claim, str]] = []
        alone: list[tuple[Claim, str]] = []
        for claim, reason in unrunnable:
            is_deferred_together = _has_usable_lease(claim) and self._is_only_retried(claim)
            (together if is_deferred_together else alone).append((claim, reason))
        try:
            retries = [self._retry_of(claim, reason) for claim, reason in together]
            refusals = self._store.retry_many(retries, self._clock()) if together else []
        except Exception as failure:  # noqa: BLE001 – the other rows of this acquire can still be run
            is_away = self._store.is_unavailable(failure)
            if not is_away:
                alone = [*together, *alone]
            words = "%d rows that cannot be run were not deferred: %s; %s"
            then = "retrying when their leases end" if is_away else "trying one by one"
            log.warning(words, len(together), one_line(failure), then)
        else:
            for (claim, _), refusal in zip(together, refusals, strict=True):
                if refusal is not None:
                    _log_lost(claim, refusal)
        for claim, reason in alone:
            self._defer_alone(claim, reason)

    def _retry_of(self, claim: Claim, reason: str) -> Retry:
        """Return the retry of a row that cannot be run.

        The row of a schedule waits for the longest retry wait, and the attempt does not count. A queue task waits as
        after a failure.
        """
        version = version_of(claim.row)
        if version is None:
            return Retry(claim.lease, self._wait(claim.row.attempts), reason)
        return Retry(claim.lease, self._wait(_MANY), reason, version, counted=False)

    def _defer_alone(self, claim: Claim, reason: str) -> None:
        """Retry one row. If it has no attempts left or was cancelled, settle it for good."""
        try:
            if self._is_only_retried(claim):
                retry = self._retry_of(claim, reason)
                self._store.retry(retry.lease, retry.wait, retry.error, self._clock(), retry.counted, retry.version)
                return
            outcome = self._settlement.retry(claim, self._wait(claim.row.attempts), reason, None, self._clock())
            if outcome != "retried":
                log.info("key=%s was not run; the task is now %s", claim.row.key, outcome)
        except RUN_IS_OVER as lost:
            _log_lost(claim, lost)
        except Exception as failure:  # noqa: BLE001 – the other rows of this acquire can still be run
            words = "key=%s cannot be run, and was not deferred: %s; retrying when its lease ends"
            log.warning(words, claim.row.key, one_line(failure))


def _has_usable_lease(claim: Claim) -> bool:
    """Return whether bulk statements can use the key and the fence. On SQLite both may have a wrong type."""
    key: object = claim.lease.key
    fence: object = claim.lease.fence
    return isinstance(key, str) and "\0" not in key and isinstance(fence, int)


def _log_lost(claim: Claim, lost: ScheduleError) -> None:
    log.info("key=%s cannot be run, and was not deferred: %s", claim.row.key, lost)
