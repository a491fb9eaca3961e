"""The SQL of queue tasks besides their leases, built once per table. Any process."""

from __future__ import annotations

from typing import Any

from sqlalchemy import BigInteger, ColumnElement, Table, Update, bindparam, case, delete, func, null, select, update

from psched.backends.rdb.statements import LeaseStatements, after, begun_attempts, next_fence
from psched.backends.rdb.tables import CANCELLED, FAILED, FINISHED, RUNNING, USER_BAND, WAITING
from psched.dialects.base import now_ms, now_once
from psched.dialects.given import Compiled

_NOW = now_ms()
"""The clock of a statement on one row; those on many take `now_once`."""


class QueueStatements:
    """The statements on one queue.

    Parameters: :task_key, :task_nonce, :keys, :users, :retention and :alive (milliseconds), …
    """

    def __init__(self, leases: LeaseStatements, table: Table, users: Table) -> None:
        c = self._c = table.c
        self._table = table
        of_keys = c.key.in_(bindparam("keys", expanding=True))
        kept = func.coalesce(bindparam("error", type_=c.last_error.type), c.last_error)
        made = bindparam("attempts_made", type_=c.attempts.type)
        outcome = bindparam("outcome", type_=c.status.type)
        self.retire = Compiled(
            leases.settling(outcome, status=outcome, last_error=kept, attempts=made, **self._retired())
        )
        self.retire_many = leases.settling_many(outcome, status=outcome, **self._retired(now_once()))
        self.update_data = (
            update(table)
            .where(*leases.under_lease)
            .values(data=bindparam("content"), size=bindparam("content_size"), updated=now_ms())
        )
        self.cancel = self._of_one(WAITING).values(status=CANCELLED, cancel_requested=1, **self._retired())
        self.flag = self._of_one(RUNNING).values(cancel_requested=1, updated=now_ms())
        self.force_finish = self._of_one(WAITING, RUNNING).values(
            status=FINISHED, holder=None, fence=next_fence(table), **self._retired()
        )
        self.preempt = self._preempting()
        self.revive = self._reviving()
        self.delete = delete(table).where(*self._this())
        kept_too_long = (c.holder.is_(None), c.purge_at <= now_ms())
        self.over = select(c.key, c.user_name).where(*kept_too_long).order_by(c.purge_at).limit(bindparam("limit"))
        self.purge = delete(table).where(of_keys, c.purge_at <= now_ms())
        self.forget_users = delete(users).where(users.c.user_name.in_(bindparam("users", expanding=True)))

    def _of_one(self, *statuses: str) -> Update:
        return update(self._table).where(*self._this(), self._c.status.in_(statuses))

    def _this(self) -> tuple[ColumnElement[bool], ...]:
        """Return the conditions of the row :task_key that the call with the number :task_nonce has created."""
        return self._c.key == bindparam("task_key"), self._c.nonce == bindparam("task_nonce")

    def _retired(self, now: ColumnElement[int] = _NOW) -> dict[str, Any]:
        """Return the columns of a row that is retired now; its key goes after :retention, if that is not NULL."""
        return {
            "due": null(),
            "band": null(),
            "finished_at": now,
            "purge_at": now + bindparam("retention", type_=BigInteger),
            "updated": now,
        }

    def _preempting(self) -> Update:
        """Lease the row to :claimer. MariaDB reads what was assigned before, so that `ready` comes first."""
        c = self._c
        return self._of_one(WAITING, RUNNING).ordered_values(
            (c.ready, now_ms()),
            (c.due, after("alive")),
            (c.attempts, begun_attempts(self._table)),
            (c.taken_ahead, 0),
            (c.status, RUNNING),
            (c.fence, next_fence(self._table)),
            (c.claim, bindparam("claim_number")),
            (c.holder, bindparam("claimer")),
            (c.node, bindparam("claimer")),
            (c.updated, now_ms()),
        )

    def _reviving(self) -> Update:
        c = self._c
        with_user = case((c.user_name > "", USER_BAND), else_=0)
        return self._of_one(FAILED, CANCELLED).values(
            status=WAITING,
            due=now_ms(),
            band=c.priority + with_user,
            attempts=0,
            crashes=0,
            cancel_requested=0,
            fence=next_fence(self._table),
            finished_at=None,
            purge_at=None,
            updated=now_ms(),
        )
