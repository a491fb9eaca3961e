"""Taking due tasks of a queue fairly: by priority, and by turns between users. Used in children and clients.

A band is a set of rows that are claimed alike: those of one priority without user, or of one priority with. What bands
there are is looked up when those known hold too little, and now and then. As long as nobody uses users or priorities
there is one band, and the queue is claimed as schedules are, by a statement that takes nothing if there is a higher
one.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from sqlalchemy import Column, ColumnElement, Connection, Integer, Select, Table, bindparam, func, select

from psched.backends.rdb.candidates import Candidates
from psched.backends.rdb.claiming import (
    TOGETHER,
    ClaimedRow,
    Parameters,
    WantedTypes,
    after_rows,
    claiming_by,
    takes_more,
    types_parameter,
)
from psched.backends.rdb.shares import NOBODY, Candidate, turns
from psched.backends.rdb.statements import LeaseStatements, sized_of
from psched.backends.rdb.tables import CLAIMED_OF_TASK, USER_BAND, has_users
from psched.backends.rdb.user_claims import UserClaims
from psched.clock import Clock, monotonic
from psched.dialects.base import Dialect, now_ms
from psched.dialects.database import Database
from psched.dialects.direct import whole
from psched.dialects.given import Compiled
from psched.dialects.once import once
from psched.dialects.pairs import Executing

_FRESH = 1.0
"""Seconds for which several bands that were found are taken for all there are, while they give enough."""
_ABOVE_ALL = 2 * USER_BAND
_AT_ONCE = 8
"""Known bands that one statement looks for."""
_USER = CLAIMED_OF_TASK.index("user_name")
_SIZE = CLAIMED_OF_TASK.index("size")
_MOST_USERS = 20
"""Users claimed for by one transaction, divided by the bands, and by types that are read apart: each costs a look."""
_MOST_CUT_OFF = 100
"""Users who are remembered as cut off."""
_ROUNDS = 6
"""How often one acquire shares out anew what is still to be had."""


class FairClaiming:
    """The way of claiming of a queue. Safe to use from several threads."""

    def __init__(self, database: Database, table: Table, users: Table, clock: Clock = monotonic) -> None:
        dialect = type(database.dialect)
        self._write_statements(dialect, table)
        self._open = claiming_by(dialect, table, self._in_band)
        self._candidates = Candidates(dialect, table, users)
        self._users = UserClaims(database, table, users)
        self._clock = clock
        self._bands: tuple[int, ...] = ()
        self._look_at = clock()
        self._last_type = ""
        self.cut_off: dict[str, Candidate] = {}
        """Users who got nothing since others had all the bytes of an acquire: they come first at the next."""

    def acquire(self, connection: Executing, parameters: Parameters, types: WantedTypes | None) -> Sequence[ClaimedRow]:
        """Lease up to :limit due rows."""
        fresh = _is_plain(self._bands) or self._clock() < self._look_at
        known = self._bands if fresh else self._look(connection)
        rows = list(self._take(connection, known, parameters, types))
        left = after_rows(parameters, [row[_SIZE] for row in rows])
        if takes_more(left) and fresh and not set(found := self._look(connection)) <= set(known):
            rows += self._take(connection, found, left, types)
        return rows

    def prepare(self, connection: Executing, types: WantedTypes | None) -> None:
        """Compile what is executed while nobody uses users or priorities."""
        self._open.prepare(connection, types)

    @once
    def _write_statements(self, dialect: type[Dialect], table: Table) -> None:
        c = table.c
        in_band = c.band == bindparam("of_band")
        self._in_band = LeaseStatements(dialect, table, in_band, _none_between(table, "of_band", "known_above"))
        self._heads = Compiled(self._in_band.heads())
        self._band = c.band
        self._below: dict[int, Compiled] = {}
        self._head = select(c.due, sized_of(table)).where(in_band, c.due <= now_ms()).order_by(c.due, c.key).limit(1)

    def types_of_users(
        self, connection: Executing, bands: Sequence[int], types: WantedTypes | None
    ) -> WantedTypes | None:
        """Return the types whose users are looked at by this acquire: of many that are read apart, some.

        These are the next ones, in the order of their names, that have something due: all users of those before may be
        at their limits.
        """
        if types is None or not types.apart or len(types.types) <= TOGETHER:
            return types
        due: set[str] = set()
        for band in bands:
            told = {"of_band": band, "known_above": band, "types": types_parameter(types.types)}
            due.update(type_ for type_, _ in self._heads.rows(connection, told))
        names = sorted(due)
        place = bisect_right(names, self._last_type)
        some = [*names[place:], *names[:place]][:TOGETHER]
        self._last_type = some[-1] if some else ""
        return WantedTypes(tuple(sorted(some)), apart=True)

    def _look(self, connection: Executing) -> tuple[int, ...]:
        """Find out which bands there are, the highest first: by one statement unless there are new ones."""
        below = self._next_below(connection, (_ABOVE_ALL, *self._bands[:_AT_ONCE]))
        bands = []
        band = below[_ABOVE_ALL]
        while band is not None:
            bands.append(band)
            if band not in below:
                below |= self._next_below(connection, (band,))
            band = below[band]
        self._bands = tuple(bands)
        self._look_at = self._clock() + _FRESH
        return self._bands

    def _next_below(self, connection: Executing, bands: Sequence[int]) -> dict[int, int | None]:
        """Return for each of `bands` the highest one below it."""
        count = len(bands)
        if count not in self._below:
            self._below[count] = Compiled(_highest_below(self._band, count))
        values = {f"above_{place}": band for place, band in enumerate(bands)}
        (found,) = self._below[count].rows(connection, values)
        return dict(zip(bands, found, strict=True))

    def _take(
        self, connection: Executing, bands: Sequence[int], parameters: Parameters, types: WantedTypes | None
    ) -> Sequence[ClaimedRow]:
        open_bands = [band for band in bands if not has_users(band)]
        user_bands = [band for band in bands if has_users(band)]
        if not user_bands:
            bound = {"known_above": _ABOVE_ALL} if _is_plain(bands) else {}
            return self._take_open(connection, open_bands, {**parameters, **bound}, types)
        turns = _Turns(self, connection, open_bands, user_bands, parameters, types)
        return turns.take()

    def _take_open(
        self, connection: Executing, bands: Sequence[int], parameters: Parameters, types: WantedTypes | None
    ) -> list[ClaimedRow]:
        rows: list[ClaimedRow] = []
        for band in bands:
            left = after_rows(parameters, [row[_SIZE] for row in rows])
            if not takes_more(left):
                break
            rows += self._open.acquire(connection, {"known_above": band, **left, "of_band": band}, types)
        return rows


class _Turns:
    """One acquire among users, those without user being one of them."""

    def __init__(
        self,
        claiming: FairClaiming,
        connection: Executing,
        open_bands: Sequence[int],
        user_bands: Sequence[int],
        parameters: Parameters,
        types: WantedTypes | None,
    ) -> None:
        self._claiming = claiming
        self._direct = connection
        self._connection: Connection = whole(connection)
        self._open_bands = open_bands
        self._user_bands = user_bands
        self._parameters = parameters
        self._types = types
        self._some_types = types
        self._cut_off = claiming.cut_off
        self._candidates: dict[str, Candidate] = {}
        self._busy: list[Candidate] = []
        self._rows: list[ClaimedRow] = []
        self._unserved: dict[str, Candidate] = {}
        self._done: set[str] = set()
        self._is_cut = False
        self._open_size = 0

    def take(self) -> list[ClaimedRow]:
        """Lease rows round by round: whoever has less than his share leaves it to the others.

        Users for whom somebody else is claiming are waited for only when there is nothing else to be had. A user who
        gets nothing, since the data of others has the bytes of this acquire, is the first one of the next.
        """
        limit = self._parameters["limit"]
        self._some_types = self._claiming.types_of_users(self._direct, self._user_bands, self._types)
        self._candidates = {candidate.user: candidate for candidate in self._waiting()}
        for _ in range(_ROUNDS):
            first = [user for user in self._cut_off if user not in self._done]
            order = turns(self._candidates.values(), limit - len(self._rows), first)
            if not order or not takes_more(self._left()):
                break
            self._claim(order)
        if not self._rows and self._busy:
            only = self._busy[0]
            count = limit if only.room is None else min(only.room, limit)
            self._claim_for([only.user] * count, patient=True)
        self._claiming.cut_off = self._still_cut_off()
        return self._rows

    def _still_cut_off(self) -> dict[str, Candidate]:
        """Return the users who are to come first at the next acquire, those who have waited for that longest first."""
        is_cut = self._is_cut or self._left()["budget"] <= 0
        found = {**self._cut_off, **(self._unserved if is_cut else {})}
        return {user: found[user] for user in list(found)[:_MOST_CUT_OFF] if user not in self._done}

    def _waiting(self) -> list[Candidate]:
        candidates = self._claiming._candidates
        limit = self._parameters["limit"]
        is_whole = self._some_types is self._types  # else the users who were cut off may have rows of other types only
        seen = [candidate for user, candidate in self._cut_off.items() if user != NOBODY] if is_whole else []
        found = candidates.waiting(self._connection, self._user_bands, self._some_types, limit, seen)
        head = self._open_head() if found else None
        if head is not None:
            due, self._open_size = head
            found.append(candidates.open_candidate(self._connection, due))
        return found or [Candidate(NOBODY, 0, 0, None)]

    def _open_head(self) -> tuple[int, int] | None:
        """Return since when the first row without user is due, and how many bytes it has; None when there is none."""
        for band in self._open_bands:
            row = self._connection.execute(self._claiming._head, {"of_band": band}).first()
            if row is not None:
                return row.due, row.size
        return None

    def _claim(self, order: Sequence[str]) -> None:
        """Lease a row for each turn in `order`; the rows come in the order of their users' first turns.

        Rows without user are taken behind those of users, by a statement that finds them itself: as many bytes are left
        for each as the first has. When that was too little before, one is taken ahead.
        """
        before = len(self._rows)
        shares = Counter(order)
        self._unserved |= {user: self._candidates[user] for user in shares if user not in self._done}
        if order[0] == NOBODY and NOBODY in self._cut_off and NOBODY not in self._done:
            self._claim_open(1)
            shares[NOBODY] -= 1
            order = order[1:]
        types = len(self._some_types.types) if self._some_types is not None and self._some_types.apart else 1
        most = max(1, _MOST_USERS // max(1, len(self._user_bands) * types))
        some = [user for user in shares if user != NOBODY][:most]
        cut: Mapping[str, int] = {}
        if some:
            mine = {*some, NOBODY} & self._candidates.keys()
            cut = self._claim_for([user for user in order if user in mine])
        if shares[NOBODY] > 0 and NOBODY in self._candidates:
            self._claim_open(shares[NOBODY])
        left = self._left()["budget"]
        for user, size in cut.items():
            if size > left:  # else rows without user have not had the bytes that were left for them
                self._is_cut = True
                self._candidates.pop(user, None)
        turn = {user: number for number, user in enumerate(shares)}
        of_nobody = turn.get(NOBODY, 0)  # the band of a row decides, not what else its user says
        self._rows[before:] = sorted(self._rows[before:], key=lambda row: turn.get(row[_USER], of_nobody))

    def _claim_open(self, share: int) -> None:
        left = self._left()
        rows = self._claiming._take_open(self._direct, self._open_bands, {**left, "limit": share}, self._types)
        if rows or left["least"] > 0:
            self._note(NOBODY, share, rows)
        else:  # the first row of the wanted types has too many bytes, or there is none
            self._is_cut = True
            self._candidates.pop(NOBODY, None)

    def _claim_for(self, order: Sequence[str], patient: bool = False) -> Mapping[str, int]:
        """Lease rows of users; return those whose next row has too many bytes, with these."""
        claimed = self._claiming._users.claim(
            self._connection, order, self._user_bands, self._some_types, self._left(), patient, self._open_size
        )
        for user, share in Counter(order).items():
            rows = [row for row in claimed.rows if row[_USER] == user]
            if user in claimed.busy:
                candidate = self._candidates.pop(user, None)
                self._done.add(user)
                self._busy += [] if candidate is None else [candidate]
            elif user != NOBODY and (rows or user not in claimed.cut):
                self._note(user, len(rows) if user in claimed.cut else share, rows)
        return claimed.cut

    def _left(self) -> Parameters:
        """Return the parameters for what may still be taken."""
        return after_rows(self._parameters, [row[_SIZE] for row in self._rows])

    def _note(self, user: str, share: int, rows: Sequence[ClaimedRow]) -> None:
        """Count what a user got; one who had less than his share has no more."""
        self._rows += rows
        self._done.add(user)
        candidate = self._candidates.pop(user, None)
        if candidate is not None and len(rows) >= share:
            self._candidates[user] = candidate.took(len(rows))


def _is_plain(bands: Collection[int]) -> bool:
    """Tell whether these are one band without users at the most."""
    return len(bands) < 2 and not any(map(has_users, bands))


def _none_between(table: Table, band: str, above: str) -> ColumnElement[bool]:
    """Return the condition that there is no band between two; PostgreSQL and MariaDB see to it before they begin."""
    other = table.alias("other")
    between = (other.c.band > bindparam(band), other.c.band < bindparam(above))
    return select(func.max(other.c.band)).where(*between).scalar_subquery().is_(None)


def _highest_below(band: Column[Any], count: int) -> Select[Any]:
    """Return the SELECT of the highest band below each of :above_0, :above_1, and so on."""
    bounds = [(f"below_{place}", bindparam(f"above_{place}", type_=Integer)) for place in range(count)]
    return select(*(select(func.max(band)).where(band < bound).scalar_subquery().label(name) for name, bound in bounds))
