"""The tasks of a queue in `rdb`: created by `submit`, finished by `retire`."""

from __future__ import annotations

import builtins
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from operator import itemgetter
from typing import Any, cast

import sqlalchemy as sa

from psched.backends.common.batches import retired_together
from psched.backends.common.rows import (
    BATCH,
    RUNNING,
    TASK_CANCELLED,
    TASK_FAILED,
    TASK_FINISHED,
    WAITING,
    claimed_task,
    milliseconds,
    read_outcome,
    read_task,
    storable,
)
from psched.backends.rdb.acquire_combiner import AcquireCombiner
from psched.backends.rdb.counts import RdbTaskCounts
from psched.backends.rdb.fair_acquire import FairAcquire
from psched.backends.rdb.inserts import RowInserts, task_columns, task_insert
from psched.backends.rdb.lease_statements import LEASE_TYPES, LeaseStatements, constant, next_fence
from psched.backends.rdb.lease_store import RdbLeaseStore, lease_of, new_number, refused
from psched.backends.rdb.schema import (
    USER_BAND,
    has_status,
    has_user,
    queue_table,
    type_condition_and_order,
    user_column,
    users_table,
)
from psched.backends.sql.bulk_statements import BulkUpdate, GivenColumns
from psched.backends.sql.callers_connection import CallersConnections
from psched.backends.sql.compiled_statements import Statement, cached, table_named
from psched.backends.sql.database import Database
from psched.backends.sql.dialect import now_ms
from psched.backends.sql.paging import RowsByKeys, begins_with, read_pages
from psched.errors import AlreadyFinishedError, IdempotentNotFoundError, NotFoundError, ScheduleError
from psched.model import Claim, NewTask, TaskFilter, TaskOutcome, TaskRow, TaskStatus
from psched.payload import pack
from psched.store import AcquireOptions, StoreSettings, TaskStore, only
from psched.store.outbox import task_ended
from psched.store.task_store import check_wanted, not_wanted


class RdbTaskStore(RdbLeaseStore, TaskStore):
    """Stores the tasks of one queue. A second table has a row for each user. Workers lock these rows."""

    _kind = "queue"

    def __init__(self, database: Database, table: str, settings: StoreSettings) -> None:
        """Opens no connection. Raises ConfigError if `table` cannot be the name of a table."""
        tasks = table_named(queue_table, table, database.dialect.partial_indexes)
        users = table_named(users_table, table)
        strategy = FairAcquire(database, tasks, users)
        super().__init__(database, settings, claimed_task, read_task, tasks, users, strategy=strategy)
        self._keeps_endings = settings.keeps_endings
        self._acquire_combiner = AcquireCombiner(super()._acquire)
        self._callers = CallersConnections(database, table)
        self._inserts = RowInserts(database, self._table, cached(task_insert, type(database.dialect), self._table))
        self._statements = cached(QueueStatements, self.lease_statements, self._table, users)

    def _compile(self, connection: sa.Connection, types: Collection[str] | None) -> None:
        super()._compile(connection, types)
        self._statements.retire.prepare(connection)

    def _acquire(self, limit: int, options: AcquireOptions, callers: int = 1) -> builtins.list[Claim]:
        return self._acquire_combiner.acquire(limit, options._replace(accepts=None))

    @property
    def reads(self) -> RdbTaskCounts:
        return RdbTaskCounts(self._database, self._table, self._due_times)

    def submit(self, tasks: Sequence[NewTask], connection: Any = None) -> builtins.list[str]:
        rows = [task_columns(task, self.max_data_size) for task in tasks]
        if connection is None:
            return self._inserts.insert(rows)
        return self._callers.run(connection, lambda own: self._inserts.steps(own, rows))

    async def submit_async(self, tasks: Sequence[NewTask], connection: Any) -> builtins.list[str]:
        rows = [task_columns(task, self.max_data_size) for task in tasks]
        return await self._callers.run_async(connection, lambda own: self._inserts.steps(own, rows))

    def submit_sql(self, task: NewTask, paramstyle: str | None = None) -> tuple[str, Any]:
        row = task_columns(task, self.max_data_size)
        return self._callers.sql(paramstyle, lambda own: self._inserts.sql(own, row))

    def list(self, wanted: TaskFilter) -> Iterator[TaskRow]:
        c = self._table.c
        conditions: builtins.list[sa.ColumnElement[bool]] = []
        same: Sequence[sa.ColumnElement[Any]] = ()
        if wanted.type is not None:
            value = sa.literal(wanted.type, c.type.type)
            of_type, same = type_condition_and_order(type(self._database.dialect), self._table, value)
            conditions.append(of_type)
        if wanted.user is not None:
            conditions.append(c.user_name == wanted.user)
        of_index = None  # conditions that the index by type or by user can check by itself
        if wanted.status is not None:
            conditions += has_status(self._table, wanted.status)
        if wanted.prefix is not None:
            conditions.append(begins_with(c.key, wanted.prefix))
        if wanted.late is not None:
            conditions += (*has_status(self._table, WAITING), c.due <= now_ms() - milliseconds(wanted.late))
        if wanted.user is not None and (wanted.status == WAITING or wanted.late is not None):
            bands = self._database.run(lambda connection, _: self._due_times.bands(connection))
            # the columns with which the index by user begins
            of_user = (has_user(self._table), user_column(self._table, "band").in_(bands))
            conditions += of_user
            if wanted.type is None and wanted.late is None:
                of_index = [c.user_name == wanted.user, *of_user]
        after = () if wanted.after is None else (wanted.after,)
        order: Sequence[sa.ColumnElement[Any]] = ()
        if wanted.type is not None and wanted.user is None and wanted.status == WAITING:
            order = (*same, c.band, c.due, c.key)
            of_index = [conditions[0], c.band.is_not(None)] if wanted.late is None else None
        if wanted.prefix is not None and of_index is not None:
            of_index.append(begins_with(c.key, wanted.prefix))
        is_ordered = wanted.status in (TASK_FAILED, TASK_CANCELLED) and wanted.late is None
        rows = read_pages(
            self._database, sa.select(*c), c.key, None, conditions, after, wanted.page, order, of_index, is_ordered
        )
        return map(self._read, rows)

    def long_due(self, age: float, limit: int) -> builtins.list[TaskRow]:
        values = {"age": milliseconds(age), "limit": limit}

        def work(connection: sa.Connection, _: bool) -> builtins.list[Sequence[Any]]:
            bands = self._due_times.bands(connection)
            statement = cached(_long_due, self._table, bands)
            return [*statement.rows(connection, values)] if bands else []

        found = sorted(self._database.run(work), key=itemgetter(0))[:limit]
        rows = RowsByKeys(sa.select(*self._table.c), self._table.c.key)
        return [self._read(row) for row in rows.read(self._database, [key for _, key in found])]

    def retire_many(
        self,
        claims: Sequence[Claim],
        status: TaskStatus,
        retention: float | None,
        until: float,
        error: str | None = None,
    ) -> builtins.list[ScheduleError | None]:
        values = {"outcome": status, "retention": _milliseconds(retention), "error": storable(error)}
        retire = self._statements.retire
        answers: builtins.list[ScheduleError | None] = []
        is_recorded = self._keeps_endings or (status == TASK_FAILED and self._keeps_failures)
        for part in retired_together(claims):
            if is_recorded:
                for start in range(0, len(part), BATCH):
                    answers += self._retire_and_record(part[start : start + BATCH], status, values, until)
            else:
                leases, rows = [claim.lease for claim in part], [_ending(claim) for claim in part]
                answers += self._settle_many(retire, status, leases, until, rows, values)
        return answers

    def _retire_and_record(
        self,
        claims: Sequence[Claim],
        status: TaskStatus,
        values: Mapping[str, Any],
        until: float,
        uncertain: bool = False,
    ) -> builtins.list[ScheduleError | None]:
        """Retire claims, and insert their events and failures, in one transaction.

        If a claim is refused, retire the claims one by one. `uncertain`: whether an attempt whose answer was lost may
        have retired the claims.
        """
        leases, rows = [claim.lease for claim in claims], [_ending(claim) for claim in claims]
        values = {**values, "lease_holder": self._holder}

        def settle(connection: sa.Connection) -> int:
            retire = partial(self._statements.retire.execute, connection, rows, values)
            record = partial(self._record, connection, claims, status, values["error"])
            return len(claims) if self._database.change_rows(connection, len(claims), retire, record) else 0

        found, uncertain = self._settle(leases, settle, status, until, uncertain)
        if not found:
            return [None] * len(claims)
        answers: builtins.list[ScheduleError | None] = []
        for claim, answer in zip(claims, found, strict=True):
            if len(claims) > 1 and isinstance(answer, sa.RowMapping):  # another claim was refused
                answers += self._retire_and_record([claim], status, values, until, uncertain)
            else:
                answers.append(refused(claim.lease, answer))
        return answers

    def _record(
        self, connection: sa.Connection, claims: Sequence[Claim], status: TaskStatus, error: str | None
    ) -> None:
        if self._keeps_endings:
            events = [
                task_ended(cast("TaskRow", claim.row), status, error, self._holder, claim.lease.fence)
                for claim in claims
            ]
            self.outbox.insert(connection, events)
        if status == TASK_FAILED and self._keeps_failures:
            for claim in claims:
                self.failures.insert(claim, error)(connection)

    def update_data(self, claim: Claim, data: Mapping[str, Any], until: float) -> None:
        is_compressed = cast("TaskRow", claim.row).compression is not None
        text, size = pack(dict(data), is_compressed, self.max_data_size)
        values = {"content": text, "content_size": size}
        only(self._settle_many(self._statements.update_data, None, [claim.lease], until, values=values))

    def update_progress(self, claim: Claim, progress: str, until: float) -> None:
        values = {"content": progress}
        only(self._settle_many(self._statements.update_progress, None, [claim.lease], until, values=values))

    def outcomes(self, keys: Sequence[str]) -> Mapping[str, TaskOutcome]:
        rows = self._database.rows(self._statements.outcomes, {"keys": keys})
        return {row["key"]: read_outcome(row) for row in rows}

    def cancel_request(self, key: str, retention: float, wanted: TaskFilter | None = None) -> None:
        of_waiting, of_running = self._statements.cancel, self._statements.flag
        tries = (of_waiting, of_running, of_waiting)  # a running task may be released between two statements
        values = {"retention": _milliseconds(retention)}
        self._act(key, tries, values, lambda _, row: row["status"] == TASK_CANCELLED, TASK_CANCELLED, wanted)

    def force_finish(self, key: str, retention: float) -> None:
        values = {"retention": _milliseconds(retention)}
        self._act(
            key, [self._statements.force_finish], values, lambda _, row: row["status"] == TASK_FINISHED, TASK_FINISHED
        )

    def preempt(self, key: str, alive_time: float) -> Claim:
        number = new_number()
        values = {"alive": math.ceil(alive_time * 1000), "claim_number": number, "claimer": self._holder}
        self._act(key, [self._statements.preempt], values, lambda _, row: row["claim"] == number)
        row = self._database.run(lambda connection, _: self._row(connection, key))
        if row is None or row["claim"] != number or row["due"] is None:
            raise NotFoundError(f"{key!r} was acquired, finished or deleted by another process meanwhile; try again")
        return Claim(self._read(row), lease_of(row))

    def retry_failed(self, key: str, wanted: TaskFilter | None = None) -> None:
        statements = [self._statements.revive]
        self._act(key, statements, {}, lambda seen, row: row["fence"] != seen["fence"], wanted=wanted)

    def delete(self, key: str, wanted: TaskFilter | None = None) -> None:
        seen = self._database.run(lambda connection, _: self._row(connection, key))
        if seen is None:
            raise IdempotentNotFoundError(f"no task has the key {key!r}")
        values = {"task_key": key, "task_nonce": seen["nonce"], "task_status": self._status(seen, wanted)}

        def work(connection: sa.Connection, uncertain: bool) -> bool:
            if connection.execute(self._statements.delete, values).rowcount == 1:
                return True
            row = self._row(connection, key)
            if row is not None and row["nonce"] == seen["nonce"]:
                raise not_wanted(key)
            return uncertain

        if not self._database.run(work):
            raise IdempotentNotFoundError(f"no task has the key {key!r}")

    def purge(self, limit: int) -> int:
        """Delete up to `limit` tasks whose retention is over, and the rows of their users in the table of users."""

        def work(connection: sa.Connection, uncertain: bool) -> int:
            rows = connection.execute(self._statements.over, {"limit": limit}).all()
            if not rows:
                return 0
            done: int = connection.execute(self._statements.purge, {"keys": [key for key, _ in rows]}).rowcount
            users = {user for _, user in rows if user}
            if users:  # the next acquire for such a user inserts the user's row again
                connection.execute(self._statements.forget_users, {"users": sorted(users)})
            return done

        return self._database.run(work)

    def _status(self, seen: sa.RowMapping | None, wanted: TaskFilter | None) -> str | None:
        """Return the status that the row must have at the write. Raises ScheduleError for a wrong type or user."""
        if seen is None or wanted is None:
            return None
        check_wanted(self._read(seen), wanted, status_too=False)
        return wanted.status

    def _act(
        self,
        key: str,
        statements: Sequence[sa.Update],
        values: Mapping[str, Any],
        is_done: Callable[[sa.RowMapping, sa.RowMapping], bool],
        ending: TaskStatus | None = None,
        wanted: TaskFilter | None = None,
    ) -> None:
        """Execute `statements` until one of them changes the row. If no statement does, raise the error of `_refusal`.

        A row that was created after the call began is not changed. `is_done(before, now)`: whether an earlier attempt,
        whose answer was lost, has already changed the row. `ending`: the status with which the statements may end the
        task. `wanted`: see `TaskStore.cancel_request`.
        """
        seen = self._database.run(lambda connection, _: self._row(connection, key))
        nonce = None if seen is None else seen["nonce"]
        parameters = {"task_key": key, "task_nonce": nonce, "task_status": self._status(seen, wanted), **values}

        def work(connection: sa.Connection, uncertain: bool) -> tuple[bool, sa.RowMapping | None]:
            row = self._row(connection, key) if uncertain else seen
            if row is None or seen is None or row["nonce"] != seen["nonce"]:
                return False, None
            if uncertain and is_done(seen, row):
                return True, row
            for statement in statements:
                change = partial(_rowcount, connection, statement, parameters)
                record: builtins.list[Callable[[], object]] = []
                if ending is not None and self._keeps_endings and statement is not self._statements.flag:
                    event = task_ended(self._read(seen), ending, None, self._holder, None)
                    record.append(partial(self.outbox.insert, connection, [event]))
                if self._database.change_rows(connection, 1, change, *record):
                    return True, None
            row = self._row(connection, key)
            return False, None if row is None or row["nonce"] != seen["nonce"] else row

        done, row = self._database.run(work)
        if not done:
            raise _refusal(key, row) if row is None or wanted is None else not_wanted(key)


def _rowcount(connection: sa.Connection, statement: sa.Update, parameters: Mapping[str, Any]) -> int:
    return connection.execute(statement, parameters).rowcount


def _ending(claim: Claim) -> dict[str, Any]:
    """Return the values of a claim for `QueueStatements.retire`."""
    lease, left = claim.lease, claim.result
    return {
        "key": lease.key,
        "fence": lease.fence,
        "claim": lease.claim,
        "attempts": claim.row.attempts,
        "progress": None if left is None else left.progress,
        "result": None if left is None else left.result,
    }


def _milliseconds(retention: float | None) -> int | None:
    return None if retention is None else math.ceil(retention * 1000)


def _refusal(key: str, row: sa.RowMapping | None) -> ScheduleError:
    if row is None:
        return NotFoundError(f"no task has the key {key!r}")
    if row["status"] in (WAITING, RUNNING):
        return ScheduleError(f"{key!r} is {row['status']}; only a failed or cancelled task can be tried again")
    return AlreadyFinishedError(f"{key!r} is {row['status']} already")


def _retired(now: sa.ColumnElement[int]) -> dict[str, Any]:
    """Return the columns of a row that is retired now and kept for :retention milliseconds.

    NULL keeps the row for ever. The progress of an earlier run is deleted.
    """
    return {
        "due": sa.null(),
        "band": sa.null(),
        "progress": sa.null(),
        "finished_at": now,
        "purge_at": now + sa.bindparam("retention", type_=sa.BigInteger),
    }


class QueueStatements:
    """The statements on one queue.

    The parameter :task_nonce is the number of the call that submitted the task. A :task_status of NULL means any
    status. :retention and :alive are milliseconds.
    """

    def __init__(self, leases: LeaseStatements, table: sa.Table, users: sa.Table) -> None:
        c = table.c
        of_keys = c.key.in_(sa.bindparam("keys", expanding=True))
        kept = sa.func.coalesce(sa.bindparam("error", type_=c.last_error.type), c.last_error)
        outcome = sa.bindparam("outcome", type_=c.status.type)

        status = sa.func.coalesce(sa.bindparam("task_status", type_=c.status.type), c.status)
        this = (c.key == sa.bindparam("task_key"), c.nonce == sa.bindparam("task_nonce"), c.status == status)

        def of_one(*statuses: str) -> sa.Update:
            return sa.update(table).where(*this, c.status.in_(statuses))

        def retire(row: GivenColumns, now: sa.ColumnElement[int]) -> sa.Update:
            left = {name: row[name] for name in ("attempts", "progress", "result")}
            return leases.settling(row, now, outcome, status=outcome, last_error=kept, **{**_retired(now), **left})

        def update_data(row: GivenColumns, now: sa.ColumnElement[int]) -> sa.Update:
            return leases.writing(row, now, data=sa.bindparam("content"), size=sa.bindparam("content_size"))

        def update_progress(row: GivenColumns, now: sa.ColumnElement[int]) -> sa.Update:
            return leases.writing(row, now, progress=sa.bindparam("content"))

        left = {name: c[name].type for name in ("attempts", "progress", "result")}
        self.retire = BulkUpdate({**LEASE_TYPES, **left}, retire)
        self.update_data = BulkUpdate(LEASE_TYPES, update_data)
        self.update_progress = BulkUpdate(LEASE_TYPES, update_progress)
        self.outcomes = sa.select(c.key, c.status, c.type, c.last_error, c.result).where(of_keys)
        self.cancel = of_one(WAITING).values(
            status=TASK_CANCELLED, cancel_requested=1, updated=now_ms(), **_retired(now_ms())
        )
        self.flag = of_one(RUNNING).values(cancel_requested=1, updated=now_ms())
        self.force_finish = of_one(WAITING, RUNNING).values(
            status=TASK_FINISHED, holder=None, fence=next_fence(table), updated=now_ms(), **_retired(now_ms())
        )
        self.preempt = leases.leasing(of_one(WAITING, RUNNING), now_ms(), sa.literal_column("0"))
        self.revive = of_one(TASK_FAILED, TASK_CANCELLED).values(
            status=WAITING,
            due=now_ms(),
            band=c.priority + sa.case((c.user_name > "", USER_BAND), else_=0),
            attempts=0,
            crashes=0,
            cancel_requested=0,
            fence=next_fence(table),
            finished_at=None,
            purge_at=None,
            progress=None,
            updated=now_ms(),
        )
        self.delete = sa.delete(table).where(*this)
        kept_too_long = (c.holder.is_(None), c.purge_at <= now_ms())
        self.over = (
            sa.select(c.key, c.user_name).where(*kept_too_long).order_by(c.purge_at).limit(sa.bindparam("limit"))
        )
        # The keys must find the rows. With statistics of no ended task, PostgreSQL would read all ended tasks instead.
        in_no_index = sa.func.coalesce(c.purge_at, now_ms() + constant(1))
        self.purge = sa.delete(table).where(of_keys, in_no_index <= now_ms())
        self.forget_users = sa.delete(users).where(users.c.user_name.in_(sa.bindparam("users", expanding=True)))


def _long_due(tasks: sa.Table, bands: tuple[int, ...]) -> Statement:
    """Return a SELECT of the due times and keys of waiting rows that have been due for at least :age ms.

    It selects the first :limit such rows in each band.
    """
    c, parts = tasks.c, []
    limit = sa.bindparam("limit", type_=sa.Integer, required=True)
    for band in bands:
        wanted = [c.band == sa.literal_column(str(band)), c.due <= now_ms() - sa.bindparam("age", type_=sa.BigInteger)]
        rows = sa.select(c.due, c.key).where(*wanted, c.status == sa.literal_column(f"'{WAITING}'"))
        first = rows.order_by(c.due, c.key).limit(limit).subquery()
        parts.append(sa.select(first.c.due, first.c.key))
    return Statement(sa.union_all(*parts) if parts else sa.select(c.due, c.key).where(sa.false()))
