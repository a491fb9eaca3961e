"""Leasing due rows so that each row has one holder. The classes, and when each of them is used:

- `ClaimByReturning`: schedules, and a queue's rows without user, on PostgreSQL and SQLite (UPDATE … RETURNING).
- `ClaimWithoutReturning`: the same rows on MariaDB and MySQL.
- `ClaimByTypes`: on top of either, for an acquire of many types; it splits them into several statements.
- `FairClaiming` (fair_claiming.py): a queue, band by band; it leaves rows without user to the classes above,
- `UserClaiming` (fair_claiming.py): and rows with user, of the users that `CandidateQuery` (user_candidates.py) finds.
- `CombinedAcquire`: on top of a queue's acquire, when several threads of a process acquire at the same time.
"""

from __future__ import annotations

import random
import threading
from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any, Protocol

from sqlalchemy import Connection, Table, bindparam, select

from psched import fork_safety
from psched.backends.common.rows import RUNNING
from psched.backends.rdb.lease_statements import LeaseStatements, TypesShape, constant
from psched.backends.sql.dialect import Dialect, now_ms, now_once
from psched.backends.sql.statement import Statement, as_parameter, cached, cached_on_class
from psched.model import Claim
from psched.payload import MAX_BATCH_SIZE, count_within
from psched.store import AcquireOptions

Parameters = dict[str, Any]
ClaimedRow = Sequence[Any]
"""The columns of `LeaseStatements.claimed`, the key first."""

TYPES_AT_ONCE = 8
"""Types that one statement reads apart: each of them may lock as many rows as are wanted."""


class Claiming(Protocol):
    """How due rows are leased.

    The parameters are those of `LeaseStatements.claim`, :limit (rows), :budget (bytes of data in total), and :least
    (rows that are leased whatever their size).
    """

    def acquire(
        self, connection: Connection, parameters: Parameters, types: WantedTypes | None
    ) -> Sequence[ClaimedRow]:
        """Lease up to :limit due rows; return the columns `LeaseStatements.claimed` of them, in the order of runs."""
        ...

    def prepare(self, connection: Connection, types: WantedTypes | None) -> None:
        """Compile the usual statements of `acquire`, without executing any."""
        ...


def claiming_by(dialect: type[Dialect], table: Table, statements: LeaseStatements) -> Claiming:
    """Return how rows are claimed on this database."""
    plain = (
        cached(ClaimByReturning, dialect, table, statements)
        if dialect.returning
        else ClaimWithoutReturning(table, statements)
    )
    return ClaimByTypes(plain, statements)


def type_parameters(types: Collection[str] | None) -> Parameters:
    """Return the parameters :type_0, :type_1, … for `types`."""
    return {} if types is None else {f"type_{number}": type_ for number, type_ in enumerate(types)}


def types_parameter(types: Sequence[str]) -> str:
    """Return the parameter :types of `LeaseStatements.due_types`."""
    return as_parameter([{"type": type_} for type_ in types], ["type"])


@dataclass(frozen=True, slots=True)
class WantedTypes:
    """The types of the rows to claim, each once. `apart`: read each by its index, as many other rows may be due."""

    types: tuple[str, ...]
    apart: bool

    @property
    def shape(self) -> TypesShape:
        """The number of types in the statement: unless `apart` a power of two, padded with the last, for few texts."""
        count = len(self.types)
        return TypesShape(count if self.apart else 1 << (count - 1).bit_length(), self.apart)

    @property
    def parameters(self) -> Parameters:
        """The parameters :type_0, :type_1, and so on, and :types."""
        each = type_parameters((*self.types, *self.types[-1:] * (self.shape.count - len(self.types))))
        return each if self.apart else {**each, "types": types_parameter(self.types)}


def after_rows(parameters: Parameters, sizes: Sequence[object]) -> Parameters:
    """Return what is left of :limit, :budget and :least after rows with these sizes were taken."""
    taken = sum(size if isinstance(size, int) and 0 <= size <= MAX_BATCH_SIZE else MAX_BATCH_SIZE for size in sizes)
    budget, least = parameters["budget"] - taken, max(parameters["least"] - len(sizes), 0)
    return {**parameters, "limit": parameters["limit"] - len(sizes), "budget": budget, "least": least}


def takes_more(parameters: Parameters) -> bool:
    """Return whether an acquire with these parameters may take any row."""
    limit, budget, least = (int(parameters[name]) for name in ("limit", "budget", "least"))
    return limit > 0 and (budget > 0 or least > 0)


_READY_AND_KEY = itemgetter(1, 0)


def earliest_first(rows: Sequence[ClaimedRow]) -> Sequence[ClaimedRow]:
    """Return rows that were just leased in the order of their due times before the lease."""
    try:
        return sorted(rows, key=_READY_AND_KEY)
    except TypeError:  # SQLite stores keys that are not text
        return sorted(rows, key=lambda row: (row[1], str(row[0])))


class ClaimByReturning:
    """UPDATE … RETURNING; a subquery selects the keys, and locks the rows where the database has row locks."""

    def __init__(self, dialect: type[Dialect], table: Table, statements: LeaseStatements) -> None:
        self._dialect = dialect
        self._table = table
        self._statements = statements
        self._by_types: dict[tuple[TypesShape | None, bool], Statement] = {}

    def acquire(
        self, connection: Connection, parameters: Parameters, types: WantedTypes | None
    ) -> Sequence[ClaimedRow]:
        values = parameters if types is None else {**parameters, **types.parameters}
        statement = self._statement(types, parameters["limit"] <= parameters["least"])
        return earliest_first(statement.rows(connection, values))

    def prepare(self, connection: Connection, types: WantedTypes | None) -> None:
        for any_size in (True, False):
            self._statement(types, any_size).prepare(connection)

    def _statement(self, types: WantedTypes | None, any_size: bool) -> Statement:
        shape = (None if types is None else types.shape, any_size)
        if shape not in self._by_types:
            choose = self._statements.due if any_size else self._statements.due_within
            due = choose(shape[0], locked=True).subquery()
            keys = self._dialect.among(self._table.c.key, select(due.c.key))
            now = now_ms() if any_size else now_once()
            claim = self._statements.claim(keys, now=now).returning(*self._statements.claimed)
            self._by_types[shape] = Statement(claim)
        return self._by_types[shape]


class ClaimByTypes:
    """Claims rows of many types, `TYPES_AT_ONCE` types by one statement, the types that have been due longest first.

    So rows are in the order of their due times only among the types of one statement.
    """

    def __init__(self, claiming: Claiming, statements: LeaseStatements) -> None:
        self._claiming = claiming
        self._statements = statements
        self._size = [column.name for column in statements.claimed].index("size")
        self._due_types: Statement | None = None

    def acquire(
        self, connection: Connection, parameters: Parameters, types: WantedTypes | None
    ) -> Sequence[ClaimedRow]:
        if types is None or not types.apart or len(types.types) <= TYPES_AT_ONCE:
            return self._claiming.acquire(connection, parameters, types)
        rows: list[ClaimedRow] = []
        due = self._types_due(connection, parameters, types.types)
        for start in range(0, len(due), TYPES_AT_ONCE):
            left = after_rows(parameters, [row[self._size] for row in rows])
            if not takes_more(left):
                break
            some = WantedTypes(due[start : start + TYPES_AT_ONCE], apart=True)
            rows += self._claiming.acquire(connection, left, some)
        return rows

    def prepare(self, connection: Connection, types: WantedTypes | None) -> None:
        self._claiming.prepare(connection, types)

    def _types_due(self, connection: Connection, parameters: Parameters, types: Sequence[str]) -> tuple[str, ...]:
        """Return the types that have a due row, the type that has been due longest first."""
        if self._due_types is None:
            self._due_types = Statement(self._statements.due_types())
        found = self._due_types.rows(connection, {**parameters, "types": types_parameter(types)})
        return tuple([type_ for type_, _ in found])


class ClaimWithoutReturning:
    """SELECT candidates, UPDATE those that are still due, SELECT the rows that were updated. Free of deadlocks.

    Workers that select at the same time find the same candidates, and only the first worker gets them all. A worker
    that gets less than it found selects `_windows` times as many candidates the next time, and takes a random part of
    them; with no competitors `_windows` returns to 1, the earliest rows. The last SELECT finds the rows by holder:
    hundreds of keys would cost more to send and to look up.
    """

    TRIES = 6
    MAX_WINDOWS = 16

    def __init__(self, table: Table, statements: LeaseStatements) -> None:
        self._write_statements(table, statements)
        self._windows = 1

    @cached_on_class
    def _write_statements(self, table: Table, statements: LeaseStatements) -> None:
        c = table.c
        self._statements = statements
        self._take = Statement(statements.claim(c.key.in_(bindparam("keys", expanding=True))))
        by_index = (c.holder == bindparam("claimer"), *([c.purge_at.is_(None)] if "purge_at" in c else []))
        ours = (*by_index, c.claim == bindparam("claim_number"), c.status == constant(RUNNING))
        self._taken = Statement(select(*statements.claimed).where(*ours))
        self._by_types: dict[tuple[TypesShape | None, bool], Statement] = {}

    def acquire(
        self, connection: Connection, parameters: Parameters, types: WantedTypes | None
    ) -> Sequence[ClaimedRow]:
        """Lease up to :limit due rows; none when none is due, or when other workers were faster in each of `TRIES`."""
        for _ in range(self.TRIES):
            keys = self._candidates(connection, parameters, types)
            if not keys:
                return []
            taken = self._take.execute_on(connection, keys, parameters)
            self._windows = (
                min(self._windows * 2, self.MAX_WINDOWS) if taken < len(keys) else max(self._windows // 2, 1)
            )
            if taken:
                candidates = set(keys)  # rows that this acquire took before, in another band, have its number, too
                held = self._taken.rows(connection, parameters)
                return earliest_first([row for row in held if row[0] in candidates])
        return []

    def prepare(self, connection: Connection, types: WantedTypes | None) -> None:
        for any_size in (True, False):
            self._select_candidates(types, any_size).prepare(connection)
        for power in range(_MOST.bit_length() + 1):
            self._take.prepare(connection, 1 << power)
        self._taken.prepare(connection)

    def _candidates(self, connection: Connection, parameters: Parameters, types: WantedTypes | None) -> list[str]:
        limit, least = parameters["limit"], parameters["least"]
        of_types = {} if types is None else types.parameters
        values = {**parameters, **of_types, "limit": limit * self._windows}
        rows = self._select_candidates(types, limit <= least).rows(connection, values)
        start = random.randrange(0, max(len(rows), 1), limit)
        chosen = rows[start : start + limit]
        if limit > least:
            chosen = chosen[: count_within([size for _, _, size in chosen], parameters["budget"], least)]
        return [row[0] for row in chosen]

    def _select_candidates(self, types: WantedTypes | None, any_size: bool) -> Statement:
        shape = (None if types is None else types.shape, any_size)
        if shape not in self._by_types:
            statements = self._statements
            candidates = statements.due(shape[0], locked=False) if any_size else statements.due_sized(shape[0])
            self._by_types[shape] = Statement(candidates)
        return self._by_types[shape]


_MOST = 500
"""Rows of one acquire for several threads, unless one thread alone wants more."""

Acquire = Callable[[int, AcquireOptions, int], list[Claim]]
"""Takes limit, options, and the number of threads that the rows are for."""


@dataclass(eq=False)
class AcquireRequest:
    """The limit of one thread, and the answer to it."""

    limit: int
    claims: list[Claim] = field(default_factory=list)
    error: Exception | None = None
    answered: bool = False


class CombinedAcquire:
    """`LeaseStore.acquire` for several threads: while one thread acquires, later requests wait, and become one acquire.

    Requests with equal options are combined. The statements that answer a call begin after the call.
    """

    def __init__(self, acquire: Acquire) -> None:
        self._acquire = acquire
        self.begin_anew()
        fork_safety.register_for_fork(self)

    def begin_anew(self) -> None:
        """Forget all requests: a process that was forked off has no threads that wait."""
        self._changed = threading.Condition()
        self._requests: dict[AcquireOptions, list[AcquireRequest]] = {}
        self._busy: set[AcquireOptions] = set()

    def acquire(self, limit: int, kind: AcquireOptions) -> list[Claim]:
        """Lease up to `limit` rows. Raises the error of the combined acquire in each thread that waits for it."""
        mine = AcquireRequest(limit)
        with self._changed:
            self._requests.setdefault(kind, []).append(mine)
            self._wait(kind, mine)
            if not mine.answered:
                self._busy.add(kind)
                requests = self._requests.pop(kind)
        if not mine.answered:
            self._acquire_for(kind, requests, mine)
        if mine.error is not None:
            raise mine.error
        return mine.claims

    def _wait(self, kind: AcquireOptions, mine: AcquireRequest) -> None:
        """Wait until another thread has answered `mine`, or no thread acquires. An interrupt withdraws `mine`."""
        try:
            while kind in self._busy and not mine.answered:
                self._changed.wait()
        except BaseException:
            if mine in self._requests.get(kind, ()):
                self._requests[kind].remove(mine)
            raise

    def _acquire_for(self, kind: AcquireOptions, requests: list[AcquireRequest], mine: AcquireRequest) -> None:
        """Acquire for all `requests`. After an interrupt the requests of other threads are left to the next thread."""
        limits = [request.limit for request in requests]
        unanswered = [request for request in requests if request is not mine]
        try:
            claims = self._acquire(max(*limits, min(sum(limits), _MOST), 1), kind, len(requests))
            share_out(claims, requests)
            unanswered = []
        except Exception as error:  # noqa: BLE001 – each thread raises it
            for request in requests:
                request.error = error
            unanswered = []
        finally:
            with self._changed:
                for request in requests:
                    request.answered = request not in unanswered
                if unanswered:
                    self._requests.setdefault(kind, []).extend(unanswered)
                self._busy.discard(kind)
                self._changed.notify_all()


def share_out(claims: Sequence[Claim], requests: Sequence[AcquireRequest]) -> None:
    """Give each request a claim in turn, and no request more than its limit."""
    if len(requests) == 1:
        requests[0].claims.extend(claims)
        return
    turns = deque(requests)
    for claim in claims:
        request = turns.popleft()
        request.claims.append(claim)
        if len(request.claims) < request.limit:
            turns.append(request)
