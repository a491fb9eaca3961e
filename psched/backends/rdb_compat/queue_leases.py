"""Leases on PerfectQueue's table: its order of acquiring, its way to finish. Used in children and clients."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    Integer,
    RowMapping,
    Select,
    Table,
    bindparam,
    case,
    func,
    null,
    select,
    update,
)

from psched.backends.rdb_compat.fences import refusal
from psched.backends.rdb_compat.leases import CompatLeases, seconds
from psched.backends.rdb_compat.table_lock import TableLock
from psched.backends.rdb_compat.tables import read_task
from psched.backends.sql.pages import ByKeys
from psched.dialects.base import now_ms
from psched.dialects.database import Database
from psched.errors import IdempotentAlreadyFinishedError, ScheduleError
from psched.model import Lease
from psched.store import StoreSettings

RETIRED = 1_000_000_000
"""Seconds by which the timeouts of finished rows lie back."""

_BATCH = 500
"""Rows finished by one transaction, to keep it short."""

FIRST_TIMEOUT = 1_300_000_000
"""Rows with this timeout or an earlier one are not acquired by anybody."""


class CompatQueueLeases(CompatLeases):
    """Rows of one queue. The occurrence is whether a row is finished, which is all that a finish leaves for sure."""

    def __init__(self, database: Database, table: Table, settings: StoreSettings) -> None:
        """`settings`: whether users are limited at all, and whether claims are made one at a time."""
        self._is_limited = not settings.disable_resource_limit
        is_shared = not (settings.disable_resource_limit and settings.use_connection_pooling)
        self._lock_of_table = (
            TableLock(database, table.name) if is_shared and database.dialect.name == "mysql" else None
        )
        read = partial(read_task, max_data_size=settings.max_data_size)
        super().__init__(database, table, case((table.c.created_at.is_(None), 1), else_=0), read)

    def alone(self, connection: Connection) -> AbstractContextManager[bool]:
        """Hold the lock that Ruby workers hold while they claim."""
        return nullcontext(True) if self._lock_of_table is None else self._lock_of_table.held(connection)

    def is_cancelled(self, row: Mapping[Any, Any]) -> bool:
        """Tell whether somebody has set the time of creation to 0."""
        return bool(row["created_at"] == 0)

    def retire_many(self, leases: Sequence[Lease], retention: int, until: float) -> list[ScheduleError | None]:
        """Finish the runs under `leases`, some hundreds in one transaction; see `TaskStore.retire_many`."""
        found: list[ScheduleError | None] = []
        for start in range(0, len(leases), _BATCH):
            part = leases[start : start + _BATCH]
            found += self._database.run(partial(self._retire_many, part, retention), until)
        self._forget(leases)
        return found

    def _retire_many(
        self, leases: Sequence[Lease], retention: int, connection: Connection, uncertain: bool
    ) -> list[ScheduleError | None]:
        """Look at the rows, locked, and finish those that are still ours."""
        keys = {"keys": [lease.key for lease in leases], "alive": 0}
        with self._database.transaction(connection):
            rows = {row["id"]: row for row in connection.execute(self._locked, keys).mappings()}
            held = [lease.key for lease in leases if self._present(lease, rows.get(lease.key), uncertain) is not None]
            if held:
                connection.execute(self._retire_keys, {"keys": held, "retention": retention})
        taken = set(held)
        return [
            None if lease.key in taken else self._refusal(lease, rows.get(lease.key), uncertain) for lease in leases
        ]

    def _refusal(self, lease: Lease, row: RowMapping | None, uncertain: bool) -> ScheduleError | None:
        """Return why a run was not finished; None when an attempt whose answer was lost has done it."""
        if row is None or row["created_at"] is not None:  # so it is not finished, whatever had no answer
            return refusal(lease, row, uncertain=False)
        return None if uncertain else IdempotentAlreadyFinishedError(f"{lease.key!r}: this run was finished before")

    def _choose(self, connection: Connection, values: Mapping[str, Any]) -> Sequence[RowMapping]:
        """Return the rows to be leased: by weight, then by due time, and no more of a resource than may run."""
        running: Counter[str] = Counter()
        keys = []
        for row in self._first_candidates(connection, values["limit"]):
            resource, most = row["resource"], row["max_running"]
            is_limited = resource is not None and isinstance(most, int)  # SQLite keeps whatever somebody writes
            if is_limited and row["running"] + running[resource] >= most:
                continue
            running[resource] += 1
            keys.append(row["id"])
        return self._take(connection, keys, values)

    def _places(self, connection: Connection, count: int) -> list[tuple[Any, int]]:
        return [(row["id"], row["timeout"]) for row in self._first_candidates(connection, count)]

    def _first_candidates(self, connection: Connection, count: int) -> Sequence[RowMapping]:
        """Return the first `count` candidates that are not known to be foreign."""
        rows = connection.execute(self._candidates, {"limit": count + len(self._foreign)}).mappings().all()
        return [row for row in rows if not self._foreign.has(row["id"], row["timeout"])][:count]

    def _write_statements(self) -> None:
        super()._write_statements()
        c = self._table.c
        now = seconds(now_ms())
        is_live = (c.timeout > FIRST_TIMEOUT, c.created_at.is_not(None))
        is_due = (*is_live, c.timeout <= now)
        self._wait = self._waiting(*is_live)
        lease_end = (seconds(now_ms() + 999) + bindparam("alive", type_=Integer)).label("lease_end")
        self._candidates = self._due_in_turn(now, is_due) if self._is_limited else self._due_by_time(is_due)
        still_due = (c.timeout + 0 > FIRST_TIMEOUT, c.created_at.is_not(None), c.timeout + 0 <= now)
        still_due_rows = select(*self._seen, lease_end).where(*still_due).with_for_update(skip_locked=True)
        self._lock_due = ByKeys(still_due_rows, c.id)
        self._all_places, self._all_places_after = self._pages_of_places(*is_live)
        self._retired = {
            "timeout": seconds(now_ms()) - RETIRED + bindparam("retention", type_=Integer),
            "created_at": None,
            "resource": None,
        }
        self.retire = self.settling(**self._retired)
        of_keys = c.id.in_(bindparam("keys", expanding=True))
        self._retire_keys = update(self._table).where(of_keys).values(self._retired)
        self.update_data = self.settling(data=bindparam("content"))

    def _due_in_turn(self, now: ColumnElement[int], is_due: Sequence[ColumnElement[bool]]) -> Select[Any]:
        """Return the due rows whose resource may have one more running, those first of whom the fewest are."""
        c = self._table.c
        t = self._table.alias("others")
        held = (
            select(t.c.resource, func.count().label("running"))
            .where(t.c.timeout > now, t.c.created_at.is_not(None), t.c.resource.is_not(None))
            .group_by(t.c.resource)
            .subquery()
        )
        running = func.coalesce(held.c.running, 0)
        weight = func.coalesce(c.max_running, 1) * 1.0 / (running + 1)
        return (
            select(c.id, c.timeout, c.resource, c.max_running, running.label("running"))
            .select_from(self._table.outerjoin(held, c.resource == held.c.resource))
            .where(*is_due, (c.max_running.is_(None)) | (c.resource.is_(None)) | (c.max_running > running))
            .order_by(weight.desc(), c.timeout, c.id)
            .limit(bindparam("limit"))
        )

    def _due_by_time(self, is_due: Sequence[ColumnElement[bool]]) -> Select[Any]:
        """Return the due rows without regard to their users."""
        c = self._table.c
        nobody = [null().label(name) for name in ("resource", "max_running", "running")]
        due = select(c.id, c.timeout, *nobody).where(*is_due)
        return due.order_by(c.timeout, c.id).limit(bindparam("limit"))

    @property
    def retired(self) -> dict[str, Any]:
        """The columns of a row that is finished now, its key to be kept for :retention seconds."""
        return self._retired
