"""Taking due rows so that each has one taker: what the databases differ by most. Used in children and clients."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import nullcontext
from operator import itemgetter
from typing import Any, Protocol

from sqlalchemy import Table, bindparam, select

from psched.backends.rdb.statements import LeaseStatements
from psched.backends.rdb.tables import RUNNING
from psched.dialects.base import Dialect
from psched.dialects.database import Database
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


def claiming_by(database: Database, table: Table, statements: LeaseStatements) -> Claiming:
    """Return the way of claiming that suits the database."""
    dialect = type(database.dialect)
    if dialect.returning:
        return shared(OneStatement, dialect, table, statements)
    return ThreeSteps(database, table, statements)


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
    """Look at candidates, take those that are still due, read what was taken. For MariaDB and MySQL.

    These have no UPDATE … RETURNING. The least work is to look without a lock. But claimers that look at once see the
    same candidates; all but the first get few of them, and wait for his commit to find that out. So whoever gets less
    than he saw locks his candidates for a while, and passes over what others have locked; then he may be alone again.
    What was taken is found among what its taker holds: to tell hundreds of keys again, and to look each of them up,
    costs more.
    """

    CROWDED = 16
    """How many times candidates are locked after others were faster."""

    def __init__(self, database: Database, table: Table, statements: LeaseStatements) -> None:
        self._database = database
        self._write_statements(table, statements)
        self._crowded = 0

    @once
    def _write_statements(self, table: Table, statements: LeaseStatements) -> None:
        c = table.c
        self._statements = statements
        self._take = OfKeys(statements.claim(c.key.in_(bindparam("keys", expanding=True))))
        by_index = (c.holder == bindparam("claimer"), *([c.purge_at.is_(None)] if "purge_at" in c else []))
        ours = (*by_index, c.claim == bindparam("claim_number"), c.status == RUNNING)
        self._taken = Compiled(select(*statements.claimed).where(*ours))
        self._candidates: dict[tuple[int | None, bool], Compiled] = {}

    def acquire(self, connection: Executing, parameters: Parameters, type_count: int | None) -> Sequence[ClaimedRow]:
        """Lease up to :limit due rows; none only when none is due, or others are about to have them."""
        keys, taken = self._take_candidates(connection, parameters, type_count)
        if keys and not taken:
            keys, taken = self._take_candidates(connection, parameters, type_count)
        if not taken:
            return []
        told = set(keys)  # what this acquire took before, from another band or for a user, has its number, too
        return earliest_first([row for row in self._taken.rows(connection, parameters) if row[0] in told])

    def prepare(self, connection: Executing, type_count: int | None) -> None:
        """Compile what looks, takes one and reads."""
        self._looking(type_count, locked=False).prepare(connection)
        self._take.prepare(connection)
        self._taken.prepare(connection)

    def _take_candidates(
        self, connection: Executing, parameters: Parameters, type_count: int | None
    ) -> tuple[list[str], int]:
        """Return the keys that were seen, and how many were taken; the next ones are locked when it was not all."""
        locked = self._crowded > 0
        with self._database.transaction(connection) if locked else nullcontext():
            keys = [key for key, _ in self._looking(type_count, locked).rows(connection, parameters)]
            taken = self._take.execute(connection, keys, parameters) if keys else 0
        if locked:
            self._crowded -= 1
        elif taken < len(keys):
            self._crowded = self.CROWDED
        return keys, taken

    def _looking(self, type_count: int | None, locked: bool) -> Compiled:
        if (type_count, locked) not in self._candidates:
            self._candidates[type_count, locked] = Compiled(self._statements.due(type_count, locked))
        return self._candidates[type_count, locked]
