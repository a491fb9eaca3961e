"""Queue tasks in PerfectQueue's table. Used in children and clients."""

from __future__ import annotations

import builtins
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

from sqlalchemy import Connection, Integer, MetaData, RowMapping, Update, bindparam, case, delete, select, update

from psched.backends.rdb_compat.fences import Fence
from psched.backends.rdb_compat.leases import seconds
from psched.backends.rdb_compat.queue_leases import FIRST_TIMEOUT, RETIRED, CompatQueueLeases
from psched.backends.rdb_compat.store import CompatLeaseStore
from psched.backends.rdb_compat.tables import check_text, data_column, queue_table, read_task, whole_seconds
from psched.backends.sql.layout import Layout
from psched.backends.sql.pages import pages_by_key
from psched.dialects.base import now_ms
from psched.dialects.database import Database
from psched.errors import AlreadyFinishedError, IdempotentNotFoundError, NotFoundError, NotSupportedError, ScheduleError
from psched.model import Claim, NewTask, TaskFilter, TaskRow
from psched.store import StoreSettings

_LASTING = ("created_at", "data", "resource", "max_running")
"""What of a row no run of psched changes: by this a row is told from a later one of the same key."""


class CompatTaskStore(CompatLeaseStore):
    """`TaskStore` on a table that Ruby clients and workers may share."""

    _leases: CompatQueueLeases

    def __init__(self, database: Database, table: str, settings: StoreSettings) -> None:
        """Connects to nothing yet. Raises ConfigError for a name that cannot be a table's."""
        self.max_data_size = settings.max_data_size
        self._table = queue_table(MetaData(), table)
        leases = CompatQueueLeases(database, self._table, settings)
        super().__init__(database, Layout(database, self._table, "id", "PerfectQueue"), leases)
        self._write_statements()

    def submit(self, tasks: Sequence[NewTask], connection: Any = None) -> builtins.list[str]:
        """Create tasks and return the keys that existed before."""
        rows = [self._columns(task) for task in tasks]
        if connection is not None:
            own = self._database.of_caller(connection)
            return [row["id"] for row in rows if not self._insert(own, row)]

        def work(own: Connection, uncertain: bool) -> builtins.list[str]:
            with self._database.transaction(own):
                present = [row for row in rows if not self._insert(own, row)]
            return [row["id"] for row in present if not (uncertain and self._is_there(own, row))]

        return self._database.run(work)

    def get(self, key: str) -> TaskRow | None:
        """Return the task, or None."""
        row = self._database.run(lambda connection, _: self._row(connection, key))
        return None if row is None else read_task(row, self.max_data_size)

    def list(self, wanted: TaskFilter) -> Iterator[TaskRow]:
        """Yield the tasks that pass the filter, ordered by key, a page at a time."""
        c = self._table.c
        conditions = [] if wanted.user is None else [c.resource == wanted.user]
        for row in pages_by_key(self._database, self._seen, c.id, *conditions):
            task = read_task(row, self.max_data_size)
            if wanted.status in (None, task.status) and wanted.type in (None, task.type):
                yield task

    def retire(self, claim: Claim, status: str, error: str | None, retention: float | None, until: float) -> None:
        """Finish the claimed run; in this table a cancelled one is finished too, and none fails for good."""
        if retention is None:
            raise NotSupportedError(f"{claim.row.key!r}: rdb_compat does not keep failed tasks; type: rdb does")
        values = {"retention": math.ceil(retention)}
        self._leases.settle(claim.lease, self._leases.retire, values, until, {"created_at": None})

    def retire_many(
        self, claims: Sequence[Claim], status: str, retention: float | None, until: float
    ) -> builtins.list[ScheduleError | None]:
        """Finish claimed runs, some hundreds in one transaction."""
        if retention is None:
            raise NotSupportedError("rdb_compat does not keep failed tasks; type: rdb does")
        return self._leases.retire_many([claim.lease for claim in claims], math.ceil(retention), until)

    def update_data(self, claim: Claim, data: Mapping[str, Any], until: float) -> None:
        """Write the whole data of a claimed row, with its type, compressed if it was."""
        row = cast("TaskRow", claim.row)
        content = data_column(row.type, data, self.max_data_size, row.compression is not None)
        self._leases.settle(claim.lease, self._leases.update_data, {"content": content}, until)

    def cancel_request(self, key: str, retention: float) -> None:
        """Flag the task, for psched's workers to retire it; Ruby's newer workers run it all the same."""
        self._act(key, self._cancel, {})

    def force_finish(self, key: str, retention: float) -> None:
        """Retire the task as finished, whoever holds it."""
        self._act(key, self._force_finish, {"retention": math.ceil(retention)})

    def preempt(self, key: str, alive_time: float) -> Claim:
        """Lease the task, whoever holds it."""
        values = {"task_key": key, "alive": math.ceil(alive_time)}

        def work(connection: Connection, uncertain: bool) -> tuple[bool, RowMapping | None]:
            with self._leases.alone(connection) as may_claim:
                if not may_claim:
                    return False, None
                with self._database.transaction(connection):
                    connection.execute(self._preempt, values)
                    return True, self._row(connection, key)

        done, row = self._database.run(work)
        if not done:
            raise ScheduleError(f"{key!r}: other workers hold the table's lock for claims too long; try again")
        if row is None or row["created_at"] is None:
            raise _refusal(key, row)
        return Claim(read_task(row, self.max_data_size), Fence.in_row(row).lease(key, self._leases.is_cancelled(row)))

    def retry_failed(self, key: str) -> None:
        """Refuse: in this table no task fails for good."""
        raise NotSupportedError(f"{key!r}: rdb_compat does not keep failed tasks; type: rdb does")

    def delete(self, key: str) -> None:
        """Delete the task, leased or not. Raises IdempotentNotFoundError."""
        seen: RowMapping | None = None

        def work(connection: Connection, uncertain: bool) -> bool:
            nonlocal seen
            row = self._row(connection, key)
            if row is None:
                return uncertain and seen is not None
            if uncertain and seen is not None and any(row[name] != seen[name] for name in _LASTING):  # created since
                return True
            seen = row
            return connection.execute(self._delete, {"keys": [key]}).rowcount == 1 or uncertain

        if not self._database.run(work):
            raise IdempotentNotFoundError(f"no task has the key {key!r}")

    def purge(self, limit: int) -> int:
        """Delete up to `limit` finished tasks whose retention is over."""

        def work(connection: Connection, uncertain: bool) -> int:
            keys = connection.execute(self._over, {"limit": limit}).scalars().all()
            done: int = connection.execute(self._purge, {"keys": keys}).rowcount if keys else 0
            return done

        return self._database.run(work)

    def _columns(self, task: NewTask) -> dict[str, Any]:
        """Return the row of a new task. Raises NotSupportedError, ValueError for what does not fit into the table."""
        if task.priority != 0 or task.max_attempts is not None:
            raise NotSupportedError("rdb_compat keeps neither priority nor max_attempts; type: rdb does")
        check_text("key", task.key)
        check_text("user", task.user)
        now = seconds(now_ms())
        due = None if task.run_at is None else max(whole_seconds("run_at", task.run_at), FIRST_TIMEOUT + 1)
        return {
            "id": task.key,
            "timeout": now if due is None else due,
            "data": data_column(task.type, task.data, self.max_data_size, task.compression is not None),
            "created_at": now,
            "resource": task.user,
            "max_running": task.max_running,
            "owner": 0,
        }

    def _insert(self, connection: Connection, row: Mapping[str, Any]) -> bool:
        return self._database.dialect.insert_one(connection, self._table, row)

    def _is_there(self, connection: Connection, wanted: Mapping[str, Any]) -> bool:
        """Tell whether the row is one that an attempt whose answer was lost may have written."""
        row = self._row(connection, wanted["id"])
        return row is not None and bytes(row["data"]) == wanted["data"] and row["resource"] == wanted["resource"]

    def _act(self, key: str, statement: Update, values: Mapping[str, Any]) -> None:
        """Change the row of a task that is not finished. Raises NotFoundError, AlreadyFinishedError."""

        def work(connection: Connection, uncertain: bool) -> tuple[bool, RowMapping | None]:
            if connection.execute(statement, {"task_key": key, **values}).rowcount == 1:
                return True, None
            row = self._row(connection, key)
            return uncertain and row is not None and row["created_at"] is None, row

        done, row = self._database.run(work)
        if not done:
            raise _refusal(key, row)

    def _row(self, connection: Connection, key: str) -> RowMapping | None:
        """Return the row of this very key: in the originals' collation `a` finds `A` too."""
        row = connection.execute(self._read, {"task_key": key}).mappings().first()
        return row if row is not None and row["id"] == key else None

    def _write_statements(self) -> None:
        c = self._table.c
        now = seconds(now_ms())
        self._seen = select(*c, self._leases.occurrence, now.label("now"))
        self._read = self._seen.where(c.id == bindparam("task_key"))
        live = update(self._table).where(c.id == bindparam("task_key"), c.created_at.is_not(None))
        self._cancel = live.values(created_at=0)
        self._force_finish = live.values(self._leases.retired)
        end = now + bindparam("alive", type_=Integer)
        self._preempt = live.values(timeout=case((c.timeout == end, end + 1), else_=end))  # another fence in any case
        over = (c.timeout <= now - RETIRED, c.created_at.is_(None))
        self._delete = delete(self._table).where(c.id.in_(bindparam("keys", expanding=True)))
        self._over = select(c.id).where(*over).order_by(c.timeout).limit(bindparam("limit"))
        self._purge = self._delete.where(*over)


def _refusal(key: str, row: RowMapping | None) -> NotFoundError | AlreadyFinishedError:
    if row is None:
        return NotFoundError(f"no task has the key {key!r}")
    return AlreadyFinishedError(f"{key!r} is finished already")
