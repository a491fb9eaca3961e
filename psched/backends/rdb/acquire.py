"""Classes that lease due rows, each row for one holder.

- `ReturningAcquire`: schedules, and a queue's rows without user, on PostgreSQL and SQLite (UPDATE … RETURNING).
- `SelectingAcquire`: the same rows on MariaDB and MySQL.
- `FairAcquire` (fair_acquire.py): a queue. Users take turns. The classes above lease the rows without user.
- `AcquireCombiner` (acquire_combiner.py) wraps the acquire of a queue for a process with several threads.
"""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from operator import itemgetter
from typing import Any, Protocol

from sqlalchemy import Connection, Table, bindparam, select

from psched.backends.common.rows import BATCH, CLAIMED_OF_TASK, RUNNING
from psched.backends.rdb.lease_statements import LeaseStatements, TypesShape, constant
from psched.backends.sql.bulk_statements import column_as_parameter
from psched.backends.sql.compiled_statements import Statement, cached_on_class
from psched.backends.sql.dialect import Dialect, now_ms, now_once
from psched.payload import MAX_BATCH_SIZE, count_within

Parameters = dict[str, Any]
ClaimedRow = Sequence[Any]
"""The columns of `LeaseStatements.claimed`. The first column is the key."""

TYPES_AT_ONCE = 8
"""The maximum number of types that one statement reads separately. Such a statement may lock as many rows of each type
as the whole acquire wants.
"""


@dataclass(frozen=True, slots=True)
class WantedTypes:
    """The types of the rows to acquire, without duplicates; None for all types.

    `apart`: whether each type is read separately, by its own range of the index. Separate reads are better if many rows
    of other types are due.
    """

    types: tuple[str, ...] | None = None
    apart: bool = False

    @property
    def shape(self) -> TypesShape | None:
        """The number of types in the statement; None for all types.

        With `apart` it is the exact number. Otherwise the last type is repeated until the number is a power of two, so
        that few statements are compiled.
        """
        if self.types is None:
            return None
        count = len(self.types)
        return TypesShape(count if self.apart else 1 << (count - 1).bit_length(), self.apart)

    @property
    def parameters(self) -> Parameters:
        """The parameters :type_0, :type_1, and so on. Without `apart` also :types."""
        if self.types is None or self.shape is None:
            return {}
        padded = (*self.types, *self.types[-1:] * (self.shape.count - len(self.types)))
        each = {f"type_{number}": type_ for number, type_ in enumerate(padded)}
        return each if self.apart else {**each, "types": column_as_parameter(self.types)}

    @property
    def too_many(self) -> Sequence[str]:
        """The types if one statement cannot read all of them; else an empty sequence."""
        return self.types if self.types is not None and self.apart and len(self.types) > TYPES_AT_ONCE else ()

    def each(self) -> Sequence[WantedTypes]:
        """Return an object for each type if types are read separately; else only this object."""
        return [WantedTypes((type_,), True) for type_ in self.types or ()] if self.apart else [self]


class AcquireStrategy(Protocol):
    """Chooses due rows and leases them.

    The parameters are those of `LeaseStatements.claim`, and :limit, :budget and :least. At most :limit rows are leased,
    with at most :budget bytes of data in total. But :least rows are leased whatever their size is.
    """

    def acquire(self, connection: Connection, parameters: Parameters, types: WantedTypes) -> Sequence[ClaimedRow]:
        """Lease up to :limit due rows.

        Return their columns `LeaseStatements.claimed`, in the order in which to run them.
        """
        ...

    def prepare(self, connection: Connection, types: WantedTypes) -> None:
        """Compile the usual statements of `acquire` without executing them."""
        ...


_SIZE = CLAIMED_OF_TASK.index("size") - len(CLAIMED_OF_TASK)
"""The index of `size` in a leased row, counted from the end. It is the same for tasks and schedules."""


def after_rows(parameters: Parameters, rows: Sequence[ClaimedRow]) -> Parameters:
    """Return the parameters with :limit, :budget and :least reduced by the rows already taken."""
    sizes = [row[_SIZE] for row in rows]
    taken = sum(size if isinstance(size, int) and 0 <= size <= MAX_BATCH_SIZE else MAX_BATCH_SIZE for size in sizes)
    budget, least = parameters["budget"] - taken, max(parameters["least"] - len(rows), 0)
    return {**parameters, "limit": parameters["limit"] - len(rows), "budget": budget, "least": least}


def takes_more(parameters: Parameters) -> bool:
    """Return whether an acquire with these parameters may take another row."""
    limit, budget, least = (int(parameters[name]) for name in ("limit", "budget", "least"))
    return limit > 0 and (budget > 0 or least > 0)


_READY_AND_KEY = itemgetter(1, 0)


def _earliest_first(rows: Sequence[ClaimedRow]) -> Sequence[ClaimedRow]:
    """Return rows that were just leased, ordered by their due times before the lease."""
    try:
        return sorted(rows, key=_READY_AND_KEY)
    except TypeError:  # SQLite may hold keys that are not text
        return sorted(rows, key=lambda row: (row[1], str(row[0])))


class OrderedAcquire(ABC):
    """Leases the due rows with the earliest due times."""

    def __init__(self, dialect: type[Dialect], table: Table, statements: LeaseStatements) -> None:
        self._write_statements(dialect, table, statements)

    @cached_on_class
    def _write_statements(self, dialect: type[Dialect], table: Table, statements: LeaseStatements) -> None:
        self._dialect = dialect
        self._table = table
        self._statements = statements
        self._statement = cache(self._build)
        self._due_types = Statement(statements.due_types())

    def acquire(self, connection: Connection, parameters: Parameters, types: WantedTypes) -> Sequence[ClaimedRow]:
        """Lease up to :limit due rows. If there are many types, each statement reads `TYPES_AT_ONCE` of them.

        The types with the earliest due rows come first. Only the rows of one statement are in the order of due times.
        """
        if not types.too_many:
            return self._acquire(connection, parameters, types)
        rows: list[ClaimedRow] = []
        due = self.due_types(connection, parameters, types.too_many)
        for start in range(0, len(due), TYPES_AT_ONCE):
            left = after_rows(parameters, rows)
            if not takes_more(left):
                break
            rows += self._acquire(connection, left, WantedTypes(due[start : start + TYPES_AT_ONCE], apart=True))
        return rows

    def due_types(self, connection: Connection, parameters: Parameters, types: Sequence[str]) -> tuple[str, ...]:
        """Return the types that have a due row, the type with the earliest due row first."""
        found = self._due_types.rows(connection, {**parameters, "types": column_as_parameter(types)})
        return tuple([type_ for type_, _ in found])

    def prepare(self, connection: Connection, types: WantedTypes) -> None:
        for any_size in (True, False):
            self._statement(types.shape, any_size).prepare(connection)

    @abstractmethod
    def _build(self, types: TypesShape | None, any_size: bool) -> Statement:
        """Return the first statement of an acquire.

        `any_size`: whether rows are taken without adding up their sizes.
        """

    @abstractmethod
    def _acquire(self, connection: Connection, parameters: Parameters, types: WantedTypes) -> Sequence[ClaimedRow]: ...


class ReturningAcquire(OrderedAcquire):
    """Leases rows by UPDATE … RETURNING.

    A subquery selects the keys, and locks the rows if the database has row locks.
    """

    def _acquire(self, connection: Connection, parameters: Parameters, types: WantedTypes) -> Sequence[ClaimedRow]:
        statement = self._statement(types.shape, parameters["limit"] <= parameters["least"])
        return _earliest_first(statement.rows(connection, {**parameters, **types.parameters}))

    def _build(self, types: TypesShape | None, any_size: bool) -> Statement:
        chosen = self._statements.due(types, locked=True) if any_size else self._statements.due_within(types)
        due = chosen.subquery()
        keys = self._dialect.among(self._table.c.key, select(due.c.key))
        now = now_ms() if any_size else now_once()
        return Statement(self._statements.claim(keys, now=now).returning(*self._statements.claimed))


class SelectingAcquire(OrderedAcquire):
    """Leases rows by three statements, without deadlocks.

    The first SELECT finds candidates. The UPDATE leases the candidates that are still due. The last SELECT reads the
    leased rows by their holder.

    Workers that select at the same time find the same candidates. So a worker selects `_windows` times as many
    candidates as it wants, and tries a random part of them. `_windows` doubles when the worker gets fewer rows than it
    tried. Otherwise it halves, down to 1. With 1, the worker takes the earliest rows.
    """

    TRIES = 6
    MAX_WINDOWS = 16

    _windows = 1

    @cached_on_class
    def _write_statements(self, dialect: type[Dialect], table: Table, statements: LeaseStatements) -> None:
        super()._write_statements(dialect, table, statements)
        c = table.c
        self._take = Statement(statements.claim(c.key.in_(bindparam("keys", expanding=True))))
        by_index = (c.holder == bindparam("claimer"), *([c.purge_at.is_(None)] if "purge_at" in c else []))
        ours = (*by_index, c.claim == bindparam("claim_number"), c.status == constant(RUNNING))
        self._taken = Statement(select(*statements.claimed).where(*ours))

    def _acquire(self, connection: Connection, parameters: Parameters, types: WantedTypes) -> Sequence[ClaimedRow]:
        """Lease up to :limit due rows.

        Returns an empty sequence if no row is due, or if other workers were faster in all `TRIES` attempts.
        """
        for _ in range(self.TRIES):
            keys = self._candidates(connection, parameters, types)
            if not keys:
                return []
            taken = self._take.execute_on(connection, keys, parameters)
            self._windows = (
                min(self._windows * 2, self.MAX_WINDOWS) if taken < len(keys) else max(self._windows // 2, 1)
            )
            if taken:
                candidates = set(keys)  # `_taken` also finds the rows of other bands (fair_acquire.py)
                held = self._taken.rows(connection, parameters)
                return _earliest_first([row for row in held if row[0] in candidates])
        return []

    def prepare(self, connection: Connection, types: WantedTypes) -> None:
        super().prepare(connection, types)
        for power in range(BATCH.bit_length() + 1):
            self._take.prepare(connection, 1 << power)
        self._taken.prepare(connection)

    def _candidates(self, connection: Connection, parameters: Parameters, types: WantedTypes) -> list[str]:
        limit, least = parameters["limit"], parameters["least"]
        values = {**parameters, **types.parameters, "limit": limit * self._windows}
        rows = self._statement(types.shape, limit <= least).rows(connection, values)
        start = random.randrange(0, max(len(rows), 1), limit)
        chosen = rows[start : start + limit]
        if limit > least:
            chosen = chosen[: count_within([size for _, _, size in chosen], parameters["budget"], least)]
        return [row[0] for row in chosen]

    def _build(self, types: TypesShape | None, any_size: bool) -> Statement:
        return Statement(self._statements.due(types, sized=not any_size))


def ordered_acquire(dialect: type[Dialect], table: Table, statements: LeaseStatements) -> OrderedAcquire:
    return (ReturningAcquire if dialect.returning else SelectingAcquire)(dialect, table, statements)
