"""The SQL of leases, built once per table. Each statement itself reads the database's clock."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from psched.backends.common.ended_leases import MOST_CHARACTERS, RELEASED, RETRIED
from psched.backends.common.rows import AHEAD, AHEAD_AGAIN, EXPIRED, RUNNING, WAITING
from psched.backends.rdb.schema import of_type, wanted_types
from psched.backends.sql.bulk_statements import BulkUpdate, GivenColumns
from psched.backends.sql.dialect import Dialect, ExactText, LongText, larger_of, met_by_few, now_ms
from psched.payload import MAX_BATCH_SIZE

_LONGEST_BACKOFF = 30
"""The maximum number of doublings of the wait after crashes. More doublings would overflow."""

LEASE_TYPES = {"key": ExactText(255), "fence": sa.BigInteger(), "claim": sa.BigInteger()}
"""Types of the values of a lease in a bulk statement."""

_RETRY_TYPES = {
    **LEASE_TYPES,
    "wait": sa.BigInteger(),
    "error": LongText(),
    "seen_version": sa.BigInteger(),
    "uncounted": sa.Integer(),
}


def constant(value: str | int) -> sa.ColumnElement[Any]:
    """Return a value as part of the statement's text instead of a parameter."""
    return (
        sa.literal_column(f"'{value}'", sa.String)
        if isinstance(value, str)
        else sa.literal_column(str(value), sa.BigInteger)
    )


def one_more(column: sa.ColumnElement[int], most: int = 2**31 - 1) -> sa.ColumnElement[int]:
    """Return `column` + 1, but at most `most`. An overflow in one row would make the statement fail."""
    return sa.case((column < constant(most), column + constant(1)), else_=column)


def size_column(table: sa.Table) -> sa.ColumnElement[int]:
    """Return the bytes of a row's data as the column `size`. An invalid size counts as a full batch."""
    size = table.c.size
    is_usual = size.between(constant(0), constant(MAX_BATCH_SIZE))
    return sa.case((is_usual, size), else_=constant(MAX_BATCH_SIZE)).label("size")


_NOW = now_ms()
"""The clock, for a statement on one row. Statements on many rows use `now_once`."""


def next_fence(table: sa.Table, now: sa.ColumnElement[int] = _NOW) -> sa.ColumnElement[int]:
    """Return the fence of the next lease: larger than the last fence, and not below the clock in milliseconds.

    Because of the clock, fences stay unique after a failover to a server that lost the last acquires.
    """
    return larger_of(one_more(table.c.fence, 2**63 - 1), now)


def has_no_run(table: sa.Table) -> sa.ColumnElement[bool]:
    """Return the condition that a row is or was leased, and that its run is not recorded as started."""
    return sa.and_(
        table.c.status == constant(RUNNING), table.c.taken_ahead.in_([constant(AHEAD), constant(AHEAD_AGAIN)])
    )


@dataclass(frozen=True, slots=True)
class TypesShape:
    """The number of types in a statement. `apart`: whether the statement reads each type by its own index range."""

    count: int
    apart: bool


def among_types(dialect: type[Dialect], table: sa.Table, types: TypesShape, number: int = 0) -> sa.ColumnElement[bool]:
    """Return the condition that a row has one of the wanted types, or with `types.apart` the type :type_<number>.

    Without `types.apart`, no index on the type is used, and all types are one parameter. On MariaDB and MySQL each type
    is a parameter, because their planners would turn one parameter into a join.
    """
    if types.apart:
        return table.c.type == sa.bindparam(f"type_{number}", type_=table.c.type.type)
    in_no_index = table.c.type.concat(constant(""))
    if dialect.groups_by_index:
        return in_no_index.in_(_type_parameters(table, types))
    return dialect.among(in_no_index, sa.select(wanted_types(table).c.wanted_type))


def _type_parameters(table: sa.Table, types: TypesShape) -> list[sa.BindParameter[str]]:
    """Return the parameters :type_0, :type_1, and so on, for the wanted types."""
    return [sa.bindparam(f"type_{number}", type_=table.c.type.type) for number in range(types.count)]


class LeaseStatements:
    """The statements on one table with leases. `:name` in a docstring is a parameter.

    MariaDB and MySQL assign columns from left to right, and later expressions read the new values. So `ordered_values`
    reads a column (`due`, `crashes`, `status`) before it writes that column.
    """

    def __init__(self, dialect: type[Dialect], table: sa.Table, *scope: sa.ColumnElement[bool]) -> None:
        """`scope`: conditions on due rows.

        An index must begin with the columns of these conditions, followed by the columns `due` and `key`.
        """
        self._dialect = dialect
        self._table = table
        self._scope = scope
        flags = [name for name in ("cancel_requested", "paused_from", "paused_until") if name in table.c]
        self._lease = [table.c[name] for name in ("key", "fence", "due", "claim", "nonce", *flags)]
        self._ended = {"status": constant(WAITING), "holder": sa.null()}
        self._is_running = table.c.status == constant(RUNNING)
        # The key must find the row. With the statistics of an idle table, a planner would read all rows of the holder
        # instead.
        in_no_index = sa.func.coalesce(table.c.holder, constant(""))
        self._is_holder = in_no_index == sa.bindparam("lease_holder", type_=table.c.holder.type)
        self.claimed = [table.c[name] for name in table.info["claimed"]]
        self.read = sa.select(*table.c).where(table.c.key == sa.bindparam("lease_key"))
        without_data = [column for column in table.c if column is not table.c.data]
        of_keys = table.c.key.in_(sa.bindparam("keys", expanding=True))
        self.read_many = sa.select(*without_data).where(of_keys)
        self.release = BulkUpdate(LEASE_TYPES, self._releasing)
        self.retry = BulkUpdate(_RETRY_TYPES, self._retrying)
        held = (of_keys, self._is_holder, self._is_running)
        self.held = sa.select(*self._lease).where(*held)
        self.extend = self._extending(held)
        self.extend_begun = self._extending(held, taken_ahead=0)
        undone = {**self._ended, "due": table.c.ready, "attempts": table.c.attempts - 1, "updated": now_ms()}
        is_claimer = met_by_few(table.c.holder == sa.bindparam("claimer"))
        lost = is_claimer, table.c.claim.in_(sa.bindparam("claims", expanding=True))
        self.undo = sa.update(table).where(*lost, self._is_running).values(undone)
        """Undoes acquires of :claimer whose answers were lost. :claims are the numbers of these acquires."""
        dead = sa.bindparam("dead", type_=table.c.holder.type)
        is_dead = met_by_few(table.c.holder == dead)
        self.give_back = self._giving_back(is_dead)
        of_given = table.c.key.in_(sa.bindparam("given_back", expanding=True))
        is_claim = sa.tuple_(table.c.key, table.c.claim).in_(sa.bindparam("claims", expanding=True))
        self.give_back_claims = self._giving_back(of_given, is_claim, in_no_index == dead)
        self.held_claims = sa.select(table.c.key, table.c.claim).where(is_dead, self._is_running)

    def writing(self, row: GivenColumns, now: sa.ColumnElement[int], **values: Any) -> sa.Update:
        """Return the UPDATE that writes `values` to each row whose lease is in `row`.

        The lease must belong to :lease_holder.
        """
        c = self._table.c
        lease = (self._dialect.by_index(c.key, row["key"]), c.fence == row["fence"], c.claim == row["claim"])
        return sa.update(self._table).where(*lease, self._is_holder, self._is_running).values(updated=now, **values)

    def settling(
        self, row: GivenColumns, now: sa.ColumnElement[int], outcome: str | sa.ColumnElement[str], **values: Any
    ) -> sa.Update:
        """Return the UPDATE that ends leases with `outcome` and writes `values`.

        The module `backends.common.ended_leases` describes the column `endings`.
        """
        c = self._table.c
        between, end = constant(":"), constant(";")
        named = constant(outcome) if isinstance(outcome, str) else outcome
        lease = sa.cast(c.fence, sa.String) + between + sa.cast(c.claim, sa.String) + between + named + end
        endings = sa.func.substr(lease + c.endings, constant(1), constant(MOST_CHARACTERS))
        return self.writing(row, now, **{**self._ended, "endings": endings, **values})

    def due(self, types: TypesShape | None, locked: bool = False, sized: bool = False) -> sa.Select[Any]:
        """Return a SELECT of the keys and due times of up to :limit due rows, earliest first.

        `types`: only rows of the types :type_0, :type_1, and so on. With `types.apart` each type is read by its own
        index range. Otherwise rows of other types are read and skipped, which is cheap while few of them are due.
        `locked`: lock the rows, and skip rows that others have locked. `sized`: also select the size of the data.
        """
        c = self._table.c
        sizes = [size_column(self._table)] if sized else []

        rows = sa.select(c.key, c.due, *sizes).where(*self._scope, c.due <= now_ms()).limit(sa.bindparam("limit"))
        if locked:
            rows = rows.with_for_update(skip_locked=True)
        if types is None or not types.apart:
            wanted = [] if types is None else [among_types(self._dialect, self._table, types)]
            return rows.where(*wanted).order_by(c.due, c.key)
        each = _type_parameters(self._table, types)
        parts = [of_type(self._dialect, rows, self._table, type_) for type_ in each]
        if types.count == 1:
            return parts[0]
        together = sa.union_all(*(sa.select(part.subquery()) for part in parts)).subquery()
        return sa.select(*together.c).order_by(together.c.due, together.c.key).limit(sa.bindparam("limit"))

    def due_within(self, types: TypesShape | None) -> sa.Select[Any]:
        """Return a SELECT that locks the rows of `due`, and takes the first ones up to :budget bytes of data in total.

        Takes at least :least rows. The running total relies on the order in which rows are read, because a window
        ordered by due would cost a sort.
        """
        rows = self.due(types, locked=True, sized=True).subquery()
        total = sa.func.sum(rows.c.size).over(rows=(None, 0)).label("total")
        place = sa.func.count().over(rows=(None, 0)).label("place")
        summed = sa.select(rows.c.key, rows.c.due, rows.c.size, total, place).subquery()
        fits = sa.or_(
            summed.c.total <= sa.bindparam("budget", type_=sa.BigInteger), summed.c.place <= sa.bindparam("least")
        )
        return sa.select(summed.c.key, summed.c.due).where(fits)

    def due_types(self) -> sa.Select[Any]:
        """Return a SELECT of the types in :types that have a due row, and of the earliest due time of each type.

        The type with the earliest due time comes first.
        """
        c = self._table.c
        wanted = wanted_types(self._table)
        due = sa.select(c.due).where(*self._scope, c.due <= now_ms()).limit(1)
        first = of_type(self._dialect, due, self._table, wanted.c.wanted_type)
        types = sa.select(wanted.c.wanted_type, first.correlate(wanted).scalar_subquery().label("first_due")).subquery()
        return sa.select(*types.c).where(types.c.first_due.is_not(None)).order_by(types.c.first_due)

    def claim(self, *conditions: sa.ColumnElement[bool], now: sa.ColumnElement[int] = _NOW) -> sa.Update:
        """Return the UPDATE that leases the due rows that meet `conditions`.

        :ahead is 1 for a prefetch, 0 if the runs start now.
        """
        c = self._table.c
        ahead = sa.bindparam("ahead", type_=sa.Integer)
        has_expired = sa.or_(self._is_running, c.taken_ahead == constant(EXPIRED))
        taken_ahead = sa.case((has_expired, ahead * constant(AHEAD_AGAIN)), else_=ahead)
        return self.leasing(sa.update(self._table).where(*conditions, c.due <= now), c.due, taken_ahead, now)

    def leasing(
        self,
        rows: sa.Update,
        ready: sa.ColumnElement[Any],
        ahead: sa.ColumnElement[int],
        now: sa.ColumnElement[int] = _NOW,
    ) -> sa.Update:
        """Return the UPDATE of `rows` that leases them to :claimer for :alive milliseconds.

        :claim_number is the number of the acquire. `ready` and `ahead`: values of the columns `ready` and
        `taken_ahead`.
        """
        c = self._table.c
        return rows.ordered_values(
            (c.ready, ready),
            (c.due, now + sa.bindparam("alive", type_=sa.BigInteger)),
            (c.attempts, sa.case((has_no_run(self._table), c.attempts), else_=one_more(c.attempts))),
            (c.taken_ahead, ahead),
            (c.status, constant(RUNNING)),
            (c.fence, next_fence(self._table, now)),
            (c.claim, sa.bindparam("claim_number")),
            (c.holder, sa.bindparam("claimer")),
            (c.node, sa.bindparam("claimer")),
            (c.updated, now),
        )

    def _releasing(self, row: GivenColumns, now: sa.ColumnElement[int]) -> sa.Update:
        """Return the UPDATE that releases leases. :begun is 1 if the runs have begun, else 0."""
        c = self._table.c
        is_unstarted = sa.bindparam("begun", type_=sa.Integer) == constant(0)
        due = sa.case((sa.and_(is_unstarted, c.ready < now), c.ready), else_=now)
        return self.settling(row, now, RELEASED, due=due, attempts=c.attempts - 1)

    def _retrying(self, row: GivenColumns, now: sa.ColumnElement[int]) -> sa.Update:
        c = self._table.c
        due = now + row["wait"]
        if "version" in c:  # a row whose definition has changed since the run is due now (unless seen_version is NULL)
            due = sa.case((c.version != row["seen_version"], now), else_=due)
        kept, counted = sa.func.coalesce(row["error"], c.last_error), c.attempts - row["uncounted"]
        return self.settling(row, now, RETRIED, due=due, last_error=kept, attempts=counted, crashes=constant(0))

    def _extending(self, held: Sequence[sa.ColumnElement[bool]], **values: Any) -> sa.Update:
        """Return the UPDATE that extends leases to :alive milliseconds from now, and writes `values`.

        :leases has the key, fence and claim of each lease, and :keys only the keys. All belong to :lease_holder.
        """
        c = self._table.c
        ours = sa.tuple_(c.key, c.fence, c.claim).in_(sa.bindparam("leases", expanding=True))
        end = now_ms() + sa.bindparam("alive", type_=sa.BigInteger)
        extend = sa.update(self._table).where(*held, ours).values(due=end, updated=now_ms(), **values)
        return extend.returning(*self._lease) if self._dialect.returning else extend

    def _giving_back(self, *rows: sa.ColumnElement[bool]) -> sa.Update:
        """Return the UPDATE that releases the leases on `rows`.

        A new fence ensures that a holder that still runs loses its leases.
        """
        c = self._table.c
        suspect = c.key.in_(sa.bindparam("suspects", expanding=True))
        longest = sa.bindparam("longest", type_=sa.BigInteger)
        doublings = sa.case((c.crashes < _LONGEST_BACKOFF, c.crashes), else_=_LONGEST_BACKOFF)
        backoff = sa.literal(1000, sa.BigInteger).bitwise_lshift(doublings)
        wait = sa.case((backoff < longest, backoff), else_=longest)
        return (
            sa.update(self._table)
            .where(*rows, self._is_running)
            .ordered_values(
                (c.due, sa.case((suspect, now_ms() + wait), (c.ready < now_ms(), c.ready), else_=now_ms())),
                (c.attempts, c.attempts - sa.case((suspect, 0), else_=1)),
                (c.crashes, sa.case((suspect, one_more(c.crashes)), else_=c.crashes)),
                (c.last_error, sa.case((suspect, sa.bindparam("error", type_=c.last_error.type)), else_=c.last_error)),
                (c.fence, next_fence(self._table)),
                (c.status, constant(WAITING)),
                (c.holder, None),
                (c.updated, now_ms()),
            )
        )
