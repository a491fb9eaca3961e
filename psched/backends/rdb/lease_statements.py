"""The SQL of leases, built once per table. Each statement reads the database's clock itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import (
    BigInteger,
    BindParameter,
    ColumnElement,
    Integer,
    Select,
    String,
    Table,
    Update,
    and_,
    bindparam,
    case,
    cast,
    func,
    literal,
    literal_column,
    null,
    or_,
    select,
    tuple_,
    union_all,
    update,
)

from psched.backends.common.lease_history import MOST_CHARACTERS, RELEASED, RETRIED
from psched.backends.common.rows import AHEAD, AHEAD_AGAIN, EXPIRED, RUNNING, WAITING
from psched.backends.rdb.schema import by_type, has_wanted_type, wanted_types
from psched.backends.sql.dialect import Dialect, ExactText, LongText, larger_of, now_ms
from psched.backends.sql.statement import BulkUpdate, GivenColumns
from psched.payload import MAX_BATCH_SIZE

_LONGEST_BACKOFF = 30
"""The most doublings of the wait after crashes: more would overflow."""

LEASE_TYPES = {"key": ExactText(255), "fence": BigInteger(), "claim": BigInteger()}
"""Values and types that a bulk statement takes of each lease."""

_RETRY_TYPES = {
    **LEASE_TYPES,
    "wait": BigInteger(),
    "error": LongText(),
    "seen_version": BigInteger(),
    "uncounted": Integer(),
}


def constant(value: str | int) -> ColumnElement[Any]:
    """Return a value as part of the statement's text, so that it is not sent at each call."""
    return literal_column(f"'{value}'", String) if isinstance(value, str) else literal_column(str(value), BigInteger)


def one_more(column: ColumnElement[int], most: int = 2**31 - 1) -> ColumnElement[int]:
    """Return `column` + 1, but at most `most`: an overflow in one row would fail the statement for all rows."""
    return case((column < constant(most), column + constant(1)), else_=column)


def size_column(table: Table) -> ColumnElement[int]:
    """Return the bytes of a row's data as `size`. An invalid size counts as a whole batch."""
    size = table.c.size
    is_usual = size.between(constant(0), constant(MAX_BATCH_SIZE))
    return case((is_usual, size), else_=constant(MAX_BATCH_SIZE)).label("size")


_NOW = now_ms()
"""The clock of a statement on one row; statements on many rows use `now_once`."""


def next_fence(table: Table, now: ColumnElement[int] = _NOW) -> ColumnElement[int]:
    """Return the fence of the next lease: larger than the last fence, and at least the clock in milliseconds.

    The clock keeps fences unique after a failover to a server that lost the last acquires.
    """
    return larger_of(one_more(table.c.fence, 2**63 - 1), now)


def has_no_run(table: Table) -> ColumnElement[bool]:
    """Return the condition that no run is recorded as begun under a row's lease, which may have expired."""
    return and_(table.c.status == constant(RUNNING), table.c.taken_ahead.in_([constant(AHEAD), constant(AHEAD_AGAIN)]))


@dataclass(frozen=True, slots=True)
class TypesShape:
    """The number of types in a statement, and whether it reads each of them by its own index range (`apart`)."""

    count: int
    apart: bool


def among_types(dialect: type[Dialect], table: Table, types: TypesShape, number: int = 0) -> ColumnElement[bool]:
    """Return the condition that a row has one of the wanted types; with `types.apart` the type :type_<number>.

    Unless `types.apart` no index on the type is used, and the types are one parameter; on MariaDB and MySQL, whose
    planners would join it, one parameter per type.
    """
    if types.apart:
        return table.c.type == bindparam(f"type_{number}", type_=table.c.type.type)
    in_no_index = table.c.type.concat(constant(""))
    if dialect.groups_by_index:
        return in_no_index.in_(_type_parameters(table, types))
    return dialect.among(in_no_index, select(wanted_types(table).c.wanted_type))


def _type_parameters(table: Table, types: TypesShape) -> list[BindParameter[str]]:
    """Return :type_0, :type_1, and so on, for the wanted types."""
    return [bindparam(f"type_{number}", type_=table.c.type.type) for number in range(types.count)]


class LeaseStatements:
    """The statements on one table with leases. `:name` in a docstring is a parameter.

    MariaDB and MySQL assign from left to right, and a later expression reads the new value. So `ordered_values` reads
    a column (`due`, `crashes`, `status`) before it writes that column.
    """

    def __init__(self, dialect: type[Dialect], table: Table, *scope: ColumnElement[bool]) -> None:
        """`scope`: conditions on due rows, for an index on their columns followed by due and key."""
        self._dialect = dialect
        self._table = table
        self._scope = scope
        flags = [name for name in ("cancel_requested", "paused_from", "paused_until") if name in table.c]
        self._lease = [table.c[name] for name in ("key", "fence", "due", "claim", "nonce", *flags)]
        self._ended = {"status": constant(WAITING), "holder": null()}
        self._is_running = table.c.status == constant(RUNNING)
        # The key finds the row. With statistics of an idle table a planner would read all rows of the holder.
        in_no_index = func.coalesce(table.c.holder, constant(""))
        self._is_holder = in_no_index == bindparam("lease_holder", type_=table.c.holder.type)
        self.claimed = [table.c[name] for name in table.info["claimed"]]
        self.read = select(*table.c).where(table.c.key == bindparam("lease_key"))
        without_data = [column for column in table.c if column is not table.c.data]
        of_keys = table.c.key.in_(bindparam("keys", expanding=True))
        self.read_many = select(*without_data).where(of_keys)
        self.release = BulkUpdate(LEASE_TYPES, self._releasing)
        self.retry = BulkUpdate(_RETRY_TYPES, self._retrying)
        held = (of_keys, self._is_holder, self._is_running)
        self.held = select(*self._lease).where(*held)
        self.extend = self._extending(held)
        self.extend_begun = self._extending(held, taken_ahead=0)
        undone = {**self._ended, "due": table.c.ready, "attempts": table.c.attempts - 1, "updated": now_ms()}
        lost = table.c.holder == bindparam("claimer"), table.c.claim.in_(bindparam("claims", expanding=True))
        self.undo = update(table).where(*lost, self._is_running).values(undone)
        """Restores the rows of the acquires numbered :claims of :claimer, whose answers were lost."""
        self.give_back = self._giving_back()

    def writing(self, row: GivenColumns, now: ColumnElement[int], **values: Any) -> Update:
        """Return the UPDATE that writes `values` to each row under the lease in `row`; the holder is :lease_holder."""
        c = self._table.c
        lease = (c.key == row["key"], c.fence == row["fence"], c.claim == row["claim"])
        return update(self._table).where(*lease, self._is_holder, self._is_running).values(updated=now, **values)

    def settling(
        self, row: GivenColumns, now: ColumnElement[int], outcome: str | ColumnElement[str], **values: Any
    ) -> Update:
        """Return the UPDATE that ends the leases with `outcome` and writes `values`.

        The column `endings` is described in `backends.common.lease_history`.
        """
        c = self._table.c
        between, end = constant(":"), constant(";")
        named = constant(outcome) if isinstance(outcome, str) else outcome
        lease = cast(c.fence, String) + between + cast(c.claim, String) + between + named + end
        endings = func.substr(lease + c.endings, constant(1), constant(MOST_CHARACTERS))
        return self.writing(row, now, **{**self._ended, "endings": endings, **values})

    def due(self, types: TypesShape | None, locked: bool = False, sized: bool = False) -> Select[Any]:
        """Return the keys and due times of up to :limit due rows, earliest first; only of :type_0, :type_1, … if given.

        `types.apart`: each type is read by its own index range, so that due rows of other types are not read.
        Otherwise due rows of all types are read, and other types are skipped: cheap while there are few of these.
        `sized`: with the size of the data.
        """
        c = self._table.c
        sizes = [size_column(self._table)] if sized else []

        def rows(*of_type: ColumnElement[bool]) -> Select[Any]:
            due = select(c.key, c.due, *sizes).where(*self._scope, *of_type, c.due <= now_ms()).order_by(c.due, c.key)
            limited = due.limit(bindparam("limit"))
            return limited.with_for_update(skip_locked=True) if locked else limited

        if types is None:
            return rows()
        if not types.apart:
            return rows(among_types(self._dialect, self._table, types))
        parts = [by_type(rows(c.type == type_), self._table) for type_ in _type_parameters(self._table, types)]
        if types.count == 1:
            return parts[0]
        together = union_all(*(select(part.subquery()) for part in parts)).subquery()
        return select(*together.c).order_by(together.c.due, together.c.key).limit(bindparam("limit"))

    def due_within(self, types: TypesShape | None) -> Select[Any]:
        """Lock the rows of `due`; return the first, up to :budget bytes of data in total, but :least rows in any case.

        The running total relies on the order in which rows are read; a window ordered by due would cost a sort.
        """
        rows = self.due(types, locked=True, sized=True).subquery()
        total = func.sum(rows.c.size).over(rows=(None, 0)).label("total")
        place = func.count().over(rows=(None, 0)).label("place")
        summed = select(rows.c.key, rows.c.due, rows.c.size, total, place).subquery()
        fits = or_(summed.c.total <= bindparam("budget", type_=BigInteger), summed.c.place <= bindparam("least"))
        return select(summed.c.key, summed.c.due).where(fits)

    def due_types(self) -> Select[Any]:
        """Return the types among :types that have a due row, with their earliest due times, earliest first."""
        c = self._table.c
        wanted = wanted_types(self._table)
        of_type = (*self._scope, has_wanted_type(self._table, wanted), c.due <= now_ms())
        first = by_type(select(c.due), self._table).where(*of_type).order_by(c.due, c.key).limit(1)
        types = select(wanted.c.wanted_type, first.correlate(wanted).scalar_subquery().label("first_due")).subquery()
        return select(*types.c).where(types.c.first_due.is_not(None)).order_by(types.c.first_due)

    def claim(self, *conditions: ColumnElement[bool], now: ColumnElement[int] = _NOW) -> Update:
        """Return the UPDATE that leases due rows that meet `conditions`.

        :ahead is 1 for a prefetch, 0 if the runs begin now.
        """
        c = self._table.c
        ahead = bindparam("ahead", type_=Integer)
        has_expired = or_(self._is_running, c.taken_ahead == constant(EXPIRED))
        taken_ahead = case((has_expired, ahead * constant(AHEAD_AGAIN)), else_=ahead)
        return self.leasing(update(self._table).where(*conditions, c.due <= now), c.due, taken_ahead, now)

    def leasing(
        self, rows: Update, ready: ColumnElement[Any], ahead: ColumnElement[int], now: ColumnElement[int] = _NOW
    ) -> Update:
        """Return the UPDATE of `rows` that leases them to :claimer for :alive milliseconds.

        :claim_number is the number of the acquire. `ready` and `ahead`: the columns `ready` and `taken_ahead`.
        """
        c = self._table.c
        return rows.ordered_values(
            (c.ready, ready),
            (c.due, now + bindparam("alive", type_=BigInteger)),
            (c.attempts, case((has_no_run(self._table), c.attempts), else_=one_more(c.attempts))),
            (c.taken_ahead, ahead),
            (c.status, constant(RUNNING)),
            (c.fence, next_fence(self._table, now)),
            (c.claim, bindparam("claim_number")),
            (c.holder, bindparam("claimer")),
            (c.node, bindparam("claimer")),
            (c.updated, now),
        )

    def _releasing(self, row: GivenColumns, now: ColumnElement[int]) -> Update:
        return self.settling(row, now, RELEASED, due=now, attempts=self._table.c.attempts - 1)

    def _retrying(self, row: GivenColumns, now: ColumnElement[int]) -> Update:
        c = self._table.c
        due = now + row["wait"]
        if "version" in c:  # due now when the definition is not the one because of which the row waits (NULL: any)
            due = case((c.version != row["seen_version"], now), else_=due)
        kept, counted = func.coalesce(row["error"], c.last_error), c.attempts - row["uncounted"]
        return self.settling(row, now, RETRIED, due=due, last_error=kept, attempts=counted, crashes=constant(0))

    def _extending(self, held: Sequence[ColumnElement[bool]], **values: Any) -> Update:
        """Extend the :leases of :lease_holder by :alive and write `values`; :keys are the keys of the leases."""
        c = self._table.c
        ours = tuple_(c.key, c.fence, c.claim).in_(bindparam("leases", expanding=True))
        end = now_ms() + bindparam("alive", type_=BigInteger)
        extend = update(self._table).where(*held, ours).values(due=end, updated=now_ms(), **values)
        return extend.returning(*self._lease) if self._dialect.returning else extend

    def _giving_back(self) -> Update:
        """Release the leases of :dead. The fence grows, so that a holder that still runs loses its leases."""
        c = self._table.c
        suspect = c.key.in_(bindparam("suspects", expanding=True))
        longest = bindparam("longest", type_=BigInteger)
        doublings = case((c.crashes < _LONGEST_BACKOFF, c.crashes), else_=_LONGEST_BACKOFF)
        backoff = literal(1000, BigInteger).bitwise_lshift(doublings)
        wait = case((backoff < longest, backoff), else_=longest)
        return (
            update(self._table)
            .where(c.holder == bindparam("dead"), self._is_running)
            .ordered_values(
                (c.due, now_ms() + case((suspect, wait), else_=0)),
                (c.attempts, c.attempts - case((suspect, 0), else_=1)),
                (c.crashes, case((suspect, one_more(c.crashes)), else_=c.crashes)),
                (c.last_error, case((suspect, bindparam("error", type_=c.last_error.type)), else_=c.last_error)),
                (c.fence, next_fence(self._table)),
                (c.status, constant(WAITING)),
                (c.holder, None),
                (c.updated, now_ms()),
            )
        )
