"""Taking due rows so that each has one taker: what the databases differ by most. Used in children and clients."""

from __future__ import annotations

import random
import threading
from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any, Protocol

from sqlalchemy import Table, bindparam, select

from psched import fork_safety as forks
from psched.backends.common.rows import RUNNING
from psched.backends.rdb.lease_statements import LeaseStatements, TypesShape, constant
from psched.backends.sql.base import Dialect, now_ms, now_once
from psched.backends.sql.bulk_statement import CompiledBulkUpdate, KeyedStatement, as_parameter
from psched.backends.sql.once import cached, cached_on_class
from psched.backends.sql.statement import Executing
from psched.model import Claim
from psched.payload import MAX_BATCH_SIZE, count_within

Parameters = dict[str, Any]
ClaimedRow = Sequence[Any]
"""The columns of `LeaseStatements.claimed`, the key first."""

TOGETHER = 8
"""Types that are read apart by one statement: each may lock as many rows as are wanted."""


class Claiming(Protocol):
    """How due rows are leased.

    The parameters are those of `LeaseStatements.claim`, with :limit, and :budget and :least: rows are taken while their
    data has at most so many bytes together, and so many in any case.
    """

    def acquire(self, connection: Executing, parameters: Parameters, types: WantedTypes | None) -> Sequence[ClaimedRow]:
        """Lease up to :limit due rows and return them as they are then, in the order in which they are to be run.

        They have the columns of `LeaseStatements.claimed`.
        """
        ...

    def prepare(self, connection: Executing, types: WantedTypes | None) -> None:
        """Compile what `acquire` most often executes. Asks the database nothing."""
        ...


def claiming_by(dialect: type[Dialect], table: Table, statements: LeaseStatements) -> Claiming:
    """Return the way of claiming that suits the database."""
    plain = (
        cached(ClaimInOneStatement, dialect, table, statements)
        if dialect.returning
        else ClaimInThreeSteps(table, statements)
    )
    return ClaimOfManyTypes(plain, statements)


def type_parameters(types: Collection[str] | None) -> Parameters:
    """Return the parameters :type_0, :type_1, … for `types`."""
    return {} if types is None else {f"type_{number}": type_ for number, type_ in enumerate(types)}


def types_parameter(types: Sequence[str]) -> str:
    """Return the parameter :types of `LeaseStatements.heads`."""
    return as_parameter([{"type": type_} for type_ in types], ["type"])


@dataclass(frozen=True, slots=True)
class WantedTypes:
    """The types of the rows to be claimed, each once; `apart`: rows of other types may be due in any number."""

    types: tuple[str, ...]
    apart: bool

    @property
    def shape(self) -> TypesShape:
        """What the statement depends on: up to a power of two of types that are not apart, the last one repeated."""
        count = len(self.types)
        return TypesShape(count if self.apart else 1 << (count - 1).bit_length(), self.apart)

    @property
    def parameters(self) -> Parameters:
        """The parameters :type_0, :type_1, and so on, and :types."""
        each = type_parameters((*self.types, *self.types[-1:] * (self.shape.count - len(self.types))))
        return each if self.apart else {**each, "types": types_parameter(self.types)}


def after_rows(parameters: Parameters, sizes: Sequence[object]) -> Parameters:
    """Return the parameters for what an acquire may still take, having taken rows whose data has these sizes."""
    taken = sum(size if isinstance(size, int) and 0 <= size <= MAX_BATCH_SIZE else MAX_BATCH_SIZE for size in sizes)
    budget, least = parameters["budget"] - taken, max(parameters["least"] - len(sizes), 0)
    return {**parameters, "limit": parameters["limit"] - len(sizes), "budget": budget, "least": least}


def takes_more(parameters: Parameters) -> bool:
    """Tell whether an acquire with these parameters may take a row at all: else it need not ask."""
    limit, budget, least = (int(parameters[name]) for name in ("limit", "budget", "least"))
    return limit > 0 and (budget > 0 or least > 0)


_READY_AND_KEY = itemgetter(1, 0)


def earliest_first(rows: Sequence[ClaimedRow]) -> Sequence[ClaimedRow]:
    """Return rows that were just leased in the order of their due times before."""
    try:
        return sorted(rows, key=_READY_AND_KEY)
    except TypeError:  # SQLite has keys that are no text
        return sorted(rows, key=lambda row: (row[1], str(row[0])))


class ClaimInOneStatement:
    """UPDATE … RETURNING of keys that are selected, and locked where there are row locks, in the same statement."""

    def __init__(self, dialect: type[Dialect], table: Table, statements: LeaseStatements) -> None:
        self._dialect = dialect
        self._table = table
        self._statements = statements
        self._by_types: dict[tuple[TypesShape | None, bool], CompiledBulkUpdate] = {}

    def acquire(self, connection: Executing, parameters: Parameters, types: WantedTypes | None) -> Sequence[ClaimedRow]:
        """Lease up to :limit due rows."""
        told = parameters if types is None else {**parameters, **types.parameters}
        statement = self._statement(types, parameters["limit"] <= parameters["least"])
        return earliest_first(statement.rows(connection, told))

    def prepare(self, connection: Executing, types: WantedTypes | None) -> None:
        """Compile the statements for one row and for several."""
        for whatever_size in (True, False):
            self._statement(types, whatever_size).prepare(connection)

    def _statement(self, types: WantedTypes | None, whatever_size: bool) -> CompiledBulkUpdate:
        shape = (None if types is None else types.shape, whatever_size)
        if shape not in self._by_types:
            choose = self._statements.due if whatever_size else self._statements.due_within
            due = choose(shape[0], locked=True).subquery()
            keys = self._dialect.among(self._table.c.key, select(due.c.key))
            now = now_ms() if whatever_size else now_once()
            claim = self._statements.claim(keys, now=now).returning(*self._statements.claimed)
            self._by_types[shape] = CompiledBulkUpdate(claim)
        return self._by_types[shape]


class ClaimOfManyTypes:
    """Claims rows of many types that are read apart some types at a time, those first that have been due longest.

    So the rows come in the order of their due times among some types, and of the rest by turns.
    """

    def __init__(self, claiming: Claiming, statements: LeaseStatements) -> None:
        self._claiming = claiming
        self._statements = statements
        self._size = [column.name for column in statements.claimed].index("size")
        self._heads: CompiledBulkUpdate | None = None

    def acquire(self, connection: Executing, parameters: Parameters, types: WantedTypes | None) -> Sequence[ClaimedRow]:
        """Lease up to :limit due rows."""
        if types is None or not types.apart or len(types.types) <= TOGETHER:
            return self._claiming.acquire(connection, parameters, types)
        rows: list[ClaimedRow] = []
        due = self._due(connection, parameters, types.types)
        for start in range(0, len(due), TOGETHER):
            left = after_rows(parameters, [row[self._size] for row in rows])
            if not takes_more(left):
                break
            some = WantedTypes(due[start : start + TOGETHER], apart=True)
            rows += self._claiming.acquire(connection, left, some)
        return rows

    def prepare(self, connection: Executing, types: WantedTypes | None) -> None:
        """Compile what `acquire` most often executes."""
        self._claiming.prepare(connection, types)

    def _due(self, connection: Executing, parameters: Parameters, types: Sequence[str]) -> tuple[str, ...]:
        """Return those of `types` that have a row due, the one that has been due longest first."""
        if self._heads is None:
            self._heads = CompiledBulkUpdate(self._statements.heads())
        told = {**parameters, "types": types_parameter(types)}
        return tuple([type_ for type_, _ in self._heads.rows(connection, told)])


class ClaimInThreeSteps:
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

    @cached_on_class
    def _write_statements(self, table: Table, statements: LeaseStatements) -> None:
        c = table.c
        self._statements = statements
        self._take = KeyedStatement(statements.claim(c.key.in_(bindparam("keys", expanding=True))))
        by_index = (c.holder == bindparam("claimer"), *([c.purge_at.is_(None)] if "purge_at" in c else []))
        ours = (*by_index, c.claim == bindparam("claim_number"), c.status == constant(RUNNING))
        self._taken = CompiledBulkUpdate(select(*statements.claimed).where(*ours))
        self._by_types: dict[tuple[TypesShape | None, bool], CompiledBulkUpdate] = {}

    def acquire(self, connection: Executing, parameters: Parameters, types: WantedTypes | None) -> Sequence[ClaimedRow]:
        """Lease up to :limit due rows; none only when none is due, or others were faster every time."""
        for _ in range(self.TRIES):
            keys = self._candidates(connection, parameters, types)
            if not keys:
                return []
            taken = self._take.execute(connection, keys, parameters)
            self._windows = min(self._windows * 2, self.WIDEST) if taken < len(keys) else max(self._windows // 2, 1)
            if taken:
                told = set(keys)  # what this acquire took before, from another band or for a user, has its number, too
                held = self._taken.rows(connection, parameters)
                return earliest_first([row for row in held if row[0] in told])
        return []

    def prepare(self, connection: Executing, types: WantedTypes | None) -> None:
        """Compile what looks, takes one and reads."""
        for whatever_size in (True, False):
            self._looking(types, whatever_size).prepare(connection)
        self._take.prepare(connection)
        self._taken.prepare(connection)

    def _candidates(self, connection: Executing, parameters: Parameters, types: WantedTypes | None) -> list[str]:
        limit, least = parameters["limit"], parameters["least"]
        told = {} if types is None else types.parameters
        seen = {**parameters, **told, "limit": limit * self._windows}
        rows = self._looking(types, limit <= least).rows(connection, seen)
        start = random.randrange(0, max(len(rows), 1), limit)
        chosen = rows[start : start + limit]
        if limit > least:
            chosen = chosen[: count_within([size for _, _, size in chosen], parameters["budget"], least)]
        return [row[0] for row in chosen]

    def _looking(self, types: WantedTypes | None, whatever_size: bool) -> CompiledBulkUpdate:
        shape = (None if types is None else types.shape, whatever_size)
        if shape not in self._by_types:
            statements = self._statements
            looking = statements.due(shape[0], locked=False) if whatever_size else statements.due_sized(shape[0])
            self._by_types[shape] = CompiledBulkUpdate(looking)
        return self._by_types[shape]


_MOST = 500
"""Rows that are asked for at once for all, unless one alone wants more."""

Acquire = Callable[[int, float, Collection[str] | None, bool, int], list[Claim]]
"""Leases up to so many rows for so many seconds, of some types, ahead of their runs or not, for a number of threads."""
_Kind = tuple[float, tuple[str, ...] | None, bool]


@dataclass(eq=False)
class AcquireRequest:
    """What one thread wants, and what came of it."""

    limit: int
    claims: list[Claim] = field(default_factory=list)
    error: Exception | None = None
    settled: bool = False


class CombinedAcquire:
    """`LeaseStore.acquire` for several threads at once. Each call's statements begin after the call."""

    def __init__(self, acquire: Acquire) -> None:
        self._acquire = acquire
        self.begin_anew()
        forks.register_for_fork(self)

    def begin_anew(self) -> None:
        """Know of no thread that acquires, as at first; in a process that was forked off there is none."""
        self._changed = threading.Condition()
        self._wishes: dict[_Kind, list[AcquireRequest]] = {}
        self._busy: set[_Kind] = set()

    def acquire(self, limit: int, alive_time: float, types: Collection[str] | None, ahead: bool = False) -> list[Claim]:
        """Lease up to `limit` rows; an error of the database is told to all who asked together."""
        if limit < 1:
            return []
        mine = AcquireRequest(limit)
        kind = (alive_time, None if types is None else tuple(sorted(set(types))), ahead)
        with self._changed:
            self._wishes.setdefault(kind, []).append(mine)
            self._wait(kind, mine)
            if not mine.settled:
                self._busy.add(kind)
                wishes = self._wishes.pop(kind)
        if not mine.settled:
            self._fulfil(kind, wishes, mine)
        if mine.error is not None:
            raise mine.error
        return mine.claims

    def _wait(self, kind: _Kind, mine: AcquireRequest) -> None:
        """Wait until nobody else acquires, or somebody has done so for us. Who is interrupted wants nothing more."""
        try:
            while kind in self._busy and not mine.settled:
                self._changed.wait()
        except BaseException:
            if mine in self._wishes.get(kind, ()):
                self._wishes[kind].remove(mine)
            raise

    def _fulfil(self, kind: _Kind, wishes: list[AcquireRequest], mine: AcquireRequest) -> None:
        """Acquire for all of `wishes`. Whoever is interrupted at it leaves the others' to the next one."""
        limits = [wish.limit for wish in wishes]
        left = [wish for wish in wishes if wish is not mine]
        try:
            share_out(self._acquire(max(*limits, min(sum(limits), _MOST), 1), *kind, len(wishes)), wishes)
            left = []
        except Exception as error:  # noqa: BLE001 – each of them raises it in his own thread
            for wish in wishes:
                wish.error = error
            left = []
        finally:
            with self._changed:
                for wish in wishes:
                    wish.settled = wish not in left
                if left:
                    self._wishes.setdefault(kind, []).extend(left)
                self._busy.discard(kind)
                self._changed.notify_all()


def share_out(claims: Sequence[Claim], wishes: Sequence[AcquireRequest]) -> None:
    """Give the claims out in turn, to nobody more than he wants."""
    if len(wishes) == 1:
        wishes[0].claims.extend(claims)
        return
    turns = deque(wishes)
    for claim in claims:
        wish = turns.popleft()
        wish.claims.append(claim)
        if len(wish.claims) < wish.limit:
            turns.append(wish)
