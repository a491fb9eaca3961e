"""Rows that were acquired and are not to be run: told of once by key, and put off together. In children and clients.

Thousands of them may have been written at once, and what stands behind them is to run on time.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import NamedTuple

from psched.clock import Clock
from psched.errors import RUN_IS_OVER, ScheduleError
from psched.model import Claim, Retry, version_of
from psched.source.completion import Completion
from psched.store import LeaseStore

log = logging.getLogger(__name__)

_REMEMBERED = 10_000
"""Of so many keys the last thing that was told is known; what is wrong with more of them is told again and again."""

_MANY = 100
"""After so many attempts the wait is as long as it ever gets."""

LOST_ATTEMPTS = "every attempt it is allowed was begun, and none was settled: its workers died, or lost their leases"
"""The error of a task that has worn out its attempts."""


class _Unrunnable(NamedTuple):
    """A claim that is not to be run, and why; None when it is to be cancelled."""

    claim: Claim
    error: str | None


class RunnableFilter:
    """Tells what can be run from what cannot. Safe to use from several threads."""

    def __init__(
        self,
        store: LeaseStore,
        completion: Completion,
        retry: Callable[[Claim, float | None, str | None, float], str],
        wait: Callable[[int], float],
        clock: Clock,
    ) -> None:
        """`retry`: settles one claim, whatever that comes to; `wait`: seconds to wait after so many attempts."""
        self._store = store
        self._completion = completion
        self._retry = retry
        self._wait = wait
        self._clock = clock
        self._reported: OrderedDict[str, str] = OrderedDict()

    def able(self, claims: Sequence[Claim]) -> list[Claim]:
        """Return those that can be run, and put the others off."""
        able: list[Claim] = []
        unfit: list[_Unrunnable] = []
        for claim in claims:
            found = self._unfit(claim)
            if found is None:
                able.append(claim)
            else:
                unfit.append(found)
        self._put_all_off(unfit)
        return able

    def _put_all_off(self, unfit: Sequence[_Unrunnable]) -> None:
        together: list[_Unrunnable] = []
        alone: list[_Unrunnable] = []
        for one in unfit:
            is_one_of_many = _has_usable_lease(one.claim) and self._is_only_retried(one.claim)
            (together if is_one_of_many else alone).append(one)
        if not self._put_off_together(together):
            alone += together
        for one in alone:
            self._put_off(one)

    def _unfit(self, claim: Claim) -> _Unrunnable | None:
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
            log.error("key=%s cannot be run: %s; the row is put off", key, problem)

    def _is_only_retried(self, claim: Claim) -> bool:
        """Tell whether nothing but a retry comes of it."""
        allowed = self._completion.attempts_allowed(claim.row, None)
        return not claim.lease.cancel_requested and (allowed is None or claim.row.attempts < allowed)

    def _put_off_together(self, unfit: Sequence[_Unrunnable]) -> bool:
        """Let many be due later in few statements; False when that failed, and each is to be put off by itself.

        A database that is away is not asked again for each of them: they come back when their leases end.
        """
        if not unfit:
            return True
        retries = [self._retry_of(claim, error) for claim, error in unfit]
        try:
            answers = self._store.retry_many(retries, self._clock())
        except Exception as failure:  # noqa: BLE001 – what was acquired with them can be run all the same
            log.warning("%d rows were not put off together: %s", len(unfit), failure)
            return self._store.is_unavailable(failure)
        for one, lost in zip(unfit, answers, strict=True):
            if lost is not None:
                _say_lost(one.claim, lost)
        return True

    def _retry_of(self, claim: Claim, error: str | None) -> Retry:
        """Return how a row is put off: a schedule for long, and without an attempt, of which it then has all."""
        version = version_of(claim.row)
        if version is None:
            return Retry(claim.lease, self._wait(claim.row.attempts), error)
        return Retry(claim.lease, self._wait(_MANY), error, version, counted=False)

    def _put_off(self, unfit: _Unrunnable) -> None:
        """Settle a row that is not to be run now: it is tried again later, or ended."""
        claim, error = unfit
        outcome = "retried"
        try:
            if self._is_only_retried(claim):
                one = self._retry_of(claim, error)
                self._store.retry(one.lease, one.wait, one.error, self._clock(), one.counted, one.version)
            else:
                outcome = self._retry(claim, None, error, self._clock())
        except RUN_IS_OVER as lost:
            _say_lost(claim, lost)
        except Exception as failure:  # noqa: BLE001 – what was acquired with it can be run all the same
            log.warning("key=%s was not put off: %s; it comes back when its lease ends", claim.row.key, failure)
        else:
            if outcome != "retried":
                log.info("key=%s was not run; the task is %s now", claim.row.key, outcome)


def _has_usable_lease(claim: Claim) -> bool:
    """Tell whether the key and the fence are what statements about many rows take; SQLite stores anything in both."""
    key: object = claim.lease.key
    fence: object = claim.lease.fence
    return isinstance(key, str) and "\0" not in key and isinstance(fence, int)


def _say_lost(claim: Claim, lost: ScheduleError) -> None:
    log.info("key=%s was not put off: %s", claim.row.key, lost)
