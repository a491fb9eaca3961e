"""The users of a queue that have due rows, found without reading the backlog, and their shares of an acquire."""

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
from psched.backends.sql.dialect import Dialect, now_ms
from psched.backends.sql.statement import cached_on_class

_WINDOW = 100
"""Rows read, those that have been due longest, to find users with due rows."""
_WALK = 64
"""Further users read, in the order of their names, when the users of the window may not run enough tasks."""
_STRIDE = 8
"""Users read between two tests whether the users found so far may run enough tasks."""
_SHORT_WALK = 4
"""Further users read by every second acquire when the window is enough, so that other users get their share."""
_HAS_ROW = -1
"""A count that means: the user has a row in the table of users."""

_Range = tuple[int, WantedTypes | None]
"""A band, and one type that is read apart or None: users are walked through by name within it."""

FirstRows = Mapping[str, Mapping[Any, Any]]
"""The first due row of each user."""


class CandidateQuery:
    """Finds the users of one queue that have due rows. Safe to use from several threads."""

    def __init__(self, dialect: type[Dialect], table: Table, users: Table) -> None:
        self._places: dict[_Range, str] = {}
        self._walked = False
        self._write_statements(dialect, table, users)

    def waiting(
        self,
        connection: Connection,
        bands: Sequence[int],
        types: WantedTypes | None,
        enough: int,
        seen: Iterable[Candidate] = (),
    ) -> list[Candidate]:
        """Return users with due rows in `bands` that may run more tasks; some of them when many rows are due.

        `enough`: the number of wanted tasks; when the users found may run so many, few other users are read. `seen`:
        users that had due rows in the last acquire, and need not be found again.
        """
        first_rows: dict[str, Mapping[Any, Any]] = {}
        full = False
        for band in bands:
            for kind in _kinds(types):
                values = {"of_band": band, "limit": _WINDOW, **_type_values(kind)}
                rows = connection.execute(self._window(_shape(kind)), values).mappings().all()
                full = full or len(rows) == _WINDOW
                for row in rows:
                    known = first_rows.get(row["user_name"])
                    if known is None or (len(_kinds(types)) > 1 and row["due"] < known["due"]):
                        first_rows[row["user_name"]] = row
        if full:
            first_rows = {each.user: {"due": each.due, "max_running": each.max_running} for each in seen} | first_rows
        found = self._with_room(connection, first_rows)
        if full:
            found += self._further(connection, bands, types, first_rows, enough - _room(found, enough))
        return found

    def userless(self, connection: Connection, due: int) -> Candidate:
        """Return the rows without user as a candidate; the first of them has been due since `due`."""
        return Candidate(NO_USER, due, connection.execute(self._running_userless).scalar_one(), None)

    def _with_room(self, connection: Connection, first_rows: FirstRows) -> list[Candidate]:
        if not first_rows:
            return []
        waiting = [(user, row["due"], row["max_running"]) for user, row in first_rows.items()]
        return [candidate for candidate in self._candidates(connection, waiting) if candidate.room != 0]

    def _candidates(self, connection: Connection, waiting: Iterable[tuple[str, int, int | None]]) -> list[Candidate]:
        """Return a candidate for each (user, due time and `max_running` of the first row); inserts missing users."""
        users = list(waiting)
        running: dict[str, tuple[int, int | None]] = {}
        without_row = {user for user, _, _ in users}
        for user, count, most in connection.execute(self._running, {"users": [user for user, _, _ in users]}):
            if count == _HAS_ROW:
                without_row.discard(user)
            else:
                running[user] = (count, most)
        if without_row:  # sorted, as other workers may insert the same users
            connection.execute(self._insert_users, [{"user_name": user} for user in sorted(without_row, key=str)])
        candidates = []
        for user, due, most in users:
            count, least = running.get(user, (0, None))
            candidates.append(Candidate(user, due, count, least_of(most, least)))
        return candidates

    def _further(
        self, connection: Connection, bands: Sequence[int], types: WantedTypes | None, known: FirstRows, missing: int
    ) -> list[Candidate]:
        """Return users that are not `known`, until these may run `missing` more tasks."""
        self._walked = not self._walked
        if missing <= 0:
            if not self._walked:
                return []
            return self._with_room(connection, self._walk(connection, _ranges(bands, types), known, _SHORT_WALK)[0])
        found: list[Candidate] = []
        ranges: Sequence[_Range] = _ranges(bands, types)
        for _ in range(_WALK // _STRIDE):
            first_rows, ranges = self._walk(connection, ranges, known, _STRIDE)
            found += self._with_room(connection, first_rows)
            known = {**known, **first_rows}
            if not ranges or _room(found, missing) >= missing:
                break
        return found

    def _walk(
        self, connection: Connection, ranges: Sequence[_Range], known: FirstRows, steps: int
    ) -> tuple[FirstRows, Sequence[_Range]]:
        """Return the first due rows of users that are not `known`, and the ranges that have more users.

        Each step is a statement; the steps are divided among the ranges. A walk begins where the last walk in the same
        range ended.
        """
        found: dict[str, RowMapping] = {}
        further: list[_Range] = []
        for range_ in ranges:
            band, kind = range_
            place = self._places.pop(range_, NO_USER)
            next_user = self._next[kind is not None]
            for _ in range(max(1, steps // len(ranges))):
                values = {"of_band": band, "user": place, **_type_values(kind)}
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

    def _window(self, shape: TypesShape | None) -> Select[Any]:
        """Return the SELECT of the rows that have been due longest, of one type by index or of several types."""
        if shape not in self._windows:
            assert shape is not None
            type_ = self._table.c.type
            apart = type_ == type_parameters(type_, shape)[0]
            self._windows[shape] = self._due.where(apart if shape.apart else among_types(self._dialect, type_, shape))
        return self._windows[shape]

    @cached_on_class
    def _write_statements(self, dialect: type[Dialect], table: Table, users: Table) -> None:
        c = table.c
        self._insert_users = dialect.insert_new(users)
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
        self._running_userless = select(func.count()).where(c.user_name == NO_USER, c.holder > "", *runs)
        held_of_some = (c.user_name.in_(some), has_user(table), found.holder > "", *runs)
        running = select(c.user_name, func.count(), func.min(limit_of(table))).where(*held_of_some)
        has_row = select(users.c.user_name, literal(_HAS_ROW), null()).where(users.c.user_name.in_(some))
        self._running = union_all(running.group_by(c.user_name), has_row)


def _kinds(types: WantedTypes | None) -> Sequence[WantedTypes | None]:
    """Return the types of each statement: one type each if they are read apart, else all of them."""
    if types is None or not types.apart:
        return [types]
    return [WantedTypes((type_,), apart=True) for type_ in types.types]


def _ranges(bands: Sequence[int], types: WantedTypes | None) -> list[_Range]:
    """Return the ranges to walk through: all users of a band, or those with rows of one type that is read apart."""
    apart = types is not None and types.apart
    return [(band, kind) for band in bands for kind in (_kinds(types) if apart else [None])]


def _shape(types: WantedTypes | None) -> TypesShape | None:
    return None if types is None else types.shape


def _type_values(types: WantedTypes | None) -> Mapping[str, Any]:
    return {} if types is None else types.parameters


def limit_of(queue: Table) -> ColumnElement[int]:
    """Return the `max_running` of a row, NULL where it is no limit."""
    return case((queue.c.max_running >= literal_column("1"), queue.c.max_running))


def least_of(one: object, other: object) -> int | None:
    """Return the smaller limit, None without any; a value that is not an integer from 1 on is no limit."""
    return min((limit for limit in (one, other) if isinstance(limit, int) and limit >= 1), default=None)


def _room(candidates: Iterable[Candidate], enough: int) -> int:
    """Return how many tasks the candidates may run; `enough` for each candidate without limit."""
    return sum(enough if candidate.room is None else candidate.room for candidate in candidates)


NO_USER = ""
"""The user of tasks without one, which together count as one more user."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A user with rows due since `due` (milliseconds), and at most `max_running` running tasks (None: no limit).

    `taken`: how many of the `running` tasks this acquire took.
    """

    user: str
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

    def took(self, count: int) -> Candidate:
        """Return the candidate after `count` more of his tasks were taken."""
        return replace(self, running=self.running + count, taken=self.taken + count)

    def weight(self, more: int = 0) -> float:
        """Return the precedence of the user's next task when `more` tasks of his are running (as in PerfectQueue)."""
        return (1 if self.max_running is None else self.max_running) / (self.running + more + 1)


def turns(candidates: Iterable[Candidate], limit: int, first: Sequence[str] = ()) -> list[str]:
    """Return the users of the next `limit` tasks, a name for each task, in the order of the tasks.

    Each task goes to the user with the greatest weight, among equal weights to the user that has waited longest. The
    users in `first` get their first task before all others, in that order.
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
