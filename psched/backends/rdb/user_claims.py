"""Claiming the tasks of users: never more than may run at once, whoever else claims. Used in children and clients.

Whoever claims tasks of a user locks one row of his and changes it in the same transaction; on Galera, where nobody
sees the locks of another node, the later commit fails. Users whom somebody else is claiming for are left to him, unless
there is nobody else to claim for. Leases that have ended are ended for good first (their fence grows), so that none
comes to life again beside those that are counted and claimed next.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import repeat
from typing import Any, NamedTuple

from sqlalchemy import (
    ColumnElement,
    Connection,
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

from psched.backends.rdb.candidates import least_of, limit_of
from psched.backends.rdb.claiming import ClaimedRow, Parameters, WantedTypes
from psched.backends.rdb.indexes import has_user, has_user_and_type, of_users
from psched.backends.rdb.shares import NOBODY
from psched.backends.rdb.statements import LeaseStatements, TypesShape, among_types, expired, next_fence, sized_of
from psched.backends.rdb.tables import RUNNING, WAITING
from psched.dialects.base import Dialect, now_ms
from psched.dialects.database import Database
from psched.dialects.once import once, shared


class Claimed(NamedTuple):
    """What one claim for some users came to.

    `busy`: users who were not looked at since another worker was claiming for them. `cut`: users whose next row has too
    many bytes for what was left of :budget, with these bytes.
    """

    rows: list[ClaimedRow]
    busy: Collection[str]
    cut: Mapping[str, int]


class UserClaims:
    """Claiming for users of one queue. Safe to use from several threads."""

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
        open_size: int = 0,
    ) -> Claimed:
        """Lease due rows of users, one for each name in `turns` and no more than may run; the highest band first.

        Turns of `NOBODY` among them are left free: `open_size` bytes each, for rows without user that the caller takes.
        `patient`: wait for whoever is claiming for these users. Ask for one user then, lest two wait for each other.
        """
        shares = Counter(user for user in turns if user != NOBODY)
        with self._database.transaction(connection):
            locking = self._lock if patient else self._lock_free
            free = set(connection.execute(locking, {"users": list(shares)}).scalars())
            locked = [user for user in shares if user in free]
            mine = [user for user in turns if user in free or user == NOBODY]
            keys, cut = self._choose(connection, mine, bands, types, parameters, open_size)
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
        open_size: int,
    ) -> tuple[list[str], dict[str, int]]:
        """Return the keys to take, and the users whose next row is too large for what is left, with its bytes.

        A user gets a row at each of his turns, up to the first that must wait for others or is too large.
        """
        shares = Counter(user for user in turns if user != NOBODY)
        held = self._count(connection, list(shares)) if shares else {}
        rows = self._due(connection, shares, bands, types) if shares else {}
        waiting: dict[str, Iterator[Mapping[Any, Any]]] = {user: iter(due) for user, due in rows.items()}
        waiting[NOBODY] = repeat({"key": None, "size": open_size, "max_running": None})
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
        """Return how many tasks of each user are held, and their least limit; what has ended is ended before."""
        rows = connection.execute(self._held, {"users": users}).all()
        if any(row.ended for row in rows):
            connection.execute(self._end, {"users": users})
            rows = connection.execute(self._held, {"users": users}).all()
        return {row.user_name: (row.running, row.most) for row in rows}

    def _due(
        self, connection: Connection, shares: Mapping[str, int], bands: Sequence[int], types: WantedTypes | None
    ) -> dict[str, list[RowMapping]]:
        """Return up to `shares` due rows of each user per band, in the order in which they are to be run."""
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
        """Return the SELECT of what is due of :user_0 in :band_0, of :user_1 in :band_1, and so on, by the index."""
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
        head = select(c.key, c.due, c.max_running, sized_of(self._table))
        due = head.where(*of_user, users.due <= now_ms()).order_by(users.due, c.key)
        if types is not None and types.apart:
            due = due.where(c.type == bindparam(f"apart_{number}", type_=c.type.type))
        elif types is not None:
            due = due.where(among_types(type(self._database.dialect), c.type, types))
        return due.limit(bindparam(f"limit_{number}"))

    def _take(self, connection: Connection, keys: list[str], parameters: Parameters) -> Sequence[ClaimedRow]:
        taken = connection.execute(self._claim, {**parameters, "keys": keys})
        return taken.all() if self._database.dialect.returning else []

    @once
    def _write_user_statements(self, users: Table) -> None:
        name = users.c.user_name
        of_users = name.in_(bindparam("users", expanding=True))
        self._lock = select(name).where(of_users).with_for_update()
        self._lock_free = self._lock.with_for_update(skip_locked=True)
        self._change: Update = update(users).where(of_users).values(version=users.c.version + 1)

    @once
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
        # MariaDB assigns from left to right, and reads what was assigned: `status` is read before it is written.
        ending = {**expired(table), "status": WAITING, **ended}
        self._end = (
            update(table).where(*held, c.due <= now_ms()).ordered_values(*((c[n], v) for n, v in ending.items()))
        )
        statements = shared(LeaseStatements, dialect, table)
        claim = statements.claim(of_keys)
        self._claim: Any = claim.returning(*statements.claimed) if dialect.returning else claim
        self._taken = select(*statements.claimed).where(
            of_keys, c.claim == bindparam("claim_number"), c.status == RUNNING
        )
