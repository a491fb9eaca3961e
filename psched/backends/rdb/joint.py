"""Threads of one process that acquire at the same moment do so together. Used in children and clients.

Whoever finds another one at it waits, and the next one then takes what all of them want by the same few statements:
claiming for users costs nearly the same for one row as for many, and would make the threads wait for one another.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field

from psched.dialects import forks
from psched.model import Claim

_MOST = 500
"""Rows that are asked for at once for all, unless one alone wants more."""

Acquire = Callable[[int, float, Collection[str] | None, bool, int], list[Claim]]
"""Leases up to so many rows for so many seconds, of some types, ahead of their runs or not, for a number of threads."""
_Kind = tuple[float, tuple[str, ...] | None, bool]


@dataclass(eq=False)
class Wish:
    """What one thread wants, and what came of it."""

    limit: int
    claims: list[Claim] = field(default_factory=list)
    error: Exception | None = None
    settled: bool = False


class JointAcquire:
    """`LeaseStore.acquire` for several threads at once. Each call's statements begin after the call."""

    def __init__(self, acquire: Acquire) -> None:
        self._acquire = acquire
        self.begin_anew()
        forks.mind(self)

    def begin_anew(self) -> None:
        """Know of no thread that acquires, as at first; in a process that was forked off there is none."""
        self._changed = threading.Condition()
        self._wishes: dict[_Kind, list[Wish]] = {}
        self._busy: set[_Kind] = set()

    def acquire(self, limit: int, alive_time: float, types: Collection[str] | None, ahead: bool = False) -> list[Claim]:
        """Lease up to `limit` rows; an error of the database is told to all who asked together."""
        if limit < 1:
            return []
        mine = Wish(limit)
        kind = (alive_time, None if types is None else tuple(sorted(set(types))), ahead)
        with self._changed:
            self._wishes.setdefault(kind, []).append(mine)
            self._wait(kind, mine)
            if not mine.settled:
                self._busy.add(kind)
                wishes = self._wishes.pop(kind)
        if not mine.settled:
            self._fulfil(kind, wishes, mine)
        if mine.error is not None:
            raise mine.error
        return mine.claims

    def _wait(self, kind: _Kind, mine: Wish) -> None:
        """Wait until nobody else acquires, or somebody has done so for us. Who is interrupted wants nothing more."""
        try:
            while kind in self._busy and not mine.settled:
                self._changed.wait()
        except BaseException:
            if mine in self._wishes.get(kind, ()):
                self._wishes[kind].remove(mine)
            raise

    def _fulfil(self, kind: _Kind, wishes: list[Wish], mine: Wish) -> None:
        """Acquire for all of `wishes`. Whoever is interrupted at it leaves the others' to the next one."""
        limits = [wish.limit for wish in wishes]
        left = [wish for wish in wishes if wish is not mine]
        try:
            deal(self._acquire(max(*limits, min(sum(limits), _MOST), 1), *kind, len(wishes)), wishes)
            left = []
        except Exception as error:  # noqa: BLE001 – each of them raises it in his own thread
            for wish in wishes:
                wish.error = error
            left = []
        finally:
            with self._changed:
                for wish in wishes:
                    wish.settled = wish not in left
                if left:
                    self._wishes.setdefault(kind, []).extend(left)
                self._busy.discard(kind)
                self._changed.notify_all()


def deal(claims: Sequence[Claim], wishes: Sequence[Wish]) -> None:
    """Give the claims out in turn, to nobody more than he wants."""
    if len(wishes) == 1:
        wishes[0].claims.extend(claims)
        return
    turns = deque(wishes)
    for claim in claims:
        wish = turns.popleft()
        wish.claims.append(claim)
        if len(wish.claims) < wish.limit:
            turns.append(wish)
