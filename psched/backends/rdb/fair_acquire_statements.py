"""The SQL of acquiring rows of a queue's users, built once per table."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Integer,
    Select,
    Table,
    and_,
    bindparam,
    case,
    func,
    literal,
    null,
    select,
    union_all,
    update,
)

from psched.backends.common.rows import EXPIRED, RUNNING, WAITING
from psched.backends.rdb.acquire import WantedTypes
from psched.backends.rdb.lease_statements import (
    LeaseStatements,
    TypesShape,
    among_types,
    has_no_run,
    next_fence,
    size_column,
)
from psched.backends.rdb.schema import has_user, has_user_and_type, of_users
from psched.backends.sql.dialect import Dialect, now_ms
from psched.backends.sql.statement import cached

NO_USER = ""
"""The user name of all tasks without user, which together count as one user."""

HAS_ROW = -1
"""A number of tasks that means: the user has a row in the table of users."""

Part = tuple[str, int, WantedTypes]
"""A user, a band, and types whose rows are read together."""


class UserStatements:
    """The statements on one queue and its table of users. Most have :users, a list of names.

    A worker that leases rows of a user holds a lock on the user's row, and changes the row: members of a Galera cluster
    may let two workers have the lock, and refuse the second change.
    """

    def __init__(self, dialect: type[Dialect], table: Table, users: Table) -> None:
        c = table.c
        self._dialect = dialect
        self._table = table
        self.window = cache(self._window)
        self._due: dict[tuple[Any, ...], Select[Any]] = {}
        of_some = users.c.user_name.in_(bindparam("users", expanding=True))
        self.lock = select(users.c.user_name).where(of_some).with_for_update()
        self.lock_free = self.lock.with_for_update(skip_locked=True)
        self.change = update(users).where(of_some).values(version=users.c.version + 1)
        self.insert = dialect.insert_new(users)

        of_user = (has_user(table), c.user_name.in_(bindparam("users", expanding=True)))
        leased = (*of_user, of_users(table).holder > "", c.status == RUNNING)
        is_live = c.due > now_ms()
        live = func.count(case((is_live, 1))).label("live")
        most = func.min(case((and_(is_live, c.max_running >= 1), c.max_running))).label("most")
        self.leased = select(c.user_name, live, most, func.count().label("leased")).where(*leased).group_by(c.user_name)
        has_row = select(users.c.user_name, literal(HAS_ROW), null(), null()).where(of_some)
        self.leased_and_has_row = union_all(self.leased, has_row)
        self.live_userless = select(func.count()).where(
            c.user_name == NO_USER, c.holder > "", c.status == RUNNING, is_live
        )
        # MariaDB assigns from left to right, and reads assigned values: `status` is read before it is written.
        self.end_expired = (
            update(table)
            .where(*leased, c.due <= now_ms())
            .ordered_values(
                (c.attempts, case((has_no_run(table), c.attempts - 1), else_=c.attempts)),
                (c.taken_ahead, EXPIRED),
                (c.status, WAITING),
                (c.holder, None),
                (c.fence, next_fence(table)),
                (c.updated, now_ms()),
            )
        )

        statements = cached(LeaseStatements, dialect, table)
        of_keys = c.key.in_(bindparam("keys", expanding=True))
        claim = statements.claim(of_keys)
        self.claim: Any = claim.returning(*statements.claimed) if dialect.returning else claim
        ours = (of_keys, c.claim == bindparam("claim_number"), c.status == RUNNING)
        self.claimed = select(*statements.claimed).where(*ours)

        beyond = (of_users(table).band == bindparam("of_band"), c.user_name > bindparam("user"))
        row = select(c.user_name, c.due, c.max_running, now_ms().label("now")).where(*beyond)
        next_user = row.order_by(c.user_name, of_users(table).due, c.key).limit(1)
        of_type = (has_user_and_type(table), c.type == bindparam("type_0", type_=c.type.type))
        self._next_user = {False: next_user.where(has_user(table)), True: next_user.where(*of_type)}

    def next_user(self, of_type: bool) -> Select[Any]:
        """Return the SELECT of the first row of the user after :user by name, in :of_band; of :type_0 if `of_type`."""
        return self._next_user[of_type]

    def _window(self, types: TypesShape | None) -> Select[Any]:
        """Return the SELECT of the :limit rows in :of_band that have been due longest, of the wanted types."""
        c = self._table.c
        due = select(c.user_name, c.due, c.max_running).where(c.band == bindparam("of_band"), c.due <= now_ms())
        window = due.order_by(c.due, c.key).limit(bindparam("limit"))
        return window if types is None else window.where(self._of_types(types))

    def due(self, parts: Sequence[Part]) -> Select[Any]:
        """Return the SELECT of the due rows of each of `parts`, with the number of the part.

        The parameters of the first part are :user_0, :band_0, :limit_0 and, if types are read apart, :type_0.
        """
        shape = (*(user == NO_USER for user, _, _ in parts), parts[0][2].shape)
        if shape not in self._due:
            rows = [self._due_of_one(number, *part) for number, part in enumerate(parts)]
            if len(rows) == 1:
                self._due[shape] = rows[0].add_columns(literal(0).label("part"))
            else:
                numbered = (select(each.subquery(), literal(number).label("part")) for number, each in enumerate(rows))
                self._due[shape] = select(union_all(*numbered).subquery())
        return self._due[shape]

    def _due_of_one(self, number: int, user: str, band: int, types: WantedTypes) -> Select[Any]:
        c, indexed = self._table.c, of_users(self._table)
        wanted_band = bindparam(f"band_{number}", type_=Integer)
        columns = select(c.key, c.due, c.max_running, size_column(self._table)).limit(bindparam(f"limit_{number}"))
        if types.shape is not None:
            columns = columns.where(self._of_types(types.shape, number))
        if user == NO_USER:
            due = columns.where(c.band == wanted_band, c.due <= now_ms()).order_by(c.due, c.key)
            return due.with_for_update(skip_locked=True) if self._dialect.returning else due
        name: ColumnElement[str] = bindparam(f"user_{number}", type_=c.user_name.type)
        if types.apart:
            of_user = (has_user_and_type(self._table), c.user_name == select(name).scalar_subquery())
        else:
            of_user = (has_user(self._table), c.user_name == name)
        return columns.where(indexed.band == wanted_band, *of_user, indexed.due <= now_ms()).order_by(
            indexed.due, c.key
        )

    def _of_types(self, types: TypesShape, number: int = 0) -> ColumnElement[bool]:
        type_ = self._table.c.type
        if types.apart:
            return type_ == bindparam(f"type_{number}", type_=type_.type)
        return among_types(self._dialect, self._table, types)
