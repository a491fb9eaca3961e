"""Which users of a queue have something due: found without reading a backlog. Used in children and clients."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy import (
    BindParameter,
    ColumnElement,
    Connection,
    RowMapping,
    Select,
    Table,
    bindparam,
    case,
    func,
    literal,
    literal_column,
    null,
    select,
    union_all,
)

from psched.backends.common.rows import RUNNING
from psched.backends.rdb.claiming import WantedTypes
from psched.backends.rdb.lease_statements import TypesShape, among_types, type_parameters
from psched.backends.rdb.schema import has_user, has_user_and_type, of_users
from psched.backends.sql.base import Dialect, now_ms
from psched.backends.sql.once import cached_on_class

_WINDOW = 100
"""How many of the rows that are due longest are looked at to see which users wait."""
_WALK = 64
"""How many further users are looked at when those whose rows have been due longest have too little room."""
_STRIDE = 8
"""After how many of them it is seen whether that will do."""
_STROLL = 4
"""How many are looked at, every other time, when there is room enough: whoever else waits is to get his share."""
_HAS_ROW = -1
"""Stands for a count where it is told that a user has a row."""

_Way = tuple[int, WantedTypes | None]
"""A band, and a type that is read apart, in which users are looked at one after another by their names."""

Heads = Mapping[str, Mapping[Any, Any]]
"""The first due row of each user."""


class Candidates:
    """The users of one queue who wait. Safe to use from several threads."""

    def __init__(self, dialect: type[Dialect], table: Table, users: Table) -> None:
        self._places: dict[_Way, str] = {}
        self._strolls = False
        self._write_statements(dialect, table, users)

    def waiting(
        self,
        connection: Connection,
        bands: Sequence[int],
        types: WantedTypes | None,
        enough: int,
        seen: Iterable[Candidate] = (),
    ) -> list[Candidate]:
        """Return users who have something due in `bands` and room for it; all of them, unless a lot is due.

        `enough`: how many tasks are wanted; when these have room for so many, few others are looked for.
        `seen`: users who had something due a moment ago, and need not be found again.
        """
        heads: dict[str, Mapping[Any, Any]] = {}
        full = False
        for band in bands:
            for kind in _kinds(types):
                values = {"of_band": band, "limit": _WINDOW, **_told(kind)}
                rows = connection.execute(self._window(_shape(kind)), values).mappings().all()
                full = full or len(rows) == _WINDOW
                for row in rows:
                    known = heads.get(row["user_name"])
                    if known is None or (len(_kinds(types)) > 1 and row["due"] < known["due"]):
                        heads[row["user_name"]] = row
        if full:
            heads = {each.user: {"due": each.due, "max_running": each.max_running} for each in seen} | heads
        found = self._with_room(connection, heads)
        if full:
            found += self._further(connection, bands, types, heads, enough - _room(found, enough))
        return found

    def open_candidate(self, connection: Connection, due: int) -> Candidate:
        """Return those without user as a candidate; something of theirs has been due since `due`."""
        return Candidate(NOBODY, due, connection.execute(self._running_open).scalar_one(), None)

    def _with_room(self, connection: Connection, heads: Heads) -> list[Candidate]:
        if not heads:
            return []
        waiting = [(user, head["due"], head["max_running"]) for user, head in heads.items()]
        return [candidate for candidate in self._candidates(connection, waiting) if candidate.room != 0]

    def _candidates(self, connection: Connection, waiting: Iterable[tuple[str, int, int | None]]) -> list[Candidate]:
        """Return a candidate for each user, due time and `max_running` of the first row; his row is made if need be."""
        given = list(waiting)
        running: dict[str, tuple[int, int | None]] = {}
        without_row = {user for user, _, _ in given}
        for user, count, most in connection.execute(self._running, {"users": [user for user, _, _ in given]}):
            if count == _HAS_ROW:
                without_row.discard(user)
            else:
                running[user] = (count, most)
        if without_row:  # in one order, whoever else makes some of them
            connection.execute(self._make, [{"user_name": user} for user in sorted(without_row, key=str)])
        candidates = []
        for user, due, most in given:
            count, least = running.get(user, (0, None))
            candidates.append(Candidate(user, due, count, least_of(most, least)))
        return candidates

    def _further(
        self, connection: Connection, bands: Sequence[int], types: WantedTypes | None, known: Heads, missing: int
    ) -> list[Candidate]:
        """Return users beyond `known`, until they have room for `missing` tasks more."""
        self._strolls = not self._strolls
        if missing <= 0:
            if not self._strolls:
                return []
            return self._with_room(connection, self._walk(connection, _ways(bands, types), known, _STROLL)[0])
        found: list[Candidate] = []
        ways: Sequence[_Way] = _ways(bands, types)
        for _ in range(_WALK // _STRIDE):
            heads, ways = self._walk(connection, ways, known, _STRIDE)
            found += self._with_room(connection, heads)
            known = {**known, **heads}
            if not ways or _room(found, missing) >= missing:
                break
        return found

    def _walk(
        self, connection: Connection, ways: Sequence[_Way], known: Heads, steps: int
    ) -> tuple[Heads, Sequence[_Way]]:
        """Return the first due rows of users who are not `known`, and the ways that have not ended.

        The steps, each a statement, are divided among the ways. Each walk goes on where the last one on that way ended.
        """
        found: dict[str, RowMapping] = {}
        further: list[_Way] = []
        for way in ways:
            band, kind = way
            place = self._places.pop(way, NOBODY)
            next_user = self._next[kind is not None]
            for _ in range(max(1, steps // len(ways))):
                values = {"of_band": band, "user": place, **_told(kind)}
                row = connection.execute(next_user, values).mappings().first()
                if row is None:
                    break
                place = row["user_name"]
                if row["due"] <= row["now"] and place not in known:
                    found.setdefault(place, row)
            else:
                self._places[way] = place
                further.append(way)
        return found, further

    def _window(self, shape: TypesShape | None) -> Select[Any]:
        """Return the SELECT of the rows that have been due longest, of one type that is read apart or of several."""
        if shape not in self._windows:
            assert shape is not None
            type_ = self._table.c.type
            apart = type_ == type_parameters(type_, shape)[0]
            self._windows[shape] = self._due.where(apart if shape.apart else among_types(self._dialect, type_, shape))
        return self._windows[shape]

    @cached_on_class
    def _write_statements(self, dialect: type[Dialect], table: Table, users: Table) -> None:
        c = table.c
        self._make = dialect.insert_new(users)
        in_band = c.band == bindparam("of_band")
        head = select(c.user_name, c.due, c.max_running)
        self._table = table
        self._dialect = dialect
        self._due = head.where(in_band, c.due <= now_ms()).order_by(c.due, c.key).limit(bindparam("limit"))
        self._windows: dict[TypesShape | None, Select[Any]] = {None: self._due}
        found = of_users(table)
        beyond = (found.band == bindparam("of_band"), c.user_name > bindparam("user"))
        further = (
            head.add_columns(now_ms().label("now")).where(*beyond).order_by(c.user_name, found.due, c.key).limit(1)
        )
        of_type = (has_user_and_type(table), c.type == bindparam("type_0", type_=c.type.type))
        self._next = {False: further.where(has_user(table)), True: further.where(*of_type)}
        runs = (c.status == RUNNING, c.due > now_ms())
        some: BindParameter[str] = bindparam("users", expanding=True)
        self._running_open = select(func.count()).where(c.user_name == NOBODY, c.holder > "", *runs)
        held_of_some = (c.user_name.in_(some), has_user(table), found.holder > "", *runs)
        running = select(c.user_name, func.count(), func.min(limit_of(table))).where(*held_of_some)
        has_row = select(users.c.user_name, literal(_HAS_ROW), null()).where(users.c.user_name.in_(some))
        self._running = union_all(running.group_by(c.user_name), has_row)


def _kinds(types: WantedTypes | None) -> Sequence[WantedTypes | None]:
    """Return what is looked for by a statement each: types that are read apart one by one, else all together."""
    if types is None or not types.apart:
        return [types]
    return [WantedTypes((type_,), apart=True) for type_ in types.types]


def _ways(bands: Sequence[int], types: WantedTypes | None) -> list[_Way]:
    """Return what is walked through: all users of a band, or those with rows of a type that is read apart."""
    apart = types is not None and types.apart
    return [(band, kind) for band in bands for kind in (_kinds(types) if apart else [None])]


def _shape(types: WantedTypes | None) -> TypesShape | None:
    return None if types is None else types.shape


def _told(types: WantedTypes | None) -> Mapping[str, Any]:
    return {} if types is None else types.parameters


def limit_of(queue: Table) -> ColumnElement[int]:
    """Return the `max_running` of a row, NULL where it is no limit."""
    return case((queue.c.max_running >= literal_column("1"), queue.c.max_running))


def least_of(one: object, other: object) -> int | None:
    """Return the smaller of two limits; None is none, and so is what is no number from 1 on."""
    return min((limit for limit in (one, other) if isinstance(limit, int) and limit >= 1), default=None)


def _room(candidates: Iterable[Candidate], enough: int) -> int:
    """Return how many tasks there is room for; one without limit has room enough."""
    return sum(enough if candidate.room is None else candidate.room for candidate in candidates)


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
