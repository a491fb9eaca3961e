"""Claiming the tasks of one user: never more than may run at once, whoever else claims. Used in children and clients.

All who claim tasks of a user change one row of his in the same transaction, and so wait for each other: also on Galera,
where the later commit fails. Leases of his that have ended are ended for good first (their fence grows), so that none
comes to life again beside those that are counted and claimed next.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, RowMapping, Table, Update, bindparam, func, select, update

from psched.backends.rdb.shares import NOBODY, Candidate
from psched.backends.rdb.statements import LeaseStatements
from psched.backends.rdb.tables import RUNNING, WAITING
from psched.dialects.base import now_ms
from psched.dialects.database import Database

Parameters = dict[str, Any]

_WINDOW = 200
"""How many of the rows that are due longest are looked at to see which users wait."""
_WALK = 32
"""How many further users are looked at when those whose rows have been due longest have too little room."""
_STROLL = 4
"""The same when they have room enough: whoever else has something due is to get his share all the same."""


class UserClaims:
    """The users of one queue: who waits, and claiming for one of them. Safe to use from several threads."""

    def __init__(self, database: Database, table: Table, users: Table) -> None:
        self._database = database
        self._table = table
        self._place = NOBODY
        self._write_statements(users)

    def waiting(
        self, connection: Connection, bands: Sequence[int], types: Sequence[str], enough: int
    ) -> list[Candidate]:
        """Return users who have something due in `bands` and room for it; all of them, unless a lot is due."""
        heads: dict[str, RowMapping] = {}
        full = False
        for band in bands:
            rows = self._due(connection, band, types)
            full = full or len(rows) == _WINDOW
            for row in rows:
                heads.setdefault(row["user_name"], row)
        found = self._with_room(connection, heads)
        if full:
            room = sum(enough if candidate.room is None else candidate.room for candidate in found)
            steps = _STROLL if room >= enough else _WALK
            found += self._with_room(connection, self._walk(connection, bands, heads, steps))
        return found

    def open_candidate(self, connection: Connection, due: int) -> Candidate:
        """Return those without user as a candidate; something of theirs has been due since `due`."""
        running = connection.execute(self._running, {"users": [NOBODY]}).mappings().first()
        return Candidate(NOBODY, due, 0 if running is None else running["running"], None)

    def claim(
        self, connection: Connection, user: str, bands: Sequence[int], types: Sequence[str], parameters: Parameters
    ) -> Sequence[RowMapping]:
        """Lease up to :limit due rows of `user` and return them, the highest band first, but no more than may run."""
        with self._database.transaction(connection):
            self._lock(connection, user)
            connection.execute(self._end, {"user": user})
            running = connection.execute(self._held, {"user": user}).mappings().one()
            keys = self._choose(connection, user, bands, types, running, parameters["limit"])
            return self._take(connection, keys, parameters) if keys else []

    def _due(self, connection: Connection, band: int, types: Sequence[str]) -> Sequence[RowMapping]:
        values = {"of_band": band, "limit": _WINDOW, "types": list(types)}
        return connection.execute(self._window[bool(types)], values).mappings().all()

    def _with_room(self, connection: Connection, heads: Mapping[str, RowMapping]) -> list[Candidate]:
        if not heads:
            return []
        rows = connection.execute(self._running, {"users": list(heads)}).mappings()
        running = {row["user_name"]: row for row in rows}
        candidates = []
        for user, head in heads.items():
            now = running.get(user)
            count, most = (0, None) if now is None else (now["running"], now["most"])
            candidates.append(Candidate(user, head["due"], count, _least(head["max_running"], most)))
        return [candidate for candidate in candidates if candidate.room != 0]

    def _walk(
        self, connection: Connection, bands: Sequence[int], known: Mapping[str, RowMapping], steps: int
    ) -> dict[str, RowMapping]:
        """Return the first due rows of further users, each walk going on where the last one ended."""
        found: dict[str, RowMapping] = {}
        place = self._place
        for band in bands:
            place = self._place
            for _ in range(steps):
                row = connection.execute(self._next, {"of_band": band, "user": place}).mappings().first()
                if row is None:
                    place = NOBODY
                    break
                place = row["user_name"]
                if row["due"] <= row["now"] and place not in known:
                    found.setdefault(place, row)
        self._place = place
        return found

    def _lock(self, connection: Connection, user: str) -> None:
        if connection.execute(self._change, {"user": user}).rowcount == 0:
            connection.execute(self._insert, {"user_name": user})
            connection.execute(self._change, {"user": user})

    def _choose(
        self,
        connection: Connection,
        user: str,
        bands: Sequence[int],
        types: Sequence[str],
        running: RowMapping,
        limit: int,
    ) -> list[str]:
        """Return the keys to take: in order, up to the first that must wait for others."""
        keys: list[str] = []
        most = running["most"]
        for band in bands:
            values = {"of_band": band, "user": user, "limit": limit - len(keys), "types": list(types)}
            for row in connection.execute(self._of_user[bool(types)], values).mappings():
                most = _least(most, row["max_running"])
                if most is not None and running["running"] + len(keys) >= most:
                    return keys
                keys.append(row["key"])
            if len(keys) >= limit:
                break
        return keys

    def _take(self, connection: Connection, keys: list[str], parameters: Parameters) -> Sequence[RowMapping]:
        values = {**parameters, "keys": keys}
        taken = connection.execute(self._claim, values)
        if not self._database.dialect.returning:
            taken = connection.execute(self._taken, values)
        rows = {row["key"]: row for row in taken.mappings()}
        return [rows[key] for key in keys if key in rows]

    def _write_statements(self, users: Table) -> None:
        c = self._table.c
        in_band, of_user = c.band == bindparam("of_band"), c.user_name == bindparam("user")
        some_types = c.type.in_(bindparam("types", expanding=True))
        of_keys = c.key.in_(bindparam("keys", expanding=True))
        head = select(c.key, c.user_name, c.due, c.max_running).limit(bindparam("limit"))
        due = head.where(in_band, c.due <= now_ms()).order_by(c.due, c.key)
        self._window = {False: due, True: due.where(some_types)}
        self._of_user = {limited: window.where(of_user) for limited, window in self._window.items()}
        further = select(c.user_name, c.due, c.max_running, now_ms().label("now")).where(
            in_band, c.user_name > bindparam("user")
        )
        self._next = further.order_by(c.user_name, c.due, c.key).limit(1)
        count, most = func.count().label("running"), func.min(c.max_running).label("most")
        held = (c.holder > "", c.status == RUNNING)
        self._running = (
            select(c.user_name, count, most)
            .where(c.user_name.in_(bindparam("users", expanding=True)), *held, c.due > now_ms())
            .group_by(c.user_name)
        )
        self._held = select(count, most).where(of_user, *held)
        ended = {"status": WAITING, "holder": None, "fence": c.fence + 1, "updated": now_ms()}
        self._end = update(self._table).where(of_user, *held, c.due <= now_ms()).values(ended)
        self._change: Update = (
            update(users).where(users.c.user_name == bindparam("user")).values(version=users.c.version + 1)
        )
        self._insert = self._database.dialect.insert_new(users)
        statements = LeaseStatements(self._database.dialect, self._table)
        claim = statements.claim(of_keys)
        self._claim: Any = claim.returning(*c) if self._database.dialect.returning else claim
        self._taken = select(*c).where(of_keys, c.claim == bindparam("claim_number"), c.status == RUNNING)


def _least(one: int | None, other: int | None) -> int | None:
    if one is None or other is None:
        return other if one is None else one
    return min(one, other)
