"""Who may run how many tasks next: the fair order between users, as plain arithmetic. Used in children and clients."""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from dataclasses import dataclass, replace

NOBODY = ""
"""The user of tasks without one, which together count as one more user."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A user with something due since `due` (milliseconds), of whose tasks `max_running` may run (None: any number).

    `taken`: how many of those that run were taken by this acquire.
    """

    user: str
    due: int
    running: int
    max_running: int | None
    taken: int = 0

    @property
    def room(self) -> int | None:
        """How many more tasks this acquire may take; None: any number.

        Half of what is free is left to other workers, lest one takes all ahead and runs one after another.
        """
        if self.max_running is None:
            return None
        free = max(self.max_running - self.running + self.taken, 0)
        return max(min(free, max(free // 2, 1)) - self.taken, 0)

    def took(self, count: int) -> Candidate:
        """Return what the user is like once `count` more of his tasks were taken."""
        return replace(self, running=self.running + count, taken=self.taken + count)

    def weight(self, more: int = 0) -> float:
        """Return the precedence of this user's next task once `more` of his run too (as in PerfectQueue)."""
        return (1 if self.max_running is None else self.max_running) / (self.running + more + 1)


def shares(candidates: Iterable[Candidate], limit: int) -> dict[str, int]:
    """Return how many tasks each user may start of the next `limit`, in the order of their first one.

    One task after another goes to the user of the greatest weight, at equal weights to whoever has waited longest.
    """
    by_user = {candidate.user: candidate for candidate in candidates if candidate.room != 0}
    waiting = [(-candidate.weight(), candidate.due, candidate.user) for candidate in by_user.values()]
    heapq.heapify(waiting)
    given: dict[str, int] = {}
    for _ in range(limit):
        if not waiting:
            break
        _, due, user = heapq.heappop(waiting)
        given[user] = given.get(user, 0) + 1
        candidate = by_user[user]
        if candidate.room is None or given[user] < candidate.room:
            heapq.heappush(waiting, (-candidate.weight(given[user]), due, user))
    return given
