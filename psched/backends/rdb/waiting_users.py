"""The users of a queue that have due tasks, found without reading the backlog, and their shares of an acquire."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy import Connection

from psched.backends.rdb.acquire import WantedTypes
from psched.backends.rdb.fair_acquire_statements import HAS_ROW, NO_USER, UserStatements
from psched.backends.rdb.schema import has_users

_WINDOW = 100
"""Rows read, those that have been due longest, to find users with due rows."""
_WALK = 64
"""Further users read, in the order of their names, when the users of the window may not run enough tasks."""
_STRIDE = 8
"""Users read between two tests whether the users found so far may run enough tasks."""
_SHORT_WALK = 4
"""Further users read by every second acquire when the window is enough, so that other users get their share."""

_Range = tuple[int, WantedTypes]
"""A band, and one type that is read apart or all types: users are walked through by name within it."""

FirstRows = Mapping[str, Mapping[Any, Any]]
"""The first due row of each user."""


@dataclass(frozen=True, slots=True)
class WaitingUser:
    """A user with rows due since `due` (milliseconds), and at most `max_running` running tasks (None: no limit).

    `taken`: how many of the `running` tasks this acquire took.
    """

    name: str
    due: int
    running: int
    max_running: int | None
    taken: int = 0

    @property
    def room(self) -> int | None:
        """How many more tasks this acquire may take; None: any number.

        Half of the free places are left to other workers, else one worker acquires all tasks and runs them in turn.
        """
        if self.max_running is None:
            return None
        free = max(self.max_running - self.running + self.taken, 0)
        return max(min(free, max(free // 2, 1)) - self.taken, 0)

    def took(self, count: int) -> WaitingUser:
        """Return the user after `count` more of his tasks were taken."""
        return replace(self, running=self.running + count, taken=self.taken + count)

    def weight(self, more: int = 0) -> float:
        """Return the precedence of the user's next task when `more` tasks of his are running (as in PerfectQueue)."""
        return (1 if self.max_running is None else self.max_running) / (self.running + more + 1)


def turns(users: Iterable[WaitingUser], limit: int, first: Sequence[str] = ()) -> list[str]:
    """Return the users of the next `limit` tasks, a name for each task, in the order of the tasks.

    Each task goes to the user with the greatest weight, among equal weights to the user that has waited longest. The
    users in `first` get their first task before all others, in that order.
    """
    by_name = {user.name: user for user in users if user.room != 0}
    order = [name for name in first if name in by_name][:limit]
    given = Counter(order)
    heap = [
        (-user.weight(given[name]), user.due, name)
        for name, user in by_name.items()
        if user.room is None or given[name] < user.room
    ]
    heapq.heapify(heap)
    while heap and len(order) < limit:
        _, due, name = heapq.heappop(heap)
        given[name] += 1
        order.append(name)
        user = by_name[name]
        if user.room is None or given[name] < user.room:
            heapq.heappush(heap, (-user.weight(given[name]), due, name))
    return order


def least_of(one: object, other: object) -> int | None:
    """Return the smaller limit, None without any; a value that is not an integer from 1 on is no limit."""
    return min((limit for limit in (one, other) if isinstance(limit, int) and limit >= 1), default=None)


class WaitingUsersQuery:
    """Finds the users of one queue that have due rows. Safe to use from several threads."""

    def __init__(self, statements: UserStatements) -> None:
        self._statements = statements
        self._places: dict[_Range, str] = {}
        self._walked = False

    def find(
        self,
        connection: Connection,
        bands: Sequence[int],
        types: WantedTypes,
        enough: int,
        seen: Iterable[WaitingUser] = (),
    ) -> list[WaitingUser]:
        """Return users with due rows in `bands` that may run more tasks; some of them when many rows are due.

        `enough`: the number of wanted tasks. Once the users found may run as many, few other users are read. `seen`:
        users that had due rows in the last acquire, and need not be found again.
        """
        first_rows: dict[str, Mapping[Any, Any]] = {}
        is_full = False
        for band in bands:
            for some in types.each():
                values = {"of_band": band, "limit": _WINDOW if has_users(band) else 1, **some.parameters}
                rows = connection.execute(self._statements.window(some.shape), values).mappings().all()
                is_full = is_full or len(rows) == _WINDOW
                for row in rows:
                    user = row["user_name"] if has_users(band) else NO_USER
                    if types.apart and user in first_rows and row["due"] < first_rows[user]["due"]:
                        first_rows[user] = row
                    first_rows.setdefault(user, row)
        if first_rows.keys() <= {NO_USER}:
            return []
        if is_full:
            first_rows = {user.name: {"due": user.due, "max_running": user.max_running} for user in seen} | first_rows
        found = self._with_room(connection, first_rows)
        if is_full:
            found += self._further(connection, bands, types, first_rows, enough - _room(found, enough))
        return found

    def _with_room(self, connection: Connection, first_rows: FirstRows) -> list[WaitingUser]:
        """Return the users that may run more tasks; insert missing rows into the table of users."""
        running: dict[str, tuple[int, int | None]] = {}
        if NO_USER in first_rows:
            running[NO_USER] = (connection.execute(self._statements.live_userless).scalar_one(), None)
        without_row = first_rows.keys() - {NO_USER}
        if without_row:
            for user, live, most, _ in connection.execute(
                self._statements.leased_and_has_row, {"users": list(without_row)}
            ):
                if live == HAS_ROW:
                    without_row.discard(user)
                else:
                    running[user] = (live, most)
        if without_row:  # sorted, as other workers may insert the same users
            connection.execute(self._statements.insert, [{"user_name": user} for user in sorted(without_row, key=str)])
        found = []
        for user, row in first_rows.items():
            count, most = running.get(user, (0, None))
            limit = None if user == NO_USER else least_of(row["max_running"], most)
            found.append(WaitingUser(user, row["due"], count, limit))
        return [user for user in found if user.room != 0]

    def _further(
        self, connection: Connection, bands: Sequence[int], types: WantedTypes, known: FirstRows, missing: int
    ) -> list[WaitingUser]:
        """Return users that are not `known`, until these may run `missing` more tasks."""
        self._walked = not self._walked
        strides = [_STRIDE] * (_WALK // _STRIDE) if missing > 0 else [_SHORT_WALK] * self._walked
        kinds = types.each() if types.apart else [WantedTypes()]
        ranges = [(band, kind) for band in bands if has_users(band) for kind in kinds]
        found: list[WaitingUser] = []
        for steps in strides:
            first_rows, ranges = self._walk(connection, ranges, known, steps)
            found += self._with_room(connection, first_rows)
            known = {**known, **first_rows}
            if not ranges or _room(found, missing) >= missing:
                break
        return found

    def _walk(
        self, connection: Connection, ranges: Sequence[_Range], known: FirstRows, steps: int
    ) -> tuple[FirstRows, list[_Range]]:
        """Return the first due rows of users that are not `known`, and the ranges that have more users.

        Each step is a statement; the steps are divided among the ranges. A walk begins where the last walk in the same
        range ended.
        """
        found: dict[str, Mapping[Any, Any]] = {}
        further: list[_Range] = []
        for range_ in ranges:
            band, types = range_
            place = self._places.pop(range_, NO_USER)
            next_user = self._statements.next_user(types.apart)
            for _ in range(max(1, steps // len(ranges))):
                values = {"of_band": band, "user": place, **types.parameters}
                row = connection.execute(next_user, values).mappings().first()
                if row is None:
                    break
                place = row["user_name"]
                if row["due"] <= row["now"] and place not in known:
                    found.setdefault(place, row)
            else:
                self._places[range_] = place
                further.append(range_)
        return found, further


def _room(users: Iterable[WaitingUser], enough: int) -> int:
    """Return how many tasks the users may run; `enough` for each user without limit."""
    return sum(enough if user.room is None else user.room for user in users)
