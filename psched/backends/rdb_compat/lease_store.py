"""The base class of the two `rdb_compat` stores: leases in the tables of PerfectSched and PerfectQueue.

A worker holds a row by writing the row's timeout. The fence of a lease consists of the occurrence and the last written
timeout. An acquire writes a later timeout, and a finish writes a later occurrence.

Until a lease ends, only its holder writes the row. If the answer to an extend was lost, and the row has a new timeout
before the old lease ends, then the extend has succeeded.

A process leaves rows that it cannot run to other workers: it writes nothing to them, and remembers them
(`SkippedRowCache`), so that its next polls skip them.
"""

from __future__ import annotations

import logging
import math
import threading
from abc import abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from itertools import groupby, islice
from operator import itemgetter
from typing import Any, NamedTuple

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Connection,
    RowMapping,
    Select,
    Table,
    Update,
    bindparam,
    cast,
    delete,
    select,
    update,
)

from psched import fork_safety
from psched.backends.common.rows import BATCH, RowReader
from psched.backends.rdb_compat.schema import OriginalSchema
from psched.backends.rdb_compat.skipped_row_cache import SkippedRowCache
from psched.backends.sql.database import Database
from psched.backends.sql.dialect import now_ms
from psched.backends.sql.paging import ByKeys, OrderedPages, RowsByKeys, stored_bytes
from psched.backends.sql.store import SqlStore
from psched.clock import boottime
from psched.errors import (
    IdempotentAlreadyFinishedError,
    IdempotentNotFoundError,
    NotSupportedError,
    OutcomeUnknownError,
    PreemptedError,
    ScheduleError,
)
from psched.model import WORKER_DIED, Claim, Lease, Retry, Row
from psched.payload import MAX_BATCH_SIZE, count_within
from psched.store import Accepts, AcquireOptions
from psched.store.ledger import OnCommit

log = logging.getLogger(__name__)


_PAGE = 5000
"""How many due times and keys one statement reads to find a row that is not remembered as a row of other workers."""

_EXAMINED_AT_ONCE = 100
"""How many rows one statement reads to find out which of them this process can run."""

_EXAMINED = 20_000
"""The maximum number of due rows that one acquire examines. If this process can run none of them, the rows behind them
wait."""

_NO_TYPES = "rdb_compat cannot select rows by type; `type: rdb` can"


class CompatLeaseStore(SqlStore):
    """Leases on due rows in a table of PerfectSched or PerfectQueue. Implements `LeaseStore`."""

    shows_fence = False
    knows_holders = False
    keeps_types = False

    _kind: str
    """The word for a row in messages: `schedule` or `task`."""
    _identity: Collection[str]
    """Columns that no run changes. They distinguish a row from a later row with the same key."""
    _written: Collection[str]
    """Columns by which an attempt to create a row recognises the row of an earlier attempt."""

    def __init__(self, database: Database, table: Table, maker: str, occurrence: ColumnElement[Any]) -> None:
        """Opens no connection.

        `maker`: PerfectSched or PerfectQueue. `occurrence`: an SQL expression whose value changes when a run is
        finished.
        """
        super().__init__(database, OriginalSchema(database, table, "id", maker))
        self._table = table
        self._occurrence = occurrence
        self._left_rows = SkippedRowCache()
        self._write_statements()
        self.reset_after_fork()
        fork_safety.register_for_fork(self)

    def reset_after_fork(self) -> None:
        """Forget the parent's extends whose answers were lost."""
        self._lock = threading.Lock()
        self._unanswered: dict[Lease, float] = {}

    @abstractmethod
    def _read_row(self, row: Mapping[Any, Any]) -> Row:
        """Return a stored row. If a column is invalid, `problem` describes it."""

    def _acquire(self, limit: int, options: AcquireOptions) -> list[Claim]:
        """Lease up to `limit` due rows that this process can run, and write to no other row.

        In total, the rows have at most `MAX_BATCH_SIZE` bytes of stored data; a single row may have more. If the answer
        to the acquire is lost, no run holds its leases, and they expire. `ahead` is ignored, because the table counts
        no attempts. Raises NotSupportedError for `types`, because the table has no column of types.
        """
        _refuse(options.types)
        accepts = options.accepts
        self._left_rows.refresh(accepts)
        values = {"limit": limit, "alive": math.ceil(options.alive_time), "budget": MAX_BATCH_SIZE, "least": 1}
        claims, size, has_others = self._acquire_chosen(values, accepts)
        left = limit - len(claims)
        if has_others and left and size < MAX_BATCH_SIZE and self._examine_due(left, accepts):
            rest = {"limit": left, "budget": MAX_BATCH_SIZE - size, "least": int(not claims)}
            claims += self._acquire_chosen({**values, **rest}, accepts)[0]
        return claims

    def next_due(self, types: Collection[str] | None = None, accepts: Accepts | None = None) -> float | None:
        """Return the seconds until a row is due, or None without such a row.

        Ignores the rows that `_left_rows` remembers. This process cannot run them.
        """
        _refuse(types)
        if self._left_rows.refresh(accepts):
            return self._database.run(self._next_due_of_ours)
        wait = self._database.scalar(self._wait)
        return None if wait is None else max(0.0, wait / 1000)

    def due_by_type(self) -> Mapping[str, float]:
        raise NotSupportedError(_NO_TYPES)

    def extend(self, leases: Sequence[Lease], alive_time: float, begun: bool = True) -> list[Lease | None]:
        asked = boottime()
        fences = {lease: self._present_fence(lease) for lease in leases}

        def work(connection: Connection, uncertain: bool) -> dict[Lease, Lease]:
            with self._database.transaction(connection):
                rows = self._locked_rows(connection, leases, math.ceil(alive_time))
                held = {
                    lease: row
                    for lease, fence in fences.items()
                    if (row := rows.get(lease.key)) is not None
                    and (fence.holds(row) or (uncertain and fence.may_be_extended(row)))
                }
                if held:
                    end = next(iter(held.values()))["lease_end"]
                    connection.execute(self._renew, {"keys": [lease.key for lease in held], "end": end})
            return {lease: fences[lease].lease(row, end) for lease, row in held.items()}

        try:
            renewed = self._database.run(work) if leases else {}
        except BaseException:
            with self._lock:
                self._unanswered = {lease: end for lease, end in self._unanswered.items() if end > asked}
                self._unanswered.update((lease, asked + alive_time) for lease in leases)
            raise
        return [renewed.get(lease) for lease in leases]

    def release_many(self, leases: Sequence[Lease], until: float, begun: bool = True) -> list[ScheduleError | None]:
        return [self._settle_one(lease, self._release, {}, until) for lease in leases]

    def retry_many(self, retries: Sequence[Retry], until: float) -> list[ScheduleError | None]:
        """See `LeaseStore.retry_many`. Rounds each wait up to whole seconds.

        The table has no columns for `error`, `counted` and `version`.
        """
        if len(retries) == 1:  # without a locking read, the UPDATE takes 40 % less processor time (2026-11-22)
            ((lease, wait, *_),) = retries
            return [self._settle_one(lease, self._retry, {"wait": _rounded_up(wait)}, until)]
        waits = {retry.lease: _rounded_up(retry.wait) for retry in retries}

        def write(connection: Connection, held: list[Lease]) -> None:
            for wait, leases in groupby(sorted(held, key=waits.__getitem__), waits.__getitem__):
                connection.execute(self._retry_keys, {"keys": [lease.key for lease in leases], "wait": wait})

        return self._settle_together(list(waits), until, write)

    def held_claims(self, holder: str) -> dict[str, int]:
        """Return an empty mapping, because the table does not record holders."""
        return {}

    def give_back(
        self,
        holder: str,
        suspects: Collection[str],
        longest_wait: float,
        error: str = WORKER_DIED,
        claims: Mapping[str, int] | None = None,
    ) -> int:
        """Return 0, because the table does not record holders."""
        return 0

    def delete(self, key: str) -> None:
        self._delete_by(key, self._delete_locked)

    def _delete_by(self, key: str, delete: Callable[[Connection, RowMapping], None]) -> None:
        """Call `delete` with the locked row of `key`. Raises NotFoundError."""
        if not self._delete_row(key, itemgetter(*self._identity), delete):
            raise IdempotentNotFoundError(f"no {self._kind} has the key {key!r}")

    def _delete_locked(self, connection: Connection, row: RowMapping) -> None:
        connection.execute(self._delete, {"lease_key": row["id"]})

    def _row(self, connection: Connection, key: str, locked: bool = False) -> RowMapping | None:
        """Return the row with exactly this key. Ruby's collation would also find `A` for `a`."""
        statement = self._read.with_for_update() if locked else self._read
        row = connection.execute(statement, {"lease_key": key}).mappings().first()
        return row if row is not None and row["id"] == key else None

    def _insert(self, connection: Connection, rows: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
        """Insert rows, and return the rows whose keys existed before."""
        insert = self._database.dialect.insert_one
        return [row for row in rows if not insert(connection, self._table, row)]

    def _older_keys(self, connection: Connection, present: Sequence[Mapping[str, Any]], uncertain: bool) -> list[str]:
        """Return the keys that existed before the call.

        `uncertain`: whether an earlier attempt may have inserted the rows.
        """
        return [row["id"] for row in present if not (uncertain and self._is_written(connection, row))]

    def _is_written(self, connection: Connection, wanted: Mapping[str, Any]) -> bool:
        row = self._row(connection, wanted["id"])
        return row is not None and is_same(row, {name: wanted.get(name) for name in self._written})

    def _settle_together(
        self,
        leases: Sequence[Lease],
        until: float,
        write: Callable[[Connection, list[Lease]], None],
        outcome: Mapping[str, Any] | None = None,
    ) -> list[ScheduleError | None]:
        """Lock the rows of the leases, and call `write` with the leases that still hold.

        Each transaction has up to `BATCH` leases. `outcome`: see `_settle`.
        """

        def work(fences: Mapping[Lease, Fence], connection: Connection, uncertain: bool) -> list[ScheduleError | None]:
            with self._database.transaction(connection):
                rows = self._locked_rows(connection, fences)
                held = {lease for lease, fence in fences.items() if lease.key in rows and fence.holds(rows[lease.key])}
                if held:
                    write(connection, list(held))
            return [
                None if lease in held else _error(lease, fence, rows.get(lease.key), uncertain, outcome)
                for lease, fence in fences.items()
            ]

        answers: list[ScheduleError | None] = []
        for start in range(0, len(leases), BATCH):
            fences = {lease: self._present_fence(lease, until) for lease in leases[start : start + BATCH]}
            answers += self._database.run(partial(work, fences), until)
        return answers

    def _settle(
        self,
        lease: Lease,
        statement: Update,
        values: Mapping[str, Any],
        until: float,
        outcome: Mapping[str, Any] | None = None,
        on_commit: OnCommit | None = None,
    ) -> RowMapping | ScheduleError | None:
        """Execute `statement`, made by `_settling`, and `on_commit` in one transaction.

        Returns None if both took effect. Returns the row if the lease still holds, but another condition of the
        statement is not met. Otherwise returns the error. `outcome`: the columns of a settled row, if known. If the row
        already has these values, the run was settled before.
        """
        fence = self._present_fence(lease, until)
        parameters = {"lease_key": lease.key, "seen_timeout": fence.timeout, "seen_occurrence": fence.occurrence}

        def work(connection: Connection, uncertain: bool) -> tuple[bool, RowMapping | None, bool]:
            further = () if on_commit is None else (partial(on_commit, connection),)
            done = self._database.change_rows(
                connection, 1, lambda: connection.execute(statement, {**parameters, **values}).rowcount, *further
            )
            return done, None if done else self._row(connection, lease.key), uncertain

        done, row, uncertain = self._database.run(work, until)
        if done:
            return None
        return row if row is not None and fence.holds(row) else _error(lease, fence, row, uncertain, outcome)

    def _settle_one(
        self,
        lease: Lease,
        statement: Update,
        values: Mapping[str, Any],
        until: float,
        outcome: Mapping[str, Any] | None = None,
    ) -> ScheduleError | None:
        """Execute `statement`, whose only condition must be the lease."""
        answer = self._settle(lease, statement, values, until, outcome)
        return answer if isinstance(answer, ScheduleError) else None

    def _settling(self, *conditions: ColumnElement[bool], **values: Any) -> Update:
        """Return the UPDATE that ends the lease on :lease_key and writes `values`, if `conditions` are met."""
        c = self._table.c
        under_lease = (
            c.id == bindparam("lease_key"),
            c.timeout == bindparam("seen_timeout", type_=BigInteger),
            # SQLite may hold any value here, so the value is cast. A row with an invalid value is deferred as
            # occurrence 0.
            cast(self._occurrence, BigInteger) == bindparam("seen_occurrence", type_=BigInteger),
        )
        return update(self._table).where(*under_lease, *conditions).values(values)

    def _acquire_lock(self, connection: Connection) -> AbstractContextManager[bool]:
        """Hold the lock that workers hold while they acquire rows. Yields False if the lock is not free.

        Here there is no such lock; the queue overrides this method.
        """
        return nullcontext(True)

    def _acquire_chosen(self, values: Mapping[str, Any], accepts: Accepts | None) -> tuple[list[Claim], int, bool]:
        """Choose due rows and lease those that this process can run.

        Returns the claims, their bytes, and whether there were chosen rows that this process cannot run.
        """

        def work(connection: Connection, uncertain: bool) -> tuple[list[Claim], int, bool]:
            with self._acquire_lock(connection) as is_held:
                return self._claim_rows(connection, values, accepts) if is_held else ([], 0, False)

        return self._database.run(work)

    def _claim_rows(
        self, connection: Connection, values: Mapping[str, Any], accepts: Accepts | None
    ) -> tuple[list[Claim], int, bool]:
        claims: dict[Any, Claim] = {}
        with self._database.transaction(connection):
            rows = self._choose(connection, values)
            for row in rows:
                end = row["lease_end"]
                known = self._runnable({**row, "timeout": end}, row["timeout"], accepts)
                if known is not None:
                    claims[row["id"]] = Claim(known, Fence.in_row(row).lease(row, end))
            if claims:
                connection.execute(self._renew, {"keys": list(claims), "end": rows[0]["lease_end"]})
        size = sum(row["bytes"] for row in rows if row["id"] in claims)
        return list(claims.values()), size, len(claims) < len(rows)

    def _problem(self, row: Row) -> str | None:
        return row.problem

    def _runnable(self, row: Mapping[Any, Any], timeout: int, accepts: Accepts | None) -> Row | None:
        """Return the row if this process can run it. If not, remember it with its stored `timeout`, and return None."""
        known = self._read_row(row)
        is_accepted = accepts is None or accepts(known.type)
        problem = self._problem(known) if is_accepted else None
        if is_accepted and problem is None:
            return known
        self._left_rows.add(row["id"], timeout, problem)
        return None

    def _choose(self, connection: Connection, values: Mapping[str, Any]) -> Sequence[RowMapping]:
        """Return locked rows to lease, with the column `lease_end`.

        The rows may include rows that this process cannot run, but none that `_left_rows` remembers.
        """
        if self._left_rows:
            return self._take(connection, self._due_keys(connection, values["limit"]), values)
        if values["limit"] == values["least"] == 1:
            return connection.execute(self._due, values).mappings().all()
        return self._take_sized(connection, connection.execute(self._due_sizes, values).mappings().all(), values)

    def _take(self, connection: Connection, keys: Sequence[Any], values: Mapping[str, Any]) -> Sequence[RowMapping]:
        """Lock the rows of the first `keys`, as many as `_take_sized` allows. Return the rows that are still due."""
        if len(keys) == values["least"] == 1:
            return self._lock_due.read(connection, keys, values)
        return self._take_sized(connection, self._sizes.read(connection, keys), values)

    def _take_sized(
        self, connection: Connection, sized: Sequence[RowMapping], values: Mapping[str, Any]
    ) -> Sequence[RowMapping]:
        """Lock as many of the first rows as fit into :budget bytes, but at least :least.

        Return the rows that are still due.
        """
        count = count_within([row["bytes"] for row in sized], values["budget"], values["least"])
        return self._lock_due.read(connection, [row["id"] for row in sized[:count]], values)

    def _due_keys(self, connection: Connection, count: int) -> list[Any]:
        """Return the key of each of the first due rows, without the rows that `_left_rows` remembers."""
        return [place["key"] for place in islice(self._places(connection, self._due_places), count)]

    def _next_due_of_ours(self, connection: Connection, _: bool) -> float | None:
        place = next(self._places(connection, self._all_places), None)
        return None if place is None else max(0.0, place["due"] - int(place["now"]) / 1000)

    def _places(self, connection: Connection, keys: OrderedPages) -> Iterator[RowMapping]:
        """Yield `key`, `due` and `now` of each row.

        Leaves out the rows that `_left_rows` remembers. This process cannot run them.
        """
        for page in keys.pages(lambda statement, after: connection.execute(statement, after).mappings().all()):
            yield from (place for place in page if not self._left_rows.has(place["key"], place["due"]))

    def _examine_due(self, wanted: int, accepts: Accepts | None) -> bool:
        """Read due rows until `wanted` rows are found that this process can run. Remembers the other rows.

        Returns whether there is a row that this process can run. Locks and writes nothing.
        """
        runnable = 0
        keys = self._database.run(lambda connection, _: self._due_keys(connection, _EXAMINED))
        for start in range(0, len(keys), _EXAMINED_AT_ONCE):
            rows = self._rows.read(self._database, keys[start : start + _EXAMINED_AT_ONCE])
            runnable += sum(self._runnable(row, row["timeout"], accepts) is not None for row in rows)
            if runnable >= wanted:
                break
        return runnable > 0

    def _locked_rows(self, connection: Connection, leases: Collection[Lease], alive: int = 0) -> dict[str, RowMapping]:
        """Lock the rows of `leases` and return them by key.

        Their column `lease_end` is the time `alive` seconds from now.
        """
        values = {"keys": [lease.key for lease in leases], "alive": alive}
        return {row["id"]: row for row in connection.execute(self._locked, values).mappings()}

    def _present_fence(self, lease: Lease, until: float | None = None) -> Fence:
        """Return the current fence of a lease. Reads it from the row if the answer to an extend was lost."""
        fence = Fence.of(lease)
        with self._lock:
            doubtful = lease in self._unanswered
        row = self._database.run(lambda connection, _: self._row(connection, lease.key), until) if doubtful else None
        return Fence.in_row(row) if row is not None and fence.may_be_extended(row) else fence

    def _live(self, timeout: ColumnElement[int]) -> Sequence[ColumnElement[bool]]:
        """Return the conditions under which a row can become due. `timeout`: the column with the row's timeout."""
        return ()

    def _write_statements(self) -> None:
        c = self._table.c
        now = seconds(now_ms())
        lease_end = (seconds(now_ms() + 999) + bindparam("alive", type_=BigInteger)).label("lease_end")
        later = seconds(now_ms() + bindparam("wait", type_=BigInteger))
        this, of_keys = c.id == bindparam("lease_key"), c.id.in_(bindparam("keys", expanding=True))
        live, size = self._live(c.timeout), stored_bytes(c.data).label("bytes")
        clock, occurrence = now.label("now"), self._occurrence.label("occurrence")
        self._whole = select(*c, occurrence, clock, size)
        claimed = self._whole.add_columns(lease_end)

        def due(rows: Select[Any]) -> Select[Any]:
            first = rows.where(*live, c.timeout <= now).order_by(c.timeout, c.id).limit(bindparam("limit"))
            return first.with_for_update(skip_locked=True)

        self._due, self._due_sizes = due(claimed), due(select(c.id, size))
        self._sizes = ByKeys(select(c.id, size), c.id)
        # The sum prevents a wrong plan: without statistics, a database would read the index of due times for a few
        # keys.
        still_due = claimed.where(*self._live(c.timeout + 0), c.timeout + 0 <= now)
        self._lock_due = ByKeys(still_due.with_for_update(skip_locked=True), c.id)
        self._rows = RowsByKeys(self._whole, c.id)
        place = select(c.id.label("key"), cast(c.timeout, BigInteger).label("due"), now_ms().label("now"))
        places, order = place.where(*live), {"due": c.timeout, "key": c.id}
        self._all_places = OrderedPages(places, order, _PAGE)
        self._due_places = OrderedPages(places.where(c.timeout <= now), order, _PAGE)
        first = select(c.timeout).where(*live).order_by(c.timeout).limit(1).scalar_subquery()
        self._wait = select(cast(first, BigInteger) * 1000 - now_ms())
        of_lease = [c[name] for name in ("id", "timeout", "created_at") if name in c]
        self._locked = select(*of_lease, occurrence, clock, lease_end).where(of_keys).with_for_update()
        self._read = self._whole.where(this)
        self._renew = update(self._table).where(of_keys).values(timeout=bindparam("end"))
        self._release = self._settling(timeout=now)
        self._retry = self._settling(timeout=later)
        self._retry_keys = update(self._table).where(of_keys).values(timeout=later)
        self._delete = delete(self._table).where(this)


def seconds(milliseconds: ColumnElement[int]) -> ColumnElement[int]:
    """Convert an SQL expression of milliseconds to one of whole seconds, rounded down."""
    return cast(milliseconds // 1000, BigInteger)


def is_same(row: RowMapping, values: Mapping[str, Any]) -> bool:
    """Return whether the row holds these values. Bytes may be stored as text."""
    return all(_bytes(row[name]) == _bytes(value) for name, value in values.items())


def _bytes(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode()
    return bytes(value) if isinstance(value, memoryview) else value


_SHIFT = 2**40


class Fence(NamedTuple):
    """The columns that a write under a lease compares, packed into the integer `Lease.fence`."""

    occurrence: int
    timeout: int

    @classmethod
    def of(cls, lease: Lease) -> Fence:
        return cls(*divmod(lease.fence, _SHIFT))

    @classmethod
    def in_row(cls, row: RowMapping) -> Fence:
        """Read the fence of a row. A value that is not an integer counts as 0."""
        fields = RowReader(row)
        return cls(fields.number("occurrence"), fields.number("timeout"))

    def holds(self, row: RowMapping) -> bool:
        return self == Fence.in_row(row)

    def lasts(self, row: RowMapping) -> bool:
        """Return whether the clock in `row` is before the end of the lease.

        Until this end only the holder writes the row.
        """
        return bool(row["now"] < self.timeout)

    def may_be_extended(self, row: RowMapping) -> bool:
        """Return whether an extend of this lease may have written the timeout in `row`."""
        return self.occurrence == Fence.in_row(row).occurrence and self.lasts(row)

    def lease(self, row: RowMapping, end: int) -> Lease:
        """Return the lease on `row` that ends at `end`.

        A `created_at` of 0 means that cancellation of the task was requested. The lease says this, too.
        """
        is_cancelled = "created_at" in row and row["created_at"] == 0
        return Lease(row["id"], self.occurrence * _SHIFT + end, float(end), is_cancelled)


def _refuse(types: Collection[str] | None) -> None:
    if types is not None:
        raise NotSupportedError(_NO_TYPES)


def _rounded_up(wait: float) -> int:
    """Return the wait in milliseconds, increased so that a later division to whole seconds rounds up."""
    return math.ceil(wait * 1000) + (999 if wait > 0 else 0)


def _error(
    lease: Lease, fence: Fence, row: RowMapping | None, uncertain: bool, outcome: Mapping[str, Any] | None
) -> ScheduleError | None:
    """Return the error of a write that changed nothing because the lease no longer holds.

    Return None if an earlier attempt of the same call has executed the write. `row`: the current row; None if it is
    gone. `uncertain`: whether the answer to an earlier attempt was lost. `outcome`: see `CompatLeaseStore._settle`.
    """
    if row is None:
        return IdempotentNotFoundError(f"{lease.key!r}: the row is gone")
    is_finished = outcome is not None and all(row[name] == value for name, value in outcome.items())
    was_written = outcome is None or Fence.in_row(row).occurrence != fence.occurrence
    if uncertain and (is_finished or (was_written and fence.lasts(row))):
        return None
    if is_finished:
        return IdempotentAlreadyFinishedError(f"{lease.key!r}: this run was already finished")
    if uncertain or lease.unanswered:
        return OutcomeUnknownError(
            f"{lease.key!r}: the connection was lost while this run was being settled, and another worker has "
            "acquired the row since; whether the run was settled is unknown"
        )
    return PreemptedError(f"{lease.key!r}: the lease of this run is lost; another worker has acquired the row since")
