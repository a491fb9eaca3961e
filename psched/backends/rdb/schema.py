"""The tables and indexes of the store `rdb`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    Column,
    ColumnElement,
    Computed,
    FromClause,
    Index,
    Integer,
    MetaData,
    Select,
    String,
    Table,
    column,
    literal_column,
    select,
    text,
)

from psched.backends.common.lease_history import MOST_CHARACTERS
from psched.backends.common.rows import CLAIMED_OF_SCHEDULE, CLAIMED_OF_TASK, WAITING
from psched.backends.common.table_checks import checked_name
from psched.backends.sql.dialect import MYSQL_OPTIONS, ExactText, LongText
from psched.backends.sql.ledger import limit_columns
from psched.backends.sql.statement import rows_in


def user_column(queue: Table, name: str) -> ColumnElement[Any]:
    """Return the column `band`, `due` or `holder` in the indexes of tasks with a user.

    It is NULL for tasks without, unless the database has partial indexes.
    """
    return queue.c.get(f"user_{name}", queue.c[name])


def has_user(queue: Table) -> ColumnElement[bool]:
    """Return the condition that a row is in the indexes of users; with a parameter no planner would use them."""
    return queue.c.user_name > literal_column("''")


def has_user_and_type(queue: Table) -> ColumnElement[bool]:
    """Return the condition that a row is in the index of users by type.

    It equals `has_user`, but is written differently so that a query by type does not use the index of users. Such a
    query gets the user's name from a subquery: from a parameter PostgreSQL concludes that the name is not empty.
    """
    return queue.c.user_name != literal_column("''")


def by_type(rows: Select[Any], table: Table) -> Select[Any]:
    """Return a SELECT of rows of one type that uses the index on type.

    When most rows are of this type, MariaDB and MySQL use the index of all types, and read due rows of other types.
    """
    force = f"FORCE INDEX ({table.name}_type_due)"
    return rows.with_hint(table, force, "mysql").with_hint(table, force, "mariadb")


def wanted_types(table: Table) -> FromClause:
    """Return the rows of :types, a parameter made by `types_parameter`, with the column `wanted_type`."""
    return rows_in("types", [column("wanted_type", table.c.type.type)])


def has_wanted_type(table: Table, types: FromClause) -> ColumnElement[bool]:
    """Return the condition that a row has the type of a row of `types`, which are `wanted_types`.

    The type is a subquery: for an expression on JSON PostgreSQL may prefer the index of all types.
    """
    return table.c.type == select(types.c.wanted_type).correlate(types).scalar_subquery()


def _index(table: Table, suffix: str, columns: Sequence[ColumnElement[Any]], where: str | None = None) -> None:
    """Add an index; of the rows that meet `where` only, if the database has partial indexes."""
    condition = None if where is None else text(where)
    Index(f"{table.name}_{suffix}", *columns, postgresql_where=condition, sqlite_where=condition)


def _add_partial_indexes(queue: Table) -> None:
    """Add partial indexes, which leave out rows that no query needs."""
    c = queue.c
    _index(queue, "user_due", [c.band, c.user_name, c.due, c.key], "band IS NOT NULL AND user_name > ''")
    _index(queue, "type_user_due", [c.type, c.band, c.user_name, c.due, c.key], "band IS NOT NULL AND user_name <> ''")
    _index(queue, "user_run", [c.user_name, c.holder], "holder IS NOT NULL AND user_name > ''")
    _index(queue, "purge", [c.purge_at], "purge_at IS NOT NULL")
    _index(queue, "holder", [c.holder], "holder IS NOT NULL")


def _add_full_indexes(queue: Table) -> None:
    """Add the columns that `user_column` returns, their indexes, and one index of rows that are held or retained."""
    for source in (queue.c.band, queue.c.due, queue.c.holder):
        made = Computed(f"CASE WHEN user_name > '' THEN {source.name} END", persisted=True)
        queue.append_column(Column(f"user_{source.name}", source.type, made))
    c = queue.c
    _index(queue, "of_user_due", [c.user_band, c.user_name, c.user_due, c.key])
    _index(queue, "of_type_user_due", [c.type, c.user_band, c.user_name, c.user_due, c.key])
    _index(queue, "of_user_run", [c.user_name, c.user_holder])
    _index(queue, "held", [c.holder, c.purge_at, c.claim])


USER_BAND = 1000
"""Added to the priority, for the band of tasks with a user; more than twice any priority."""
ABOVE_ALL_BANDS = 2 * USER_BAND


def schedules_table(metadata: MetaData, name: str) -> Table:
    """Return the table of schedules. Raises ConfigError for a name that is no plain identifier.

    `version` counts the changes of the definition; `last_time` is the regular occurrence that was settled last, `extra`
    the last one that `run_now` asked for. While `next_time` is that of an extra run, `regular_time` is the regular
    occurrence that comes after it, due at `regular_due`. `paused_from` and `paused_until` (NULL: it lasts) are the last
    pause, `earlier_pauses` those before it that may have occurrences still to be skipped, as `<from>-<until>` with
    spaces between them; `extra_waits` is 1 when a run by `run_now` waits for the end of the pause. Of the alert:
    `alert_at` is when the next regular occurrence is overdue (NULL for never), `alerted` the last occurrence whose
    alert was sent, `alert_claimed_until` the end of the claim of the node that is sending one.
    `failing` is when `next_time` was to run, NULL unless an attempt of it has failed: a schedule without
    failures never writes to its index.
    """
    table = _leased_table(
        metadata,
        name,
        CLAIMED_OF_SCHEDULE,
        Column("cron", ExactText(255), nullable=False),
        Column("timezone", ExactText(255), nullable=False),
        Column("delay_ms", BigInteger, nullable=False),
        Column("next_time", BigInteger, nullable=False),
        Column("due", BigInteger, nullable=False),
        Column("version", BigInteger, nullable=False, server_default="0"),
        Column("last_time", BigInteger),
        Column("extra", BigInteger),
        Column("regular_time", BigInteger),
        Column("regular_due", BigInteger),
        Column("catch_up", String(8), nullable=False, server_default="all"),
        *limit_columns(),
        Column("alert_at", BigInteger),
        Column("alerted", BigInteger),
        Column("alert_claimed_until", BigInteger),
        Column("paused_from", BigInteger),
        Column("paused_until", BigInteger),
        Column("earlier_pauses", LongText),
        Column("extra_waits", Integer),
    )
    failed = "attempts > CASE WHEN status = 'running' THEN 1 ELSE 0 END"
    made = Computed(f"CASE WHEN {failed} THEN next_time + delay_ms END", persisted=True)
    table.append_column(Column("failing", BigInteger, made))
    c = table.c
    _index(table, "due", [c.due, c.key])
    _index(table, "type_due", [c.type, c.due, c.key])
    _index(table, "holder", [c.holder], "holder IS NOT NULL")
    _index(table, "alert", [c.alert_at, c.key], "alert_at IS NOT NULL")
    _index(table, "failing", [c.failing, c.key], "failing IS NOT NULL")
    return table


def failures_table(metadata: MetaData, name: str) -> Table:
    """Return the table of runs that have failed for good and are not reported yet.

    `claimed_until` is the end of the claim of the node that is reporting the failure.
    """
    table = Table(
        f"{checked_name(name)}_failures",
        metadata,
        Column("key", ExactText(255), primary_key=True),
        Column("scheduled_time", BigInteger, primary_key=True),
        Column("fence", BigInteger, primary_key=True),
        Column("type", ExactText(255), nullable=False),
        Column("attempts", Integer, nullable=False),
        Column("error", LongText),
        Column("node", ExactText(255), nullable=False),
        Column("failed", BigInteger, nullable=False),
        Column("claimed_until", BigInteger, nullable=False, server_default="0"),
        **MYSQL_OPTIONS,
    )
    _index(table, "claimed", [table.c.claimed_until, table.c.key])
    return table


def queue_table(metadata: MetaData, name: str, partial_indexes: bool) -> Table:
    """Return the table of queue tasks. Raises ConfigError for a name that is no plain identifier.

    `band` (see `band_of`) is NULL once a task is retired, as is `due`; `purge_at` is NULL until then. `user_name` is
    empty for a task without user. The indexes find: due tasks in a band; due tasks of a user in a band, and of one
    type; the running tasks of a user; due tasks of a type; tasks whose retention is over; the tasks of a holder.

    Each index that contains a task costs several writes per run. `partial_indexes`: the indexes of users leave tasks
    without user out. Else these indexes are on columns of their own (`user_column`), which are NULL for such tasks.
    """
    table = _leased_table(
        metadata,
        name,
        CLAIMED_OF_TASK,
        Column("run_at", BigInteger, nullable=False),
        Column("due", BigInteger),
        Column("user_name", ExactText(255), nullable=False, server_default=""),
        Column("max_running", Integer),
        Column("priority", Integer, nullable=False, server_default="0"),
        Column("band", Integer),
        Column("max_attempts", Integer),
        Column("cancel_requested", Integer, nullable=False, server_default="0"),
        Column("finished_at", BigInteger),
        Column("purge_at", BigInteger),
        CheckConstraint("(due IS NULL) = (status <> 'waiting' AND status <> 'running')", name=f"{name}_has_due"),
        CheckConstraint("(due IS NULL) = (band IS NULL)", name=f"{name}_has_band"),
        CheckConstraint(
            f"band = priority + CASE WHEN user_name > '' THEN {USER_BAND} ELSE 0 END", name=f"{name}_right_band"
        ),
        CheckConstraint("purge_at IS NULL OR due IS NULL", name=f"{name}_no_purge"),
        CheckConstraint("max_running >= 1", name=f"{name}_max_running"),
        CheckConstraint("typeof(user_name) = 'text'", name=f"{name}_user").ddl_if(dialect="sqlite"),
    )
    c = table.c
    _index(table, "due", [c.band, c.due, c.key], "band IS NOT NULL")
    _index(table, "type_due", [c.type, c.band, c.due, c.key], "band IS NOT NULL")
    (_add_partial_indexes if partial_indexes else _add_full_indexes)(table)
    return table


def users_table(metadata: MetaData, queue: str) -> Table:
    """Return the table of a queue's users: a worker that claims tasks of a user locks and changes the user's row."""
    return Table(
        f"{checked_name(queue)}_users",
        metadata,
        Column("user_name", ExactText(255), primary_key=True),
        Column("version", BigInteger, nullable=False, server_default="0"),
        **MYSQL_OPTIONS,
    )


def band_of(user: str | None, priority: int) -> int:
    """Return the band of a waiting or running task: rows of equal precedence; higher bands are claimed first."""
    return priority if user is None else priority + USER_BAND


def has_users(band: int) -> bool:
    """Return whether the rows of a band have users."""
    return band > USER_BAND // 2


def _leased_table(
    metadata: MetaData, name: str, claimed: tuple[str, ...], *columns: Column[Any] | CheckConstraint
) -> Table:
    """Return a table of due rows with leases: the columns that lease_statements.py writes, and `columns`.

    CHECK constraints refuse rows that could never be due, and keys that only SQLite would store. Any other invalid
    value affects its row only, but such rows could not be named, settled or deleted.

    `claimed`: the columns that are read of a row that was just leased.

    `size` is how many bytes the data has as JSON, compressed or not. Among `columns` is `due`: when the row is due or
    its lease ends, NULL once it is finished for good. `ready` is what `due` was before the last acquire, `claim` the
    number of that acquire, `nonce` the number of the call that inserted the row, `endings` how its last leases ended;
    `holder` is NULL unless it is leased. `attempts` counts the present lease and earlier leases that were not released,
    but no lease that expired while `taken_ahead` was `AHEAD` or `AHEAD_AGAIN`: no run began under it. `taken_ahead` is
    0 once a run is recorded as begun.
    """
    return Table(
        checked_name(name),
        metadata,
        Column("key", ExactText(255), primary_key=True),
        Column("type", ExactText(255), nullable=False),
        Column("data", LongText, nullable=False),
        Column("size", BigInteger, nullable=False, server_default="0"),
        *columns,
        Column("ready", BigInteger),
        Column("status", String(16), nullable=False, server_default=WAITING),
        Column("fence", BigInteger, nullable=False, server_default="0"),
        Column("claim", BigInteger),
        Column("nonce", BigInteger, nullable=False, server_default="0"),
        Column("endings", String(MOST_CHARACTERS), nullable=False, server_default=""),
        Column("holder", ExactText(255)),
        Column("node", ExactText(255)),
        Column("attempts", Integer, nullable=False, server_default="0"),
        Column("taken_ahead", Integer, nullable=False, server_default="0"),
        Column("crashes", Integer, nullable=False, server_default="0"),
        Column("last_error", LongText),
        Column("created", BigInteger, nullable=False, server_default="0"),
        Column("updated", BigInteger, nullable=False, server_default="0"),
        CheckConstraint('typeof("key") = \'text\' AND length("key") BETWEEN 1 AND 255', name=f"{name}_key").ddl_if(
            dialect="sqlite"
        ),
        info={"claimed": claimed},
        **MYSQL_OPTIONS,
    )
