"""The acquire of due tasks of a queue: by priority, and in turns between users.

The rows of one priority are in two bands: the rows with user, and the rows without user. Rows of higher bands are
acquired first.

The list of bands is read again in three cases:

- The list is more than a second old.
- An acquire finds no rows in the known bands.
- An acquire finds too few rows, more than 50 ms after the first such acquire since the last reading.

A queue without users and priorities has one band, and is acquired like schedules. Its list of bands may be older than a
second, because the acquiring statement takes nothing if a higher band has rows.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from sqlalchemy import ColumnElement, Connection, RowMapping, Table, bindparam

from psched.backends.rdb.acquire import (
    TYPES_AT_ONCE,
    ClaimedRow,
    Parameters,
    WantedTypes,
    after_rows,
    ordered_acquire,
    takes_more,
)
from psched.backends.rdb.lease_statements import LeaseStatements
from psched.backends.rdb.next_due import DueTimes
from psched.backends.rdb.schema import ABOVE_ALL_BANDS, has_users, highest_band, listed_twice
from psched.backends.rdb.waiting_users import (
    NO_USER,
    UserStatements,
    WaitingUser,
    WaitingUsersQuery,
    least_of,
    turns,
)
from psched.backends.sql.compiled_statements import cached
from psched.backends.sql.database import Database
from psched.backends.sql.dialect import Dialect
from psched.clock import monotonic

_FRESH = 1.0
"""Seconds after which the list of bands is read again, even if the known bands have enough rows."""
_MOMENT = 0.05
"""The minimum number of seconds between the first acquire that finds too few rows and the next reading of the list of
bands.

If each such acquire read the list, the median wait of a task on PostgreSQL would be 0.4 ms longer at 60 % load
(2026-11-29).
"""
_MOST_USERS = 20
"""The maximum number of users in one transaction. This number is divided by the number of bands and of separately read
types, because each combination costs a read.
"""
_MOST_CUT_OFF = 100
"""The maximum number of users in `FairAcquire.cut_off`."""
_ROUNDS = 6
"""How often one acquire divides the remaining rows among the users."""


class FairAcquire:
    """Implements `AcquireStrategy` for a queue. Safe to use from several threads."""

    def __init__(self, database: Database, table: Table, users: Table) -> None:
        dialect = type(database.dialect)
        self.database = database
        self.statements = cached(UserStatements, dialect, table, users)
        self.cut_off: dict[str, WaitingUser] = {}
        """Users that got no row because the rows of other users used up :budget. The next acquire begins with these
        users.
        """
        self._in_band = ordered_acquire(dialect, table, cached(_statements_in_band, dialect, table))
        self._waiting_users = WaitingUsersQuery(self.statements)
        self._due_times = DueTimes(database, table)
        self._bands: tuple[int, ...] = (0,)
        """The bands that the last successful reading found. At first this is the band without users and priority."""
        self._bands_read_at = -math.inf
        self._too_few_since = math.inf
        """When, since the last reading of the bands, an acquire first found too few rows; infinity if none did."""
        self._last_type = ""

    def acquire(self, connection: Connection, parameters: Parameters, types: WantedTypes) -> Sequence[ClaimedRow]:
        now = monotonic()
        is_fresh = _is_plain(self._bands) or now < self._bands_read_at + _FRESH
        known = self._bands if is_fresh else self._read_bands(connection)
        rows = self._acquire(connection, known, parameters, types)
        left = after_rows(parameters, rows)
        if not is_fresh or not takes_more(left):
            return rows
        self._too_few_since = min(self._too_few_since, now)
        is_to_read = not rows or now > self._too_few_since + _MOMENT
        if is_to_read and not set(found := self._read_bands(connection)) <= set(known):
            rows += self._acquire(connection, found, left, types)
        return rows

    def prepare(self, connection: Connection, types: WantedTypes) -> None:
        """Compile the statements of a queue without users and priorities."""
        self._in_band.prepare(connection, types)

    def _read_bands(self, connection: Connection) -> tuple[int, ...]:
        found = self._due_times.bands(connection)
        self._bands = found or self._bands
        self._bands_read_at = monotonic()
        self._too_few_since = math.inf
        return found

    def _acquire(
        self, connection: Connection, bands: Sequence[int], parameters: Parameters, types: WantedTypes
    ) -> list[ClaimedRow]:
        if any(map(has_users, bands)):
            some = self._some_types(connection, bands, types)
            # a user in `cut_off` may have due rows of other types only
            seen = [user for name, user in self.cut_off.items() if name != NO_USER and some == types]
            waiting = self._waiting_users.find(connection, bands, some, parameters["limit"], seen)
            if any(user.name != NO_USER for user in waiting):
                by_name = {user.name: user for user in waiting}
                return _AcquireInTurn(self, connection, bands, parameters, some, by_name).acquire()
        rows: list[ClaimedRow] = []
        for band in bands:
            left = after_rows(parameters, rows)
            if not has_users(band) and takes_more(left):
                known_above = ABOVE_ALL_BANDS if _is_plain(bands) else band
                rows += self._in_band.acquire(connection, {**left, "of_band": band, "known_above": known_above}, types)
        return rows

    def _some_types(self, connection: Connection, bands: Sequence[int], types: WantedTypes) -> WantedTypes:
        """Return `types`, or only `TYPES_AT_ONCE` of them if more types are read separately.

        Types without due rows are left out. The few types are those whose names follow the types of the last acquire,
        because all users of the last types may be at their limits.
        """
        if not types.too_many:
            return types
        due: set[str] = set()
        for band in bands:
            due.update(self._in_band.due_types(connection, {"of_band": band, "known_above": band}, types.too_many))
        names = sorted(due)
        place = bisect_right(names, self._last_type)
        some = [*names[place:], *names[:place]][:TYPES_AT_ONCE]
        self._last_type = some[-1] if some else ""
        return WantedTypes(tuple(sorted(some)), apart=True)


@dataclass
class _AcquireInTurn:
    """One acquire for the users in `waiting`. The rows without user count as one more user, `NO_USER`.

    `left`: the parameters, reduced by the rows already taken. `had_turn`: the users that got a turn. `served`: the
    users that got a row or have no due row. `busy`: the users whose rows another worker is acquiring. `is_cut`: whether
    a row was larger than the remaining :budget.
    """

    strategy: FairAcquire
    connection: Connection
    bands: Sequence[int]
    left: Parameters
    types: WantedTypes
    waiting: dict[str, WaitingUser]
    had_turn: dict[str, WaitingUser] = field(default_factory=dict)
    served: set[str] = field(default_factory=set)
    busy: list[WaitingUser] = field(default_factory=list)
    rows: list[ClaimedRow] = field(default_factory=list)
    is_cut: bool = False

    def acquire(self) -> list[ClaimedRow]:
        """Lease rows in rounds. A share that one user does not need goes to the other users.

        If another worker is acquiring rows of a user, this acquire waits for that worker only if it finds no other
        rows. If the rows of other users use up :budget, the users without a row come first in the next acquire.
        """
        cut_off = self.strategy.cut_off
        for _ in range(_ROUNDS):
            first = [user for user in cut_off if user not in self.served]
            order = turns(self.waiting.values(), self.left["limit"], first)
            if not order or not takes_more(self.left):
                break
            self._take_turns(order)
        if not self.rows and self.busy:
            only = self.busy[0]
            self.waiting = {only.name: only}
            self._take_turns(turns([only], self.left["limit"]), patient=True)
        is_cut = self.is_cut or self.left["budget"] <= 0
        found = {**cut_off, **(self.had_turn if is_cut else {})}
        self.strategy.cut_off = {user: found[user] for user in list(found)[:_MOST_CUT_OFF] if user not in self.served}
        return self.rows

    def _take_turns(self, order: Sequence[str], patient: bool = False) -> None:
        """Lease a row for each turn in `order`, for as many users as `_MOST_USERS` allows.

        If a user gets fewer rows than turns, it has no more due rows, or its next row is too large. `patient`: as for
        `_lease`.
        """
        shares = Counter(order)
        self.had_turn |= {user: self.waiting[user] for user in shares if user not in self.served}
        most = max(1, _MOST_USERS // max(1, len(self.bands) * len(self.types.each())))
        shares = Counter({user: shares[user] for user in list(shares)[:most]})
        got, busy, cut = self._lease([user for user in order if user in shares], shares, patient)
        for user, share in shares.items():
            waiting = self.waiting.pop(user)
            if user in busy:
                self.busy.append(waiting)
            elif got[user] >= share:
                self.waiting[user] = waiting.took(share)
            if got[user] or user not in cut:
                self.served.add(user)
        self.is_cut = self.is_cut or bool(cut)

    def _lease(
        self, order: Sequence[str], shares: Mapping[str, int], patient: bool
    ) -> tuple[Mapping[str, int], Collection[str], Collection[str]]:
        """Lease a row for each turn in `order`. Return the number of rows by user.

        Also returns two groups of users: those that were left out because another worker is acquiring their rows, and
        those whose next row is larger than the remaining :budget. `patient`: whether to wait for the other worker.
        Waiting is possible only for a single user, because otherwise two workers could wait for each other.
        """
        users = [user for user in shares if user != NO_USER]
        statements = self.strategy.statements
        with self.strategy.database.transaction(self.connection):
            lock = statements.lock if patient else statements.lock_free
            free = set(self.connection.execute(lock, {"users": users}).scalars()) if users else set()
            mine = {user: share for user, share in shares.items() if user in free or user == NO_USER}
            chosen, cut = self._choose([user for user in order if user in mine], mine)
            values = {**self.left, "keys": list(chosen)}
            rows: Sequence[ClaimedRow] = []
            if chosen:
                leased = self.connection.execute(statements.claim, values)
                rows = leased.all() if self.strategy.database.dialect.returning else []
                self.connection.execute(statements.change, {"users": list(free)})
        if chosen and not self.strategy.database.dialect.returning:
            rows = self.connection.execute(statements.claimed, values).all()
        by_key = {row[0]: row for row in rows}
        in_order = [by_key[key] for key in chosen if key in by_key]
        self.rows += in_order
        self.left = after_rows(self.left, in_order)
        return Counter(chosen[row[0]] for row in in_order), shares.keys() - mine.keys(), cut

    def _choose(self, order: Sequence[str], shares: Mapping[str, int]) -> tuple[dict[str, str], Collection[str]]:
        """Return the keys to lease, each with its user, and the users whose next row is too large.

        A user gets a row at each of its turns, until `max_running` of its tasks run or its next row is too large.
        """
        running = self._running([user for user in shares if user != NO_USER])
        due = self._due(shares) if shares else {}
        chosen: dict[str, str] = {}
        cut: set[str] = set()
        budget, least = self.left["budget"], self.left["least"]
        for user in order:
            row = next(due[user], None) if user in due else None
            if row is None:
                continue
            count, most = running.get(user, (0, None))
            most = None if user == NO_USER else least_of(most, row["max_running"])
            if most is not None and count >= most:
                del due[user]
            elif row["size"] > budget and len(chosen) >= least:
                del due[user]
                cut.add(user)
            else:
                running[user] = (count + 1, most)
                budget -= row["size"]
                chosen[row["key"]] = user
        return chosen, cut

    def _running(self, users: list[str]) -> dict[str, tuple[int, int | None]]:
        """Return, for each user, the number of running tasks and their lowest `max_running`.

        Ends expired leases first.
        """
        if not users:
            return {}
        names = {"users": listed_twice(users)}
        rows = self.connection.execute(self.strategy.statements.leased, names).all()
        if any(row.leased > row.live for row in rows):
            self.connection.execute(self.strategy.statements.end_expired, names)
            rows = self.connection.execute(self.strategy.statements.leased, names).all()
        return {row.user_name: (row.live, row.most) for row in rows}

    def _due(self, shares: Mapping[str, int]) -> dict[str, Iterator[RowMapping]]:
        """Return, for each user and band, up to `shares[user]` due rows, in the order in which to run them."""
        parts = [
            (user, band, types)
            for user in shares
            for band in self.bands
            if has_users(band) == (user != NO_USER)
            for types in self.types.each()
        ]
        values: Parameters = {} if self.types.apart else dict(self.types.parameters)
        for number, (user, band, types) in enumerate(parts):
            values |= {f"user_{number}": user, f"band_{number}": band, f"limit_{number}": shares[user]}
            values |= {f"type_{number}": type_ for type_ in types.types or () if types.apart}
        due = self.strategy.statements.due(tuple(user == NO_USER for user, _, _ in parts), parts[0][2].shape)
        found = self.connection.execute(due, values).mappings().all()
        rows: defaultdict[str, list[RowMapping]] = defaultdict(list)
        for row in sorted(found, key=lambda row: (-parts[row["part"]][1], row["due"], row["key"])):
            rows[parts[row["part"]][0]].append(row)
        return {user: iter(due) for user, due in rows.items()}


def _is_plain(bands: Collection[int]) -> bool:
    """Return whether there is at most one band, and this band has no users."""
    return len(bands) < 2 and not any(map(has_users, bands))


def _statements_in_band(dialect: type[Dialect], table: Table) -> LeaseStatements:
    """Return statements on the rows in the band :of_band.

    The statements find nothing if a band between :of_band and :known_above has rows. PostgreSQL and MariaDB test this
    condition before they read rows.
    """
    other = table.alias("other")
    between = (other.c.band > bindparam("of_band"), other.c.band < bindparam("known_above"))
    has_none: ColumnElement[bool] = highest_band(other, *between).is_(None)
    return LeaseStatements(dialect, table, table.c.band == bindparam("of_band"), has_none)
