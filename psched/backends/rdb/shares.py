"""Who may run how many tasks next: the fair order between users, as plain arithmetic. Used in children and clients."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterable, Sequence
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


def turns(candidates: Iterable[Candidate], limit: int, first: Sequence[str] = ()) -> list[str]:
    """Return the users of the next `limit` tasks, a name for each task, in the order in which they are to be taken.

    One task after another goes to the user of the greatest weight, at equal weights to the one who has waited longest.
    The users in `first` have their first task before all others, in that order.
    """
    by_user = {candidate.user: candidate for candidate in candidates if candidate.room != 0}
    order = [user for user in first if user in by_user][:limit]
    given = Counter(order)
    waiting = [
        (-candidate.weight(given[user]), candidate.due, user)
        for user, candidate in by_user.items()
        if candidate.room is None or given[user] < candidate.room
    ]
    heapq.heapify(waiting)
    while waiting and len(order) < limit:
        _, due, user = heapq.heappop(waiting)
        given[user] += 1
        order.append(user)
        candidate = by_user[user]
        if candidate.room is None or given[user] < candidate.room:
            heapq.heappush(waiting, (-candidate.weight(given[user]), due, user))
    return order
