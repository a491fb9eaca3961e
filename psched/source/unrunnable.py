"""Rows that were acquired and cannot be run: logged once by key, and deferred together. In children and clients.

Thousands of them may have been written at once, and the rows behind them are to run on time.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import NamedTuple

from psched.clock import Clock
from psched.errors import RUN_IS_OVER, ScheduleError
from psched.model import Claim, Retry, version_of
from psched.store import LeaseStore
from psched.task import Completion

log = logging.getLogger(__name__)

_REMEMBERED = 10_000
"""Keys whose last reported problem is remembered; the problem of a further key may be logged again and again."""

_MANY = 100
"""After so many attempts the wait is as long as it ever gets."""

LOST_ATTEMPTS = "every attempt it is allowed was begun, and none was settled: its workers died, or lost their leases"
"""The error of a task that was begun as often as it may be, without being settled."""


class _Unrunnable(NamedTuple):
    """A claim that is not to be run, and why; None when it is to be cancelled."""

    claim: Claim
    error: str | None


class RunnableFilter:
    """Separates the claims that can be run from the others, which it defers. Safe to use from several threads."""

    def __init__(self, store: LeaseStore, completion: Completion, wait: Callable[[int], float], clock: Clock) -> None:
        """`wait`: seconds to wait after so many attempts."""
        self._store = store
        self._completion = completion
        self._wait = wait
        self._clock = clock
        self._reported: OrderedDict[str, str] = OrderedDict()

    def split_runnable(self, claims: Sequence[Claim]) -> list[Claim]:
        """Return the claims that can be run, and defer the others."""
        runnable: list[Claim] = []
        together: list[_Unrunnable] = []
        alone: list[_Unrunnable] = []
        for claim in claims:
            found = self._unrunnable(claim)
            if found is None:
                runnable.append(claim)
            elif _has_usable_lease(claim) and self._is_only_retried(claim):
                together.append(found)
            else:
                alone.append(found)
        if not self._defer_together(together):
            alone = together + alone
        for unrunnable in alone:
            self._defer(unrunnable)
        return runnable

    def _unrunnable(self, claim: Claim) -> _Unrunnable | None:
        row = claim.row
        problem = row.problem if row.problem is not None else self._completion.problem(row)
        if problem is not None:
            self._report(row.key, problem)
            return _Unrunnable(claim, problem)
        if claim.lease.cancel_requested:
            return _Unrunnable(claim, None)
        allowed = self._completion.attempts_allowed(row, None) if row.attempts > 1 else None
        if allowed is None or row.attempts <= allowed or self._completion.is_paused(row):
            return None
        return _Unrunnable(claim, LOST_ATTEMPTS)

    def _report(self, key: str, problem: str) -> None:
        if self._reported.get(key) != problem:
            self._reported[key] = problem
            if len(self._reported) > _REMEMBERED:
                self._reported.popitem(last=False)
            log.error("key=%s cannot be run: %s; retrying later", key, problem)

    def _is_only_retried(self, claim: Claim) -> bool:
        """Whether the claim is retried, and neither cancelled nor failed for good."""
        allowed = self._completion.attempts_allowed(claim.row, None)
        return not claim.lease.cancel_requested and (allowed is None or claim.row.attempts < allowed)

    def _defer_together(self, unrunnable: Sequence[_Unrunnable]) -> bool:
        """Make many rows due later in few statements; False when that failed, and each is to be deferred by itself.

        While the database does not answer, it is not asked for each row: they are due again when their leases end.
        """
        if not unrunnable:
            return True
        retries = [self._retry_of(claim, error) for claim, error in unrunnable]
        try:
            answers = self._store.retry_many(retries, self._clock())
        except Exception as failure:  # noqa: BLE001 – the other rows of this acquire can be run all the same
            log.warning("%d rows were not deferred together: %s", len(unrunnable), failure)
            return self._store.is_unavailable(failure)
        for (claim, _), lost in zip(unrunnable, answers, strict=True):
            if lost is not None:
                _log_lost(claim, lost)
        return True

    def _retry_of(self, claim: Claim, error: str | None) -> Retry:
        """Return how a row is deferred: a schedule for long and without an attempt, so that it keeps all of them."""
        version = version_of(claim.row)
        if version is None:
            return Retry(claim.lease, self._wait(claim.row.attempts), error)
        return Retry(claim.lease, self._wait(_MANY), error, version, counted=False)

    def _defer(self, unrunnable: _Unrunnable) -> None:
        """Settle a row that is not to be run now: it is retried later, or ended."""
        claim, error = unrunnable
        try:
            if self._is_only_retried(claim):
                retry = self._retry_of(claim, error)
                self._store.retry(retry.lease, retry.wait, retry.error, self._clock(), retry.counted, retry.version)
                return
            outcome = self._completion.retry(claim, self._wait(claim.row.attempts), error, None, self._clock())
        except RUN_IS_OVER as lost:
            _log_lost(claim, lost)
        except Exception as failure:  # noqa: BLE001 – the other rows of this acquire can be run all the same
            log.warning("key=%s not deferred: %s; retrying when its lease ends", claim.row.key, failure)
        else:
            if outcome != "retried":
                log.info("key=%s not run; the task is %s now", claim.row.key, outcome)


def _has_usable_lease(claim: Claim) -> bool:
    """Whether statements about many rows take the key and the fence; SQLite stores anything in both columns."""
    key: object = claim.lease.key
    fence: object = claim.lease.fence
    return isinstance(key, str) and "\0" not in key and isinstance(fence, int)


def _log_lost(claim: Claim, lost: ScheduleError) -> None:
    log.info("key=%s not deferred: %s", claim.row.key, lost)
