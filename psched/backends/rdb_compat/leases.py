"""Leases in the originals' table, where holding a row means having written its timeout. Used in children and clients.

The fence is the occurrence and the timeout that was written last: whoever takes the row writes a later timeout, and
whoever finishes it a later occurrence. Until a lease ends nobody else writes the row; so what a renewal without an
answer has left there is ours.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import groupby
from operator import attrgetter
from typing import Any

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
    select,
    update,
)

from psched.backends.rdb_compat.fences import Fence, Settled, refusal, rounded_up, shows
from psched.clock import boottime
from psched.dialects.base import now_ms
from psched.dialects.database import Database
from psched.errors import IdempotentAlreadyFinishedError, NotSupportedError, ScheduleError
from psched.model import Lease, Retry

_WAIT = attrgetter("wait")
_TOGETHER = 500
"""Rows that are put off by one statement, at the most."""


class CompatLeases:
    """The leases of one process on one table. Safe to use from several threads."""

    def __init__(self, database: Database, table: Table, occurrence: ColumnElement[Any]) -> None:
        """`occurrence`: what of a row is another number once its run is finished."""
        self._database = database
        self._table = table
        self.occurrence = occurrence.label("occurrence")
        self._lock = threading.Lock()
        self._unanswered: dict[Lease, float] = {}
        self._write_statements()

    def acquire(self, limit: int, alive_time: float) -> list[tuple[Mapping[Any, Any], Lease]]:
        """Lease up to `limit` due rows, earliest first. When the answer is lost, these leases end by themselves."""
        values = {"limit": limit, "alive": math.ceil(alive_time)}

        def work(connection: Connection, uncertain: bool) -> Sequence[RowMapping]:
            with self._database.transaction(connection):
                rows = self._choose(connection, values)
                if rows:
                    keys = [row["id"] for row in rows]
                    connection.execute(self._renew, {"keys": keys, "end": rows[0]["lease_end"]})
            return rows

        return [self._claimed(row) for row in self._database.run(work)] if limit > 0 else []

    def next_due(self, types: Collection[str] | None) -> float | None:
        """Return in how many seconds the earliest row is due, None when there is none."""
        if types is not None:
            raise NotSupportedError("rdb_compat cannot look for rows of some types only; type: rdb can")
        wait = self._database.run(lambda connection, _: connection.execute(self._wait).scalar())
        return None if wait is None else max(0.0, wait / 1000)

    def is_cancelled(self, row: Mapping[Any, Any]) -> bool:
        """Tell whether the row says that its run is to be cancelled."""
        return False

    def extend(self, leases: Sequence[Lease], alive_time: float) -> list[Lease | None]:
        """Make each lease end `alive_time` seconds from now; None for those that are lost."""
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
        """Make the row due now."""
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
                    connection.execute(self._put_off, {"keys": [lease.key for lease in held], "wait": rounded_up(wait)})
            done = held | {one for one in leases if uncertain and one.key in rows and fences[one].lasts(rows[one.key])}
            return {lease: Settled(lease in done, rows.get(lease.key)) for lease in leases}

        settled = self._database.run(work, until)
        self._forget(leases)
        return {lease: None if done else refusal(lease, row) for lease, (done, row) in settled.items()}

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
        before. Raises PreemptedError, IdempotentNotFoundError, IdempotentAlreadyFinishedError.
        """
        fence = self._present_fence(lease, until)
        parameters = {"lease_key": lease.key, "seen_timeout": fence.timeout, "seen_occurrence": fence.occurrence}

        def work(connection: Connection, uncertain: bool) -> Settled:
            if self._database.execute_with(connection, statement, {**parameters, **values}, also):
                return Settled(True, None)
            row = connection.execute(self._read, {"lease_key": lease.key}).mappings().first()
            if row is None or fence.holds(row) or not uncertain:
                return Settled(False, row)
            return Settled(fence.lasts(row) or shows(row, outcome), row)

        done, row = self._database.run(work, until)
        self._forget([lease])
        if done:
            return None
        if row is not None and fence.holds(row):
            return row
        if row is not None and shows(row, outcome):
            raise IdempotentAlreadyFinishedError(f"{lease.key!r}: this occurrence was finished before")
        raise refusal(lease, row)

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

    def _choose(self, connection: Connection, values: Mapping[str, Any]) -> Sequence[RowMapping]:
        """Return the rows to be leased, locked, with `lease_end`."""
        return connection.execute(self._due, values).mappings().all()

    def _claimed(self, row: RowMapping) -> tuple[Mapping[Any, Any], Lease]:
        fence = Fence.in_row(row).until(row["lease_end"])
        return {**row, "timeout": row["lease_end"]}, fence.lease(row["id"], self.is_cancelled(row))

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
        self._seen = [*c, self.occurrence, now.label("now")]
        due = select(*self._seen, lease_end).where(c.timeout <= now).order_by(c.timeout, c.id)
        self._due = due.limit(bindparam("limit")).with_for_update(skip_locked=True)
        of_lease = [c[name] for name in ("id", "timeout", "created_at") if name in c]
        self._locked = select(*of_lease, self.occurrence, now.label("now"), lease_end).where(of_keys).with_for_update()
        self._wait = self._waiting()
        self._renew = update(self._table).where(of_keys).values(timeout=bindparam("end"))
        self._read = select(*self._seen).where(c.id == bindparam("lease_key"))
        self._release = self.settling(timeout=now)
        later = seconds(now_ms() + bindparam("wait", type_=BigInteger))
        self._retry = self.settling(timeout=later)
        self._put_off = update(self._table).where(of_keys).values(timeout=later)

    def _waiting(self, *can_be_due: ColumnElement[bool]) -> Select[Any]:
        """Return the SELECT of the milliseconds until the first row is due of those that `can_be_due`."""
        c = self._table.c
        first = select(c.timeout).where(*can_be_due).order_by(c.timeout).limit(1).scalar_subquery()
        return select(cast(first, BigInteger) * 1000 - now_ms())


def seconds(milliseconds: ColumnElement[int]) -> ColumnElement[int]:
    """Return whole seconds in SQL, rounded down."""
    return cast(milliseconds // 1000, BigInteger)
