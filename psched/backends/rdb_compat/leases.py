"""Leases in the tables of PerfectSched and PerfectQueue, where holding a row means having written its timeout.

The fence is the occurrence and the timeout that was written last: an acquire writes a later timeout, a finish a later
occurrence. Until a lease ends, only its holder writes the row, so a timeout written by an extend without an answer is
the holder's.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from itertools import groupby
from operator import attrgetter
from types import MappingProxyType
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
    or_,
    select,
    update,
)

from psched import fork_safety as forks
from psched.backends.common.row_reader import RowReader
from psched.backends.rdb_compat.ruby_only_rows import RubyOnlyRows
from psched.backends.sql.base import now_ms
from psched.backends.sql.database import Database
from psched.backends.sql.paging import ByKeys, stored_bytes
from psched.clock import boottime
from psched.errors import (
    IdempotentAlreadyFinishedError,
    IdempotentNotFoundError,
    OutcomeUnknownError,
    PreemptedError,
    ScheduleError,
)
from psched.model import Claim, Lease, Retry, Row
from psched.payload import MAX_BATCH_SIZE, count_within
from psched.store import Accepts

_WAIT = attrgetter("wait")
_TOGETHER = 500
"""Rows retried by one statement."""

_PAGE = 5000
"""Due times and keys read by one statement, when some rows are known to be Ruby's."""

_LOOKED_AT = 100
"""Rows read by one statement to find out which of them can be run here."""

_LOOKED_BEHIND = 20_000
"""Rows read by one acquire; rows behind more foreign rows wait for the next acquire."""

Reader = Callable[[Mapping[Any, Any]], Row]
"""Makes a `Row` of a stored row."""

Sized = Sequence[Any]
"""A key, and the bytes of the stored data of its row."""

Judge = Callable[[Any], str | None]
"""Says why psched cannot run a row, None when it can."""


class CompatLeases:
    """The leases of one process on one table. Safe to use from several threads."""

    def __init__(
        self, database: Database, table: Table, occurrence: ColumnElement[Any], read: Reader, judge: Judge | None = None
    ) -> None:
        """`occurrence`: an SQL expression on a row whose value changes when its run is finished."""
        self._database = database
        self._table = table
        self._read_row = read
        self._judge = judge
        self._foreign = RubyOnlyRows()
        self.occurrence = occurrence.label("occurrence")
        self._write_statements()
        self.begin_anew()
        forks.register_for_fork(self)

    def begin_anew(self) -> None:
        """Forget extends without an answer, which are the parent process's."""
        self._lock = threading.Lock()
        self._unanswered: dict[Lease, float] = {}

    def acquire(self, limit: int, alive_time: float, accepts: Accepts | None) -> list[Claim]:
        """Lease up to `limit` due rows that can be run here, and write to no other.

        Rows are taken while their stored data has at most `MAX_BATCH_SIZE` bytes together, and one in any case.
        When the answer was lost, these leases end by themselves.
        """
        if limit <= 0:
            return []
        self._foreign.are_known(accepts)
        values = {"limit": limit, "alive": math.ceil(alive_time), "budget": MAX_BATCH_SIZE, "least": 1}
        claims, size, foreign = self._acquire(values, accepts)
        left = limit - len(claims)
        if foreign and left and size < MAX_BATCH_SIZE and self._look_behind(left, accepts):
            least = 0 if claims else 1
            rest = {**values, "limit": left, "budget": MAX_BATCH_SIZE - size, "least": least}
            claims += self._acquire(rest, accepts)[0]
        return claims

    def next_due(self, accepts: Accepts | None) -> float | None:
        """Return the seconds until a row is due, other than rows known to be foreign; None without such a row."""
        if self._foreign.are_known(accepts):
            return self._database.run(self._next_due_of_ours)
        wait = self._database.run(lambda connection, _: connection.execute(self._wait).scalar())
        return None if wait is None else max(0.0, wait / 1000)

    def is_cancelled(self, row: Mapping[Any, Any]) -> bool:
        """Return whether the row says that its run is to be cancelled."""
        return False

    def extend(self, leases: Sequence[Lease], alive_time: float) -> list[Lease | None]:
        asked = boottime()
        values = {"keys": [lease.key for lease in leases], "alive": math.ceil(alive_time)}

        def work(connection: Connection, uncertain: bool) -> dict[Lease, Lease]:
            with self._database.transaction(connection):
                rows = {row["id"]: row for row in connection.execute(self._locked, values).mappings()}
                held = [lease for lease in leases if self._present(lease, rows.get(lease.key), uncertain) is not None]
                ends = {lease: Fence.of(lease).until(rows[lease.key]["lease_end"]) for lease in held}
                if held:
                    keys = [lease.key for lease in held]
                    connection.execute(self._renew, {"keys": keys, "end": rows[keys[0]]["lease_end"]})
            return {lease: fence.lease(lease.key, self.is_cancelled(rows[lease.key])) for lease, fence in ends.items()}

        try:
            renewed = self._database.run(work) if leases else {}
        except BaseException:
            self._remember_unanswered(leases, asked + alive_time)
            raise
        self._forget(leases)
        return [renewed.get(lease) for lease in leases]

    def release(self, lease: Lease, until: float) -> None:
        self.settle(lease, self._release, {}, until)

    def retry(self, lease: Lease, wait: float, until: float) -> None:
        """Make the row due `wait` seconds from now, rounded up to whole seconds."""
        self.settle(lease, self._retry, {"wait": rounded_up(wait)}, until)

    def retry_many(self, retries: Sequence[Retry], until: float) -> list[ScheduleError | None]:
        """Do for each what `retry` does, those that wait equally long together, some hundreds by one statement."""
        found: dict[Lease, ScheduleError | None] = {}
        for wait, equal in groupby(sorted(retries, key=_WAIT), _WAIT):
            leases = [retry.lease for retry in equal]
            for start in range(0, len(leases), _TOGETHER):
                found |= self._retry_together(leases[start : start + _TOGETHER], wait, until)
        return [found[retry.lease] for retry in retries]

    def _retry_together(self, leases: Sequence[Lease], wait: float, until: float) -> dict[Lease, ScheduleError | None]:
        fences = {lease: self._present_fence(lease, until) for lease in leases}
        values = {"keys": [lease.key for lease in leases], "alive": 0}

        def work(connection: Connection, uncertain: bool) -> dict[Lease, Settled]:
            with self._database.transaction(connection):
                rows = {row["id"]: row for row in connection.execute(self._locked, values).mappings()}
                held = {lease for lease in leases if lease.key in rows and fences[lease].holds(rows[lease.key])}
                if held:
                    connection.execute(
                        self._retry_keys, {"keys": [lease.key for lease in held], "wait": rounded_up(wait)}
                    )
            done = held | {one for one in leases if uncertain and one.key in rows and fences[one].lasts(rows[one.key])}
            return {lease: Settled(lease in done, rows.get(lease.key), uncertain) for lease in leases}

        settled = self._database.run(work, until)
        self._forget(leases)
        return {
            lease: None if done else refusal(lease, row, uncertain or lease.unanswered)
            for lease, (done, row, uncertain) in settled.items()
        }

    def settle(
        self,
        lease: Lease,
        statement: Update,
        values: Mapping[str, Any],
        until: float,
        outcome: Mapping[str, Any] | None = None,
        also: Callable[[Connection], object] | None = None,
    ) -> RowMapping | None:
        """Execute `statement`, one of `settling`, and with it `also` in one transaction.

        Returns None when it is done, and the row when the lease is ours but another condition of the statement does
        not hold. `outcome` is what the row then holds where that is known beforehand: a row that holds it was settled
        before. Raises PreemptedError, OutcomeUnknownError, IdempotentNotFoundError, IdempotentAlreadyFinishedError.
        """
        fence = self._present_fence(lease, until)
        parameters = {"lease_key": lease.key, "seen_timeout": fence.timeout, "seen_occurrence": fence.occurrence}

        def work(connection: Connection, uncertain: bool) -> Settled:
            if self._database.execute_with(connection, statement, {**parameters, **values}, also):
                return Settled(True, None, uncertain)
            row = connection.execute(self._read, {"lease_key": lease.key}).mappings().first()
            if row is None or fence.holds(row) or not uncertain:
                return Settled(False, row, uncertain)
            return Settled(fence.lasts(row) or shows(row, outcome), row, uncertain)

        done, row, uncertain = self._database.run(work, until)
        self._forget([lease])
        if done:
            return None
        if row is not None and fence.holds(row):
            return row
        if row is not None and shows(row, outcome):
            raise IdempotentAlreadyFinishedError(f"{lease.key!r}: this occurrence was finished before")
        raise refusal(lease, row, uncertain or lease.unanswered)

    def settling(self, *conditions: ColumnElement[bool], **values: Any) -> Update:
        """Return the UPDATE that ends the lease on :lease_key and writes `values`, if `conditions` hold."""
        c = self._table.c
        under_lease = (
            c.id == bindparam("lease_key"),
            c.timeout == bindparam("seen_timeout", type_=BigInteger),
            # A cast, since SQLite may hold anything there; such a row is put off under the occurrence 0.
            cast(self.occurrence.element, BigInteger) == bindparam("seen_occurrence", type_=BigInteger),
        )
        return update(self._table).where(*under_lease, *conditions).values(values)

    def _acquire(self, values: Mapping[str, Any], accepts: Accepts | None) -> tuple[list[Claim], int, bool]:
        """Lease rows; tell, too, how many bytes they have, and whether there were foreign ones among the chosen."""

        def work(connection: Connection, uncertain: bool) -> tuple[list[Claim], int, bool]:
            with self.alone(connection) as may_claim:
                return claimed(connection) if may_claim else ([], 0, False)

        def claimed(connection: Connection) -> tuple[list[Claim], int, bool]:
            with self._database.transaction(connection):
                rows = self._choose(connection, values)
                claims = {row["id"]: claim for row in rows if (claim := self._claim(row, accepts)) is not None}
                if claims:
                    connection.execute(self._renew, {"keys": list(claims), "end": rows[0]["lease_end"]})
            size = sum(row["bytes"] for row in rows if row["id"] in claims)
            return list(claims.values()), size, len(claims) < len(rows)

        return self._database.run(work)

    def alone(self, connection: Connection) -> AbstractContextManager[bool]:
        """Keep others from claiming within it, where they ask for that; False when nothing may be claimed now."""
        return nullcontext(True)

    def _claim(self, row: RowMapping, accepts: Accepts | None) -> Claim | None:
        """Return the claim of a row that is about to be leased; None of a foreign one, which is remembered."""
        known = self._runnable(row, accepts, {"timeout": row["lease_end"]})
        if known is None:
            return None
        lease = Fence.in_row(row).until(row["lease_end"]).lease(row["id"], self.is_cancelled(row))
        return Claim(known, lease)

    def _runnable(
        self, row: RowMapping, accepts: Accepts | None, changes: Mapping[str, Any] = MappingProxyType({})
    ) -> Row | None:
        """Return what the engine knows of a row that can be run here; None of another, which is remembered.

        `changes`: what is about to be written to the row.
        """
        known = self._read_row({**row, **changes})
        if accepts is not None and not accepts(known.type):
            self._foreign.add(row["id"], row["timeout"], None)
            return None
        problem = known.problem
        if problem is None and self._judge is not None:
            problem = self._judge(known)
        if problem is not None:
            self._foreign.add(row["id"], row["timeout"], problem)
            return None
        return known

    def _choose(self, connection: Connection, values: Mapping[str, Any]) -> Sequence[RowMapping]:
        """Return rows to be leased, locked, with `lease_end`; of foreign ones those that are not known yet."""
        if self._foreign:
            return self._take(connection, [key for key, _ in self._places(connection, values["limit"])], values)
        if values["limit"] <= values["least"]:
            return connection.execute(self._due, values).mappings().all()
        return self._take_sized(connection, connection.execute(self._due_sizes, values).all(), values)

    def _take(self, connection: Connection, keys: Sequence[Any], values: Mapping[str, Any]) -> Sequence[RowMapping]:
        """Return the first rows of these keys, as many as may be taken together; see `_take_sized`."""
        if len(keys) > values["least"]:
            return self._take_sized(connection, self._sized(connection, keys), values)
        return self._take_sized(connection, [(key, 0) for key in keys], values)

    def _sized(self, connection: Connection, keys: Sequence[Any]) -> Sequence[Sized]:
        """Return the keys that are still there, in their order, with the bytes of their data."""
        return [(row["id"], row["bytes"]) for row in self._sizes.read(connection, keys)]

    def _take_sized(
        self, connection: Connection, sized: Sequence[Sized], values: Mapping[str, Any]
    ) -> Sequence[RowMapping]:
        """Return the first rows, as many as :budget has bytes for, :least in any case; locked, those still due."""
        count = count_within([size for _, size in sized], values["budget"], values["least"])
        return self._lock_due.read(connection, [key for key, _ in sized[:count]], values)

    def _places(self, connection: Connection, count: int) -> list[tuple[Any, int]]:
        """Return keys and due times of the first rows that are due and not known to be foreign."""
        found: list[tuple[Any, int]] = []
        statement, after = self._due_places, dict[str, Any]()
        while len(found) < count:
            page = connection.execute(statement, after).all()
            found += [(key, timeout) for key, timeout, _ in page if not self._foreign.has(key, timeout)]
            if len(page) < _PAGE:
                break
            statement, after = self._due_places_after, {"after_key": page[-1][0], "after_timeout": page[-1][1]}
        return found[:count]

    def _look_behind(self, wanted: int, accepts: Accepts | None) -> bool:
        """Find out what else of the due rows is foreign, up to the first `wanted` that are not; tell if there are any.

        Nothing is locked or written.
        """
        runnable = 0
        keys = [key for key, _ in self._database.run(lambda connection, _: self._places(connection, _LOOKED_BEHIND))]
        for start in range(0, len(keys), _LOOKED_AT):
            sized = self._database.run(partial(self._sizes_of, keys[start : start + _LOOKED_AT]))
            while sized and runnable < wanted:
                count = count_within([size for _, size in sized], MAX_BATCH_SIZE, 1)
                rows = self._database.run(partial(self._read_rows, [key for key, _ in sized[:count]]))
                runnable += sum(self._runnable(row, accepts) is not None for row in rows)
                sized = sized[count:]
            if runnable >= wanted:
                break
        return runnable > 0

    def _sizes_of(self, keys: Sequence[Any], connection: Connection, _: bool) -> Sequence[Sized]:
        return self._sized(connection, keys)

    def _read_rows(self, keys: Sequence[Any], connection: Connection, _: bool) -> Sequence[RowMapping]:
        return self._read_keys.read(connection, keys)

    def _next_due_of_ours(self, connection: Connection, _: bool) -> float | None:
        statement, after = self._all_places, dict[str, Any]()
        timeout: int
        while page := connection.execute(statement, after).all():
            for key, timeout, now in page:
                if not self._foreign.has(key, timeout):
                    return max(0.0, timeout - int(now) / 1000)
            statement, after = self._all_places_after, {"after_key": page[-1][0], "after_timeout": page[-1][1]}
        return None

    def _present(self, lease: Lease, row: RowMapping | None, uncertain: bool) -> Fence | None:
        """Return the fence under which the row is ours; None when it is not."""
        fence = Fence.of(lease)
        if row is None or fence.holds(row):
            return None if row is None else fence
        with self._lock:
            renewed = uncertain or lease in self._unanswered
        now = Fence.in_row(row)
        same_run = now.occurrence == fence.occurrence and fence.lasts(row)
        return now if renewed and same_run else None

    def _present_fence(self, lease: Lease, until: float) -> Fence:
        """Return the fence of a lease; after a renewal without an answer it is what stands in the row."""
        with self._lock:
            doubtful = lease in self._unanswered
        if not doubtful:
            return Fence.of(lease)
        row = self._database.run(
            lambda connection, _: connection.execute(self._read, {"lease_key": lease.key}).mappings().first(), until
        )
        present = self._present(lease, row, uncertain=False)
        return Fence.of(lease) if present is None else present

    def _remember_unanswered(self, leases: Sequence[Lease], until: float) -> None:
        now = boottime()
        with self._lock:
            self._unanswered = {lease: end for lease, end in self._unanswered.items() if end > now}
            self._unanswered.update((lease, until) for lease in leases)

    def _forget(self, leases: Sequence[Lease]) -> None:
        with self._lock:
            for lease in leases:
                self._unanswered.pop(lease, None)

    def _write_statements(self) -> None:
        c = self._table.c
        now = seconds(now_ms())
        lease_end = (seconds(now_ms() + 999) + bindparam("alive", type_=BigInteger)).label("lease_end")
        of_keys = c.id.in_(bindparam("keys", expanding=True))
        size = stored_bytes(c.data).label("bytes")
        self._seen = [*c, self.occurrence, now.label("now"), size]
        due = select(*self._seen, lease_end).where(c.timeout <= now).order_by(c.timeout, c.id)
        self._due = due.limit(bindparam("limit")).with_for_update(skip_locked=True)
        places = select(c.id, size).where(c.timeout <= now).order_by(c.timeout, c.id)
        self._due_sizes = places.limit(bindparam("limit")).with_for_update(skip_locked=True)
        self._sizes = ByKeys(select(c.id, size), c.id)
        # The sum keeps a database that has no statistics yet from reading the index of due times for a few keys.
        still_due = select(*self._seen, lease_end).where(c.timeout + 0 <= now)
        self._lock_due = ByKeys(still_due.with_for_update(skip_locked=True), c.id)
        self._read_keys = ByKeys(select(*self._seen), c.id)
        self._due_places, self._due_places_after = self._pages_of_places(c.timeout <= now)
        self._all_places, self._all_places_after = self._pages_of_places()
        of_lease = [c[name] for name in ("id", "timeout", "created_at") if name in c]
        self._locked = select(*of_lease, self.occurrence, now.label("now"), lease_end).where(of_keys).with_for_update()
        self._wait = self._waiting()
        self._renew = update(self._table).where(of_keys).values(timeout=bindparam("end"))
        self._read = select(*self._seen).where(c.id == bindparam("lease_key"))
        self._release = self.settling(timeout=now)
        later = seconds(now_ms() + bindparam("wait", type_=BigInteger))
        self._retry = self.settling(timeout=later)
        self._retry_keys = update(self._table).where(of_keys).values(timeout=later)

    def _waiting(self, *can_be_due: ColumnElement[bool]) -> Select[Any]:
        """Return the SELECT of the milliseconds until the first row is due of those that `can_be_due`."""
        c = self._table.c
        first = select(c.timeout).where(*can_be_due).order_by(c.timeout).limit(1).scalar_subquery()
        return select(cast(first, BigInteger) * 1000 - now_ms())

    def _pages_of_places(self, *conditions: ColumnElement[bool]) -> tuple[Select[Any], Select[Any]]:
        """Return the SELECTs of the first places, with the clock, and of those behind :after_timeout, :after_key."""
        c = self._table.c
        places = select(c.id, cast(c.timeout, BigInteger), now_ms()).where(*conditions)
        first = places.order_by(c.timeout, c.id).limit(_PAGE)
        # The range stands by itself, since MariaDB uses an index for it, but not for (timeout, id) > (…, …).
        after_timeout = bindparam("after_timeout", type_=BigInteger)
        after_key: ColumnElement[Any] = bindparam("after_key")
        return first, first.where(c.timeout >= after_timeout, or_(c.timeout > after_timeout, c.id > after_key))


def seconds(milliseconds: ColumnElement[int]) -> ColumnElement[int]:
    """Return whole seconds in SQL, rounded down."""
    return cast(milliseconds // 1000, BigInteger)


_SHIFT = 2**40


class Fence(NamedTuple):
    """What the row must hold for a write under a lease; packed into the integer of `Lease.fence`."""

    occurrence: int
    timeout: int

    @classmethod
    def of(cls, lease: Lease) -> Fence:
        """Return the fence of a lease."""
        return cls(*divmod(lease.fence, _SHIFT))

    @classmethod
    def in_row(cls, row: RowMapping) -> Fence:
        """Return what a row holds; 0 for what is no integer."""
        fields = RowReader(row)
        return cls(fields.number("occurrence"), fields.number("timeout"))

    def holds(self, row: RowMapping) -> bool:
        """Return whether the row is under this fence."""
        return self == Fence.in_row(row)

    def lasts(self, row: RowMapping) -> bool:
        """Return whether the lease has not ended by the clock in `row`: until then only its holder writes the row."""
        return bool(row["now"] < self.timeout)

    def until(self, timeout: int) -> Fence:
        """Return the fence of the same occurrence with another timeout."""
        return Fence(self.occurrence, timeout)

    @property
    def packed(self) -> int:
        """One integer for both."""
        return self.occurrence * _SHIFT + self.timeout

    def lease(self, key: str, cancel_requested: bool) -> Lease:
        """Return the lease on `key` with this fence."""
        return Lease(key, self.packed, float(self.timeout), cancel_requested)


class Settled(NamedTuple):
    """How a settling ended: it was done, or this is the row as it is instead.

    `uncertain`: an attempt of the call had no answer.
    """

    done: bool
    row: RowMapping | None
    uncertain: bool


def rounded_up(wait: float) -> int:
    """Return the milliseconds of a wait in seconds, with which whole seconds are rounded up."""
    return math.ceil(wait * 1000) + (999 if wait > 0 else 0)


def refusal(lease: Lease, row: RowMapping | None, uncertain: bool) -> ScheduleError:
    """Return why the run of `lease` cannot be settled, `row` being what is there instead.

    `uncertain`: an attempt, of this call or of one before, had no answer, and the row does not show what it did.
    """
    if row is None:
        return IdempotentNotFoundError(f"{lease.key!r}: the row is gone")
    if uncertain:
        return OutcomeUnknownError(
            f"{lease.key!r}: the connection was lost while this run was being settled, and another worker has "
            "acquired the row since; whether it was settled cannot be found out"
        )
    return PreemptedError(f"{lease.key!r}: the lease of this run is lost; another worker has acquired the row since")


def shows(row: RowMapping, outcome: Mapping[str, Any] | None) -> bool:
    """Return whether a row holds what a settled run has left there."""
    return outcome is not None and all(row[name] == value for name, value in outcome.items())
