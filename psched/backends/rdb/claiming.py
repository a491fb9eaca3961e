"""Taking due rows so that each has one taker: what the databases differ by most. Used in children and clients."""

from __future__ import annotations

import random
from collections.abc import Collection, Sequence
from operator import itemgetter
from typing import Any, Protocol

from sqlalchemy import Table, bindparam, select

from psched.backends.rdb.statements import LeaseStatements
from psched.backends.rdb.tables import RUNNING
from psched.dialects.base import Dialect
from psched.dialects.given import Compiled, OfKeys
from psched.dialects.once import once, shared
from psched.dialects.pairs import Executing

Parameters = dict[str, Any]
ClaimedRow = Sequence[Any]
"""The columns of `LeaseStatements.claimed`, the key first."""


class Claiming(Protocol):
    """How due rows are leased. The parameters are those of `LeaseStatements.claim`, with :limit and the types."""

    def acquire(self, connection: Executing, parameters: Parameters, type_count: int | None) -> Sequence[ClaimedRow]:
        """Lease up to :limit due rows and return them as they are then, in the order in which they are to be run.

        They have the columns of `LeaseStatements.claimed`.
        """
        ...

    def prepare(self, connection: Executing, type_count: int | None) -> None:
        """Compile what `acquire` most often executes. Asks the database nothing."""
        ...


def claiming_by(dialect: type[Dialect], table: Table, statements: LeaseStatements) -> Claiming:
    """Return the way of claiming that suits the database."""
    return shared(OneStatement, dialect, table, statements) if dialect.returning else ThreeSteps(table, statements)


def type_parameters(types: Collection[str] | None) -> Parameters:
    """Return the parameters :type_0, :type_1, … for `types`."""
    return {} if types is None else {f"type_{number}": type_ for number, type_ in enumerate(types)}


_READY_AND_KEY = itemgetter(1, 0)


def earliest_first(rows: Sequence[ClaimedRow]) -> Sequence[ClaimedRow]:
    """Return rows that were just leased in the order of their due times before."""
    return sorted(rows, key=_READY_AND_KEY)


class OneStatement:
    """UPDATE … RETURNING of keys that are selected, and locked where there are row locks, in the same statement."""

    def __init__(self, dialect: type[Dialect], table: Table, statements: LeaseStatements) -> None:
        self._dialect = dialect
        self._table = table
        self._statements = statements
        self._by_types: dict[int | None, Compiled] = {}

    def acquire(self, connection: Executing, parameters: Parameters, type_count: int | None) -> Sequence[ClaimedRow]:
        """Lease up to :limit due rows."""
        return earliest_first(self._statement(type_count).rows(connection, parameters))

    def prepare(self, connection: Executing, type_count: int | None) -> None:
        """Compile the statement."""
        self._statement(type_count).prepare(connection)

    def _statement(self, type_count: int | None) -> Compiled:
        if type_count not in self._by_types:
            due = self._statements.due(type_count, locked=True).subquery()
            keys = self._dialect.among(self._table.c.key, select(due.c.key))
            claim = self._statements.claim(keys).returning(*self._statements.claimed)
            self._by_types[type_count] = Compiled(claim)
        return self._by_types[type_count]


class ThreeSteps:
    """Look at candidates, take those that are still due, read what was taken: the fastest, and free of deadlocks.

    For MariaDB and MySQL, which have no UPDATE … RETURNING. Claimers that look at once see the same candidates; all
    but the first get few of them. So whoever gets less than he saw looks further and picks a window by chance, the
    wider the oftener that happens, and comes back to the earliest rows as soon as he is alone. What was taken is found
    among what its taker holds: to tell hundreds of keys again, and to look each of them up, costs more.
    """

    TRIES = 6
    WIDEST = 16

    def __init__(self, table: Table, statements: LeaseStatements) -> None:
        self._write_statements(table, statements)
        self._windows = 1

    @once
    def _write_statements(self, table: Table, statements: LeaseStatements) -> None:
        c = table.c
        self._statements = statements
        self._take = OfKeys(statements.claim(c.key.in_(bindparam("keys", expanding=True))))
        by_index = (c.holder == bindparam("claimer"), *([c.purge_at.is_(None)] if "purge_at" in c else []))
        ours = (*by_index, c.claim == bindparam("claim_number"), c.status == RUNNING)
        self._taken = Compiled(select(*statements.claimed).where(*ours))
        self._by_types: dict[int | None, Compiled] = {}

    def acquire(self, connection: Executing, parameters: Parameters, type_count: int | None) -> Sequence[ClaimedRow]:
        """Lease up to :limit due rows; none only when none is due, or others were faster every time."""
        for _ in range(self.TRIES):
            keys = self._candidates(connection, parameters, type_count)
            if not keys:
                return []
            taken = self._take.execute(connection, keys, parameters)
            self._windows = min(self._windows * 2, self.WIDEST) if taken < len(keys) else max(self._windows // 2, 1)
            if taken:
                told = set(keys)  # what this acquire took before, from another band or for a user, has its number, too
                held = self._taken.rows(connection, parameters)
                return earliest_first([row for row in held if row[0] in told])
        return []

    def prepare(self, connection: Executing, type_count: int | None) -> None:
        """Compile what looks, takes one and reads."""
        self._looking(type_count).prepare(connection)
        self._take.prepare(connection)
        self._taken.prepare(connection)

    def _candidates(self, connection: Executing, parameters: Parameters, type_count: int | None) -> list[str]:
        limit = parameters["limit"]
        seen = {**parameters, "limit": limit * self._windows}
        keys = [key for key, _ in self._looking(type_count).rows(connection, seen)]
        start = random.randrange(0, max(len(keys), 1), limit)
        return keys[start : start + limit]

    def _looking(self, type_count: int | None) -> Compiled:
        if type_count not in self._by_types:
            self._by_types[type_count] = Compiled(self._statements.due(type_count, locked=False))
        return self._by_types[type_count]
