"""Finds the users of a queue that have due tasks, and divides the rows of one acquire among them.

No query reads the whole backlog. This module also has the SQL.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import sqlalchemy as sa

from psched.backends.common.rows import EXPIRED, RUNNING, WAITING
from psched.backends.rdb.acquire import WantedTypes
from psched.backends.rdb.lease_statements import (
    LeaseStatements,
    TypesShape,
    among_types,
    has_no_run,
    next_fence,
    size_column,
)
from psched.backends.rdb.schema import (
    has_user,
    has_user_and_type,
    has_users,
    leased_of_users,
    listed_twice,
    of_type,
    user_column,
)
from psched.backends.sql.compiled_statements import cached
from psched.backends.sql.dialect import Dialect, now_ms

NO_USER = ""
"""The user name of tasks without user. Together these tasks count as one user."""

_HAS_ROW = -1
"""A value in the answer of a statement. It means that the user has a row in the table of users."""

_WINDOW = 100
"""The number of the earliest due rows, called the window, that are read first to find users."""
_WALK = 64
"""How many more users are read, in the order of their names, if the users of the window may not run enough tasks."""
_STRIDE = 8
"""How many of these users are read at a time. Then reading ends if the users found so far may run enough tasks."""
_SHORT_WALK = 4
"""How many more users are read even if the users of the window may run enough tasks, so that other users get their
share. Only every other acquire reads these users."""

_Range = tuple[int, WantedTypes]
"""A band, and one type that is read separately, or all types. The users of a range are read in the order of their
names."""

FirstRows = Mapping[str, Mapping[Any, Any]]
"""The first due row of each user."""


@dataclass(frozen=True, slots=True)
class WaitingUser:
    """A user with rows that have been due since `due` (unix milliseconds).

    `max_running`: the maximum number of running tasks; None: no limit. `taken`: how many of the `running` tasks this
    acquire took.
    """

    name: str
    due: int
    running: int
    max_running: int | None
    taken: int = 0

    @property
    def room(self) -> int | None:
        """How many more tasks of this user the acquire may take; None: any number.

        The number is half of what `max_running` still allows, but at least one task. Otherwise one worker would acquire
        all of the user's tasks, and run them one after another.
        """
        if self.max_running is None:
            return None
        free = max(self.max_running - self.running + self.taken, 0)
        return max(min(free, max(free // 2, 1)) - self.taken, 0)

    def took(self, count: int) -> WaitingUser:
        """Return the user after `count` more of its tasks were taken."""
        return replace(self, running=self.running + count, taken=self.taken + count)

    def weight(self, more: int = 0) -> float:
        """Return the precedence of the user's next task when `more` further tasks are running, as in PerfectQueue."""
        return (1 if self.max_running is None else self.max_running) / (self.running + more + 1)


def turns(users: Iterable[WaitingUser], limit: int, first: Sequence[str] = ()) -> list[str]:
    """Return the users of the next `limit` tasks: one name for each task, in the order of the tasks.

    Each task goes to the user with the greatest weight. Among equal weights, the user that has waited longest is first.
    The users in `first` get their first task before all others, in the given order.
    """
    by_name = {user.name: user for user in users if user.room != 0}
    order = [name for name in first if name in by_name][:limit]
    given = Counter(order)
    heap: list[tuple[float, int, str]] = []

    def push(user: WaitingUser) -> None:
        if user.room is None or given[user.name] < user.room:
            heapq.heappush(heap, (-user.weight(given[user.name]), user.due, user.name))

    for user in by_name.values():
        push(user)
    while heap and len(order) < limit:
        _, _, name = heapq.heappop(heap)
        given[name] += 1
        order.append(name)
        push(by_name[name])
    return order


def least_of(one: object, other: object) -> int | None:
    """Return the smaller limit, or None if neither is a limit. Only an integer above 0 is a limit."""
    return min((limit for limit in (one, other) if isinstance(limit, int) and limit >= 1), default=None)


class UserStatements:
    """The statements on one queue and its table of users. Most have the parameter :users, a list of names.

    A worker that leases rows of a user locks the user's row and also changes it. In a Galera cluster two workers may
    get the lock on different members, but the cluster refuses the second change.
    """

    def __init__(self, dialect: type[Dialect], table: sa.Table, users: sa.Table) -> None:
        c = table.c
        self._dialect = dialect
        self._table = table
        self.window = cache(self._build_window)
        self.due = cache(self._build_due)
        of_some = users.c.user_name.in_(sa.bindparam("users", expanding=True))
        self.lock = sa.select(users.c.user_name).where(of_some).with_for_update()
        self.lock_free = self.lock.with_for_update(skip_locked=True)
        self.change = sa.update(users).where(of_some).values(version=users.c.version + 1)
        self.insert = dialect.insert_new(users)

        is_live = c.due > now_ms()
        rows = leased_of_users(dialect, table, c.user_name, c.due, c.max_running).subquery().c
        live = sa.func.count(sa.case((rows.due > now_ms(), 1))).label("live")
        most = sa.func.min(sa.case((sa.and_(rows.due > now_ms(), rows.max_running >= 1), rows.max_running)))
        of_each = sa.select(rows.user_name, live, most.label("most"), sa.func.count().label("leased"))
        self.leased = of_each.group_by(rows.user_name)
        has_row = sa.select(users.c.user_name, sa.literal(_HAS_ROW), sa.null(), sa.null()).where(of_some)
        self.leased_and_has_row = sa.union_all(self.leased, has_row)
        self.live_userless = sa.select(sa.func.count()).where(
            c.user_name == NO_USER, c.holder > "", c.status == RUNNING, is_live
        )
        has_expired = c.due <= now_ms()
        expired = leased_of_users(dialect, table, c.key).where(has_expired)
        is_expired = expired.whereclause
        assert is_expired is not None
        if dialect.order_chooses_index:  # an UPDATE has no order
            is_expired = sa.and_(dialect.among(c.key, expired), c.status == RUNNING, has_expired)
        # MariaDB assigns from left to right, and later expressions read new values: read `status` before writing it.
        self.end_expired = (
            sa.update(table)
            .where(is_expired)
            .ordered_values(
                (c.attempts, sa.case((has_no_run(table), c.attempts - 1), else_=c.attempts)),
                (c.taken_ahead, EXPIRED),
                (c.status, WAITING),
                (c.holder, None),
                (c.fence, next_fence(table)),
                (c.updated, now_ms()),
            )
        )

        statements = cached(LeaseStatements, dialect, table)
        of_keys = c.key.in_(sa.bindparam("keys", expanding=True))
        claim = statements.claim(of_keys)
        self.claim: Any = claim.returning(*statements.claimed) if dialect.returning else claim
        ours = (of_keys, c.claim == sa.bindparam("claim_number"), c.status == RUNNING)
        self.claimed = sa.select(*statements.claimed).where(*ours)

        row = sa.select(c.user_name, c.due, c.max_running, now_ms().label("now"))
        in_band = row.where(user_column(table, "band") == sa.bindparam("of_band"))
        next_user = in_band.order_by(c.user_name, user_column(table, "due"), c.key).limit(1)
        user: sa.BindParameter[str] = sa.bindparam("user", type_=c.user_name.type)
        self.next_user = next_user.where(has_user(table), c.user_name > user)
        of_one = (has_user_and_type(table), c.type == sa.bindparam("type_0", type_=c.type.type))
        self.next_user_of_type = next_user.where(*of_one, c.user_name > sa.select(user).scalar_subquery())

    def _build_window(self, types: TypesShape | None) -> sa.Select[Any]:
        """Return a SELECT of the :limit earliest due rows of the wanted types in :of_band."""
        c = self._table.c
        due = sa.select(c.user_name, c.due, c.max_running).where(c.band == sa.bindparam("of_band"), c.due <= now_ms())
        return self._of_types(due.limit(sa.bindparam("limit")), types)

    def _of_types(self, rows: sa.Select[Any], types: TypesShape | None, number: int = 0) -> sa.Select[Any]:
        """Return those of `rows` that have a wanted type, earliest due time first. `number`: as for `among_types`."""
        table, c = self._table, self._table.c
        if types is not None and types.apart:
            return of_type(self._dialect, rows, table, sa.bindparam(f"type_{number}", type_=c.type.type))
        wanted = [] if types is None else [among_types(self._dialect, table, types, number)]
        return rows.where(*wanted).order_by(c.due, c.key)

    def _build_due(self, without_user: tuple[bool, ...], types: TypesShape | None) -> sa.Select[Any]:
        """Return a SELECT of the due rows of several users. The column `part` is the number of the user, from 0.

        `without_user`: whether each user is `NO_USER`. The parameters of user 0 are :user_0, :band_0, :limit_0 and
        :type_0. `NO_USER` needs no :user_0. If types are not read separately, there is no :type_0.
        """
        rows = [self._due_of_one(number, types, is_no_user) for number, is_no_user in enumerate(without_user)]
        if len(rows) == 1:
            return rows[0].add_columns(sa.literal(0).label("part"))
        numbered = (sa.select(each.subquery(), sa.literal(number).label("part")) for number, each in enumerate(rows))
        return sa.select(sa.union_all(*numbered).subquery())

    def _due_of_one(self, number: int, types: TypesShape | None, is_no_user: bool) -> sa.Select[Any]:
        table, c = self._table, self._table.c
        wanted_band = sa.bindparam(f"band_{number}", type_=sa.Integer)
        rows = sa.select(c.key, c.due, c.max_running, size_column(table)).limit(sa.bindparam(f"limit_{number}"))
        if is_no_user:
            due = self._of_types(rows.where(c.band == wanted_band, c.due <= now_ms()), types, number)
            return due.with_for_update(skip_locked=True) if self._dialect.returning else due
        if types is not None:
            rows = rows.where(among_types(self._dialect, table, types, number))
        name: sa.ColumnElement[str] = sa.bindparam(f"user_{number}", type_=c.user_name.type)
        with_user = has_user(table)
        if types is not None and types.apart:
            with_user, name = has_user_and_type(table), sa.select(name).scalar_subquery()
        band, due_at = user_column(table, "band"), user_column(table, "due")
        rows = rows.where(band == wanted_band, with_user)
        if self._dialect.order_chooses_index:
            # With `user_name = name` the user would not count as part of the order. Then PostgreSQL might read the rows
            # of all users by another index.
            until_now = sa.tuple_(c.user_name, due_at) <= sa.tuple_(name, now_ms())
            return rows.where(c.user_name >= name, until_now).order_by(c.user_name, due_at, c.key)
        return rows.where(c.user_name == name, due_at <= now_ms()).order_by(due_at, c.key)


class WaitingUsersQuery:
    """Finds the users of one queue that have due rows. Safe to use from several threads."""

    def __init__(self, statements: UserStatements) -> None:
        self._statements = statements
        self._places: dict[_Range, str] = {}
        self._walked = False

    def find(
        self,
        connection: sa.Connection,
        bands: Sequence[int],
        types: WantedTypes,
        enough: int,
        seen: Iterable[WaitingUser] = (),
    ) -> list[WaitingUser]:
        """Return users that have due rows in `bands`, and that may run more tasks.

        If many rows are due, not all of these users are returned. If all due rows are without user, no user is
        returned.

        `enough`: the number of wanted tasks. Once the users found so far may run that many tasks, few other users are
        read. `seen`: users that had due rows at the last acquire, and need not be found again.
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

    def _with_room(self, connection: sa.Connection, first_rows: FirstRows) -> list[WaitingUser]:
        """Return the users that may run more tasks. Inserts missing rows into the table of users."""
        running: dict[str, tuple[int, int | None]] = {}
        if NO_USER in first_rows:
            running[NO_USER] = (connection.execute(self._statements.live_userless).scalar_one(), None)
        without_row = first_rows.keys() - {NO_USER}
        if without_row:
            names = {"users": listed_twice(list(without_row))}
            for user, live, most, _ in connection.execute(self._statements.leased_and_has_row, names):
                if live == _HAS_ROW:
                    without_row.discard(user)
                else:
                    running[user] = (live, most)
        if without_row:  # sorted against deadlocks: other workers may insert the same users
            connection.execute(self._statements.insert, [{"user_name": user} for user in sorted(without_row, key=str)])
        found = []
        for user, row in first_rows.items():
            count, most = running.get(user, (0, None))
            limit = None if user == NO_USER else least_of(row["max_running"], most)
            found.append(WaitingUser(user, row["due"], count, limit))
        return [user for user in found if user.room != 0]

    def _further(
        self, connection: sa.Connection, bands: Sequence[int], types: WantedTypes, known: FirstRows, missing: int
    ) -> list[WaitingUser]:
        """Return users that are not in `known` and may run `missing` more tasks together.

        Reads about `_WALK` users at most, so the returned users may be too few.
        """
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
        self, connection: sa.Connection, ranges: Sequence[_Range], known: FirstRows, steps: int
    ) -> tuple[FirstRows, list[_Range]]:
        """Return the first due rows of users that are not in `known`, and the ranges that have more users.

        Each step is one statement. The steps are divided among the ranges. In each range, the walk continues where the
        last walk ended.
        """
        found: dict[str, Mapping[Any, Any]] = {}
        further: list[_Range] = []
        for range_ in ranges:
            band, types = range_
            place = self._places.pop(range_, NO_USER)
            statements = self._statements
            next_user = statements.next_user_of_type if types.apart else statements.next_user
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
    """Return how many tasks the users may run. A user without limit counts as `enough`."""
    return sum(enough if user.room is None else user.room for user in users)
