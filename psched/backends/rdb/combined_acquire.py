"""One acquire for several threads of a process that acquire at the same time."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from psched import fork_safety
from psched.backends.rdb.acquire import MOST_ROWS
from psched.model import Claim
from psched.store import AcquireOptions

Acquire = Callable[[int, AcquireOptions, int], list[Claim]]
"""Takes limit, options, and the number of threads that the rows are for."""


@dataclass(eq=False)
class AcquireRequest:
    """The limit of one thread, and the answer to it."""

    limit: int
    claims: list[Claim] = field(default_factory=list)
    error: Exception | None = None
    answered: bool = False


class CombinedAcquire:
    """`LeaseStore.acquire` for several threads: while one thread acquires, later requests wait, and become one acquire.

    Requests with equal options are combined. The statements that answer a call begin after the call.
    """

    def __init__(self, acquire: Acquire) -> None:
        self._acquire = acquire
        self.begin_anew()
        fork_safety.register_for_fork(self)

    def begin_anew(self) -> None:
        """Forget all requests: a process that was forked off has no threads that wait."""
        self._changed = threading.Condition()
        self._requests: dict[AcquireOptions, list[AcquireRequest]] = {}
        self._busy: set[AcquireOptions] = set()

    def acquire(self, limit: int, kind: AcquireOptions) -> list[Claim]:
        """Lease up to `limit` rows. Raises the error of the combined acquire in each thread that waits for it."""
        mine = AcquireRequest(limit)
        with self._changed:
            self._requests.setdefault(kind, []).append(mine)
            self._wait(kind, mine)
            if not mine.answered:
                self._busy.add(kind)
                requests = self._requests.pop(kind)
        if not mine.answered:
            self._acquire_for(kind, requests, mine)
        if mine.error is not None:
            raise mine.error
        return mine.claims

    def _wait(self, kind: AcquireOptions, mine: AcquireRequest) -> None:
        """Wait until another thread has answered `mine`, or no thread acquires. An interrupt withdraws `mine`."""
        try:
            while kind in self._busy and not mine.answered:
                self._changed.wait()
        except BaseException:
            if mine in self._requests.get(kind, ()):
                self._requests[kind].remove(mine)
            raise

    def _acquire_for(self, kind: AcquireOptions, requests: list[AcquireRequest], mine: AcquireRequest) -> None:
        """Acquire for all `requests`. After an interrupt the requests of other threads are left to the next thread."""
        limits = [request.limit for request in requests]
        unanswered = [request for request in requests if request is not mine]
        try:
            claims = self._acquire(max(*limits, min(sum(limits), MOST_ROWS), 1), kind, len(requests))
            share_out(claims, requests)
            unanswered = []
        except Exception as error:  # noqa: BLE001 – each thread raises it
            for request in requests:
                request.error = error
            unanswered = []
        finally:
            with self._changed:
                for request in requests:
                    request.answered = request not in unanswered
                if unanswered:
                    self._requests.setdefault(kind, []).extend(unanswered)
                self._busy.discard(kind)
                self._changed.notify_all()


def share_out(claims: Sequence[Claim], requests: Sequence[AcquireRequest]) -> None:
    """Give each request a claim in turn, and no request more than its limit."""
    if len(requests) == 1:
        requests[0].claims.extend(claims)
        return
    turns = deque(requests)
    for claim in claims:
        request = turns.popleft()
        request.claims.append(claim)
        if len(request.claims) < request.limit:
            turns.append(request)
