"""Leasing due tasks of a queue fairly: by priority, and by turns between users. See claiming.py for the other classes.

A band is a set of rows with equal precedence: the rows of one priority with user, or the rows of one priority without.
The bands are read when the known bands have too few rows, and from time to time. Without users and priorities there is
one band, and the queue is claimed like schedules, by a statement that takes nothing if a higher band exists.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import repeat
from typing import Any, NamedTuple

from sqlalchemy import (
    Column,
    ColumnElement,
    Connection,
    Integer,
    RowMapping,
    Select,
    Table,
    Update,
    bindparam,
    case,
    func,
    literal,
    select,
    union_all,
    update,
)

from psched.backends.common.rows import CLAIMED_OF_TASK, RUNNING, WAITING
from psched.backends.rdb.claiming import (
    TYPES_AT_ONCE,
    ClaimedRow,
    Parameters,
    WantedTypes,
    after_rows,
    claiming_by,
    takes_more,
    types_parameter,
)
from psched.backends.rdb.lease_statements import (
    LeaseStatements,
    TypesShape,
    among_types,
    expired,
    next_fence,
    size_column,
)
from psched.backends.rdb.schema import USER_BAND, has_user, has_user_and_type, has_users, of_users
from psched.backends.rdb.user_candidates import NO_USER, Candidate, CandidateQuery, least_of, limit_of, turns
from psched.backends.sql.database import Database
from psched.backends.sql.dialect import Dialect, now_ms
from psched.backends.sql.statement import Statement, cached, cached_on_class
from psched.clock import Clock, monotonic

_FRESH = 1.0
"""Seconds until bands are read again although the known bands have enough rows; one band is never read again."""
_ABOVE_ALL = 2 * USER_BAND
_BANDS_AT_ONCE = 8
"""Known bands in one statement that reads bands."""
_USER = CLAIMED_OF_TASK.index("user_name")
_SIZE = CLAIMED_OF_TASK.index("size")
_MOST_USERS = 20
"""Users in one transaction, divided by the bands and by types that are read apart: each combination costs a read."""
_MOST_CUT_OFF = 100
"""Users in `FairClaiming.cut_off`."""
_ROUNDS = 6
"""How often one acquire divides the rows that it may still take among the users."""


class FairClaiming:
    """Implements `Claiming` for a queue. Safe to use from several threads."""

    def __init__(self, database: Database, table: Table, users: Table, clock: Clock = monotonic) -> None:
        dialect = type(database.dialect)
        self._write_statements(dialect, table)
        self._userless = claiming_by(dialect, table, self._in_band)
        self.candidates = CandidateQuery(dialect, table, users)
        self.user_claiming = UserClaiming(database, table, users)
        self._clock = clock
        self._bands: tuple[int, ...] = ()
        self._read_bands_at = clock()
        self._last_type = ""
        self.cut_off: dict[str, Candidate] = {}
        """Users who got no row as the rows of others had all bytes of an acquire; the next acquire begins with them."""

    def acquire(
        self, connection: Connection, parameters: Parameters, types: WantedTypes | None
    ) -> Sequence[ClaimedRow]:
        fresh = _is_plain(self._bands) or self._clock() < self._read_bands_at
        known = self._bands if fresh else self._read_bands(connection)
        rows = list(self._take(connection, known, parameters, types))
        left = after_rows(parameters, [row[_SIZE] for row in rows])
        if takes_more(left) and fresh and not set(found := self._read_bands(connection)) <= set(known):
            rows += self._take(connection, found, left, types)
        return rows

    def prepare(self, connection: Connection, types: WantedTypes | None) -> None:
        """Compile the statements of a queue without users and priorities."""
        self._userless.prepare(connection, types)

    @cached_on_class
    def _write_statements(self, dialect: type[Dialect], table: Table) -> None:
        c = table.c
        in_band = c.band == bindparam("of_band")
        self._in_band = LeaseStatements(dialect, table, in_band, _none_between(table, "of_band", "known_above"))
        self._due_types = Statement(self._in_band.due_types())
        self._band = c.band
        self._below: dict[int, Statement] = {}
        self.first_due = (
            select(c.due, size_column(table)).where(in_band, c.due <= now_ms()).order_by(c.due, c.key).limit(1)
        )

    def types_of_users(
        self, connection: Connection, bands: Sequence[int], types: WantedTypes | None
    ) -> WantedTypes | None:
        """Return the types whose users this acquire considers: `TYPES_AT_ONCE` of many types that are read apart.

        These are the next types with due rows after the types of the last acquire, by name, as all users of the types
        before may be at their limits.
        """
        if types is None or not types.apart or len(types.types) <= TYPES_AT_ONCE:
            return types
        due: set[str] = set()
        for band in bands:
            values = {"of_band": band, "known_above": band, "types": types_parameter(types.types)}
            due.update(type_ for type_, _ in self._due_types.rows(connection, values))
        names = sorted(due)
        place = bisect_right(names, self._last_type)
        some = [*names[place:], *names[:place]][:TYPES_AT_ONCE]
        self._last_type = some[-1] if some else ""
        return WantedTypes(tuple(sorted(some)), apart=True)

    def _read_bands(self, connection: Connection) -> tuple[int, ...]:
        """Return the bands, the highest first: by one statement unless there are new bands."""
        below = self._next_below(connection, (_ABOVE_ALL, *self._bands[:_BANDS_AT_ONCE]))
        bands = []
        band = below[_ABOVE_ALL]
        while band is not None:
            bands.append(band)
            if band not in below:
                below |= self._next_below(connection, (band,))
            band = below[band]
        self._bands = tuple(bands)
        self._read_bands_at = self._clock() + _FRESH
        return self._bands

    def _next_below(self, connection: Connection, bands: Sequence[int]) -> dict[int, int | None]:
        """Return for each of `bands` the highest one below it."""
        count = len(bands)
        if count not in self._below:
            self._below[count] = Statement(_highest_below(self._band, count))
        values = {f"above_{place}": band for place, band in enumerate(bands)}
        (found,) = self._below[count].rows(connection, values)
        return dict(zip(bands, found, strict=True))

    def _take(
        self, connection: Connection, bands: Sequence[int], parameters: Parameters, types: WantedTypes | None
    ) -> Sequence[ClaimedRow]:
        userless_bands = [band for band in bands if not has_users(band)]
        user_bands = [band for band in bands if has_users(band)]
        if not user_bands:
            bound = {"known_above": _ABOVE_ALL} if _is_plain(bands) else {}
            return self.take_userless(connection, userless_bands, {**parameters, **bound}, types)
        return _FairAcquire(self, connection, userless_bands, user_bands, parameters, types).take()

    def take_userless(
        self, connection: Connection, bands: Sequence[int], parameters: Parameters, types: WantedTypes | None
    ) -> list[ClaimedRow]:
        rows: list[ClaimedRow] = []
        for band in bands:
            left = after_rows(parameters, [row[_SIZE] for row in rows])
            if not takes_more(left):
                break
            rows += self._userless.acquire(connection, {"known_above": band, **left, "of_band": band}, types)
        return rows


class _FairAcquire:
    """One acquire among users; the rows without user count as one more user, `NO_USER`."""

    def __init__(
        self,
        claiming: FairClaiming,
        connection: Connection,
        userless_bands: Sequence[int],
        user_bands: Sequence[int],
        parameters: Parameters,
        types: WantedTypes | None,
    ) -> None:
        self._claiming = claiming
        self._raw_connection = connection
        self._connection: Connection = connection
        self._userless_bands = userless_bands
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
        self._userless_size = 0

    def take(self) -> list[ClaimedRow]:
        """Lease rows round by round; the share that one user does not need goes to the other users.

        A user whose rows another worker is claiming is waited for only when there are no other rows. A user who gets
        no row, since the data of others has all bytes of this acquire, is first in the next acquire.
        """
        limit = self._parameters["limit"]
        self._some_types = self._claiming.types_of_users(self._raw_connection, self._user_bands, self._types)
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
        """Return the users that the next acquire begins with, those that have waited longest first."""
        is_cut = self._is_cut or self._left()["budget"] <= 0
        found = {**self._cut_off, **(self._unserved if is_cut else {})}
        return {user: found[user] for user in list(found)[:_MOST_CUT_OFF] if user not in self._done}

    def _waiting(self) -> list[Candidate]:
        candidates = self._claiming.candidates
        limit = self._parameters["limit"]
        all_types = self._some_types is self._types  # else users that were cut off may have rows of other types only
        seen = [candidate for user, candidate in self._cut_off.items() if user != NO_USER] if all_types else []
        found = candidates.waiting(self._connection, self._user_bands, self._some_types, limit, seen)
        first = self._first_userless() if found else None
        if first is not None:
            due, self._userless_size = first
            found.append(candidates.userless(self._connection, due))
        return found or [Candidate(NO_USER, 0, 0, None)]

    def _first_userless(self) -> tuple[int, int] | None:
        """Return the due time of the first due row without user, and the bytes of its data; None without such a row."""
        for band in self._userless_bands:
            row = self._connection.execute(self._claiming.first_due, {"of_band": band}).first()
            if row is not None:
                return row.due, row.size
        return None

    def _claim(self, order: Sequence[str]) -> None:
        """Lease a row for each turn in `order`; the rows are in the order of their users' first turns.

        Rows without user are taken after the rows of users, by one statement: for each of them as many bytes are
        reserved as the first row has. When that was too little in the last acquire, one of them is taken first.
        """
        before = len(self._rows)
        shares = Counter(order)
        self._unserved |= {user: self._candidates[user] for user in shares if user not in self._done}
        if order[0] == NO_USER and NO_USER in self._cut_off and NO_USER not in self._done:
            self._claim_userless(1)
            shares[NO_USER] -= 1
            order = order[1:]
        types = len(self._some_types.types) if self._some_types is not None and self._some_types.apart else 1
        most = max(1, _MOST_USERS // max(1, len(self._user_bands) * types))
        some = [user for user in shares if user != NO_USER][:most]
        cut: Mapping[str, int] = {}
        if some:
            mine = {*some, NO_USER} & self._candidates.keys()
            cut = self._claim_for([user for user in order if user in mine])
        if shares[NO_USER] > 0 and NO_USER in self._candidates:
            self._claim_userless(shares[NO_USER])
        left = self._left()["budget"]
        for user, size in cut.items():
            if size > left:  # else rows without user did not need their reserved bytes
                self._is_cut = True
                self._candidates.pop(user, None)
        turn = {user: number for number, user in enumerate(shares)}
        userless = turn.get(NO_USER, 0)  # a row in a band without users counts as one, whatever its user
        self._rows[before:] = sorted(self._rows[before:], key=lambda row: turn.get(row[_USER], userless))

    def _claim_userless(self, share: int) -> None:
        left = self._left()
        rows = self._claiming.take_userless(
            self._raw_connection, self._userless_bands, {**left, "limit": share}, self._types
        )
        if rows or left["least"] > 0:
            self._note(NO_USER, share, rows)
        else:  # the first row of the wanted types is too large, or there is no such row
            self._is_cut = True
            self._candidates.pop(NO_USER, None)

    def _claim_for(self, order: Sequence[str], patient: bool = False) -> Mapping[str, int]:
        """Lease rows of users. Returns the users whose next row is too large, with its bytes."""
        claimed = self._claiming.user_claiming.claim(
            self._connection, order, self._user_bands, self._some_types, self._left(), patient, self._userless_size
        )
        for user, share in Counter(order).items():
            rows = [row for row in claimed.rows if row[_USER] == user]
            if user in claimed.busy:
                candidate = self._candidates.pop(user, None)
                self._done.add(user)
                self._busy += [] if candidate is None else [candidate]
            elif user != NO_USER and (rows or user not in claimed.cut):
                self._note(user, len(rows) if user in claimed.cut else share, rows)
        return claimed.cut

    def _left(self) -> Parameters:
        """Return what is left of :limit, :budget and :least."""
        return after_rows(self._parameters, [row[_SIZE] for row in self._rows])

    def _note(self, user: str, share: int, rows: Sequence[ClaimedRow]) -> None:
        """Count the rows that a user got. A user with fewer rows than his share has no more due rows."""
        self._rows += rows
        self._done.add(user)
        candidate = self._candidates.pop(user, None)
        if candidate is not None and len(rows) >= share:
            self._candidates[user] = candidate.took(len(rows))


def _is_plain(bands: Collection[int]) -> bool:
    """Return whether there is at most one band, without users."""
    return len(bands) < 2 and not any(map(has_users, bands))


def _none_between(table: Table, band: str, above: str) -> ColumnElement[bool]:
    """Return the condition that no band is between two; PostgreSQL and MariaDB test it before they read rows."""
    other = table.alias("other")
    between = (other.c.band > bindparam(band), other.c.band < bindparam(above))
    return select(func.max(other.c.band)).where(*between).scalar_subquery().is_(None)


def _highest_below(band: Column[Any], count: int) -> Select[Any]:
    """Return the SELECT of the highest band below each of :above_0, :above_1, and so on."""
    bounds = [(f"below_{place}", bindparam(f"above_{place}", type_=Integer)) for place in range(count)]
    return select(*(select(func.max(band)).where(band < bound).scalar_subquery().label(name) for name, bound in bounds))


class Claimed(NamedTuple):
    """The rows leased for some users.

    `busy`: users that were left out, as another worker was claiming their rows. `cut`: users whose next row was too
    large for the rest of :budget, with its bytes.
    """

    rows: list[ClaimedRow]
    busy: Collection[str]
    cut: Mapping[str, int]


class UserClaiming:
    """Leases rows of users, whose rows in the table of users it locks. Safe to use from several threads."""

    def __init__(self, database: Database, table: Table, users: Table) -> None:
        self._database = database
        self._write_user_statements(users)
        self._write_statements(type(database.dialect), table)

    def claim(
        self,
        connection: Connection,
        turns: Sequence[str],
        bands: Sequence[int],
        types: WantedTypes | None,
        parameters: Parameters,
        patient: bool = False,
        userless_size: int = 0,
    ) -> Claimed:
        """Lease due rows of users, one for each name in `turns`, at most `max_running` of each; the highest band first.

        For each turn of `NO_USER` it reserves `userless_size` bytes, for a row without user that the caller takes.
        `patient`: wait for a worker that is claiming rows of the same user; for a single user only, else two workers
        could wait for each other.
        """
        shares = Counter(user for user in turns if user != NO_USER)
        with self._database.transaction(connection):
            locking = self._lock if patient else self._lock_free
            free = set(connection.execute(locking, {"users": list(shares)}).scalars())
            locked = [user for user in shares if user in free]
            mine = [user for user in turns if user in free or user == NO_USER]
            keys, cut = self._choose(connection, mine, bands, types, parameters, userless_size)
            rows = self._take(connection, keys, parameters) if keys else []
            if keys:
                connection.execute(self._change, {"users": locked})
        if keys and not self._database.dialect.returning:
            rows = connection.execute(self._taken, {**parameters, "keys": keys}).all()
        by_key = {row[0]: row for row in rows}
        return Claimed([by_key[key] for key in keys if key in by_key], shares.keys() - set(locked), cut)

    def _choose(
        self,
        connection: Connection,
        turns: Sequence[str],
        bands: Sequence[int],
        types: WantedTypes | None,
        parameters: Parameters,
        userless_size: int,
    ) -> tuple[list[str], dict[str, int]]:
        """Return the keys to take, and the users whose next row is too large, with its bytes.

        A user gets a row at each of his turns, until he has `max_running` rows or his next row is too large.
        """
        shares = Counter(user for user in turns if user != NO_USER)
        held = self._count(connection, list(shares)) if shares else {}
        rows = self._due(connection, shares, bands, types) if shares else {}
        waiting: dict[str, Iterator[Mapping[Any, Any]]] = {user: iter(due) for user, due in rows.items()}
        waiting[NO_USER] = repeat({"key": None, "size": userless_size, "max_running": None})
        chosen: list[str | None] = []
        cut: dict[str, int] = {}
        budget, least = parameters["budget"], parameters["least"]
        for user in turns:
            row = next(waiting[user], None) if user in waiting else None
            if row is None:
                continue
            running, most = held.get(user, (0, None))
            most = least_of(most, row["max_running"])
            if most is not None and running >= most:
                del waiting[user]
            elif row["size"] > budget and len(chosen) >= least:
                del waiting[user]
                cut[user] = row["size"]
            else:
                held[user] = (running + 1, most)
                budget -= row["size"]
                chosen.append(row["key"])
        return [key for key in chosen if key is not None], cut

    def _count(self, connection: Connection, users: list[str]) -> dict[str, tuple[int, int | None]]:
        """Return the number of running tasks of each user and their least `max_running`; ends expired leases first."""
        rows = connection.execute(self._held, {"users": users}).all()
        if any(row.ended for row in rows):
            connection.execute(self._end, {"users": users})
            rows = connection.execute(self._held, {"users": users}).all()
        return {row.user_name: (row.running, row.most) for row in rows}

    def _due(
        self, connection: Connection, shares: Mapping[str, int], bands: Sequence[int], types: WantedTypes | None
    ) -> dict[str, list[RowMapping]]:
        """Return up to `shares` due rows of each user per band, in the order of runs."""
        apart = types is not None and types.apart
        each = types.types if types is not None and types.apart else ("",)
        parts = [(user, band, type_) for user in shares for band in bands for type_ in each]
        values: Parameters = {} if types is None or apart else dict(types.parameters)
        for number, (user, band, type_) in enumerate(parts):
            values |= {f"user_{number}": user, f"band_{number}": band, f"limit_{number}": shares[user]}
            values |= {f"apart_{number}": type_} if apart else {}
        shape = (len(parts), None if types is None else TypesShape(1, True) if apart else types.shape)
        if shape not in self._dues:
            self._dues[shape] = self._due_of_each(*shape)
        found: dict[int, list[RowMapping]] = defaultdict(list)
        for row in connection.execute(self._dues[shape], values).mappings():
            found[row["part"]].append(row)
        rows: dict[str, list[RowMapping]] = defaultdict(list)
        by_band: dict[tuple[str, int], list[RowMapping]] = defaultdict(list)
        for number, (user, band, _) in enumerate(parts):
            by_band[user, band] += found[number]
        for (user, _), due in by_band.items():
            rows[user] += sorted(due, key=lambda row: (row["due"], row["key"]))
        return rows

    def _due_of_each(self, count: int, types: TypesShape | None) -> Select[Any]:
        """Return the SELECT of the due rows of :user_0 in :band_0, of :user_1 in :band_1, and so on, by the index."""
        if count == 1:
            return self._due_of_one(0, types).add_columns(literal(0).label("part"))
        parts = (self._due_of_one(number, types).subquery() for number in range(count))
        numbered = (select(part, literal(number).label("part")) for number, part in enumerate(parts))
        return select(union_all(*numbered).subquery())

    def _due_of_one(self, number: int, types: TypesShape | None) -> Select[Any]:
        c, users = self._table.c, of_users(self._table)
        is_apart = types is not None and types.apart
        indexed = has_user_and_type(self._table) if is_apart else has_user(self._table)
        name: ColumnElement[str] = bindparam(f"user_{number}", type_=c.user_name.type)
        user = (indexed, c.user_name == (select(name).scalar_subquery() if is_apart else name))
        of_user = (users.band == bindparam(f"band_{number}"), *user)
        columns = select(c.key, c.due, c.max_running, size_column(self._table))
        due = columns.where(*of_user, users.due <= now_ms()).order_by(users.due, c.key)
        if types is not None and types.apart:
            due = due.where(c.type == bindparam(f"apart_{number}", type_=c.type.type))
        elif types is not None:
            due = due.where(among_types(type(self._database.dialect), c.type, types))
        return due.limit(bindparam(f"limit_{number}"))

    def _take(self, connection: Connection, keys: list[str], parameters: Parameters) -> Sequence[ClaimedRow]:
        taken = connection.execute(self._claim, {**parameters, "keys": keys})
        return taken.all() if self._database.dialect.returning else []

    @cached_on_class
    def _write_user_statements(self, users: Table) -> None:
        name = users.c.user_name
        of_users = name.in_(bindparam("users", expanding=True))
        self._lock = select(name).where(of_users).with_for_update()
        self._lock_free = self._lock.with_for_update(skip_locked=True)
        self._change: Update = update(users).where(of_users).values(version=users.c.version + 1)

    @cached_on_class
    def _write_statements(self, dialect: type[Dialect], table: Table) -> None:
        c = table.c
        self._table = table
        self._dues: dict[tuple[int, TypesShape | None], Select[Any]] = {}
        of_keys = c.key.in_(bindparam("keys", expanding=True))
        of_some = (has_user(table), c.user_name.in_(bindparam("users", expanding=True)))
        held = (*of_some, of_users(table).holder > "", c.status == RUNNING)
        is_over = func.sum(case((c.due <= now_ms(), 1), else_=0))
        counted = (func.count().label("running"), func.min(limit_of(table)).label("most"), is_over.label("ended"))
        self._held = select(c.user_name, *counted).where(*held).group_by(c.user_name)
        ended = {"holder": None, "fence": next_fence(table), "updated": now_ms()}
        # MariaDB assigns from left to right, and reads assigned values: `status` is read before it is written.
        ending = {**expired(table), "status": WAITING, **ended}
        self._end = (
            update(table).where(*held, c.due <= now_ms()).ordered_values(*((c[n], v) for n, v in ending.items()))
        )
        statements = cached(LeaseStatements, dialect, table)
        claim = statements.claim(of_keys)
        self._claim: Any = claim.returning(*statements.claimed) if dialect.returning else claim
        self._taken = select(*statements.claimed).where(
            of_keys, c.claim == bindparam("claim_number"), c.status == RUNNING
        )
