"""Combines the acquires of several threads of a process."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from psched import fork_safety
from psched.backends.common.rows import BATCH
from psched.model import Claim
from psched.store import AcquireOptions

Acquire = Callable[[int, AcquireOptions, int], list[Claim]]
"""Leases rows. Takes the limit, the options, and the number of threads that want the rows."""


@dataclass(eq=False)
class AcquireRequest:
    """A request of one thread. `answer`: the claims or the error; None until the request is answered."""

    limit: int
    answer: list[Claim] | Exception | None = None


class AcquireCombiner:
    """`LeaseStore.acquire` for several threads. While one thread acquires, later requests wait and are then combined.

    Requests with equal options are combined up to `BATCH` rows. A single request may want more rows. The statements
    that answer a request start after the request, so they see all rows that were due at that time.
    """

    def __init__(self, acquire: Acquire) -> None:
        self._acquire = acquire
        self.reset_after_fork()
        fork_safety.register_for_fork(self)

    def reset_after_fork(self) -> None:
        """Forget all requests, because the threads that wait for them exist only in the parent process."""
        self._changed = threading.Condition()
        self._requests: dict[AcquireOptions, list[AcquireRequest]] = {}
        self._busy: set[AcquireOptions] = set()

    def acquire(self, limit: int, kind: AcquireOptions) -> list[Claim]:
        """Lease up to `limit` rows. If a combined acquire fails, all threads that wait for it raise the error."""
        mine = AcquireRequest(limit)
        with self._changed:
            self._requests.setdefault(kind, []).append(mine)
            try:
                self._changed.wait_for(lambda: mine.answer is not None or kind not in self._busy)
            except BaseException:  # withdraw the request of the interrupted thread
                if mine in self._requests.get(kind, ()):
                    self._requests[kind].remove(mine)
                raise
            if mine.answer is None:
                self._busy.add(kind)
                requests = self._requests.pop(kind)
        if mine.answer is None:
            self._acquire_for(kind, requests, mine)
        if isinstance(mine.answer, Exception):
            raise mine.answer
        return mine.answer or []

    def _acquire_for(self, kind: AcquireOptions, requests: list[AcquireRequest], mine: AcquireRequest) -> None:
        """Acquire for all `requests`. If an interrupt ends the acquire, the next thread serves the other requests."""
        limits = [request.limit for request in requests]
        answers: Sequence[list[Claim] | Exception] = ()
        try:
            answers = share_out(self._acquire(max(*limits, min(sum(limits), BATCH), 1), kind, len(requests)), limits)
        except Exception as error:  # noqa: BLE001 – each thread raises it
            answers = [error] * len(requests)
        finally:
            with self._changed:
                for request, answer in zip(requests, answers, strict=False):
                    request.answer = answer
                if not answers:
                    others = [request for request in requests if request is not mine]
                    self._requests[kind] = others + self._requests.get(kind, [])
                self._busy.discard(kind)
                self._changed.notify_all()


def share_out(claims: list[Claim], limits: Sequence[int]) -> list[list[Claim]]:
    """Divide the claims among lists, one for each of `limits`. The lists get a claim in turn, each up to its limit."""
    if len(limits) == 1:
        return [claims]
    shares: list[list[Claim]] = [[] for _ in limits]
    turns = deque(zip(shares, limits, strict=True))
    for claim in claims:
        share, limit = turns.popleft()
        share.append(claim)
        if len(share) < limit:
            turns.append((share, limit))
    return shares
