"""The tables and indexes of the store `rdb`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa

from psched.backends.common.ended_leases import MOST_CHARACTERS
from psched.backends.common.rows import (
    CLAIMED_OF_SCHEDULE,
    CLAIMED_OF_TASK,
    RUNNING,
    TASK_CANCELLED,
    TASK_FAILED,
    TASK_FINISHED,
    WAITING,
)
from psched.backends.common.table_name_check import checked_name
from psched.backends.sql.bulk_statements import rows_in
from psched.backends.sql.dialect import MYSQL_OPTIONS, Dialect, ExactText, LongText, met_by_all, with_index_hint
from psched.backends.sql.ledger import limit_columns, option_columns
from psched.keys import BACKFILL_PREFIX

HAS_ENDED = f"status IN ('{TASK_FAILED}', '{TASK_CANCELLED}')"
"""SQL condition of the index of failed and cancelled tasks. The index is small, because most ended tasks are finished.
"""


def user_column(queue: sa.Table, name: str) -> sa.ColumnElement[Any]:
    """Return the column `band`, `due` or `holder` of the indexes of tasks with user.

    On a database without partial indexes, the column is NULL for tasks without user.
    """
    return queue.c.get(f"user_{name}", queue.c[name])


def has_user(queue: sa.Table) -> sa.ColumnElement[bool]:
    """Return the condition that a row is in the indexes of users.

    The empty name is part of the SQL text: with a parameter, no planner would use these indexes.
    """
    return met_by_all(queue.c.user_name > sa.literal_column("''"))


def is_no_backfill(schedules: sa.Table) -> sa.ColumnElement[bool]:
    """Return the condition that a row is a real schedule, not the row of a backfill."""
    first: sa.ColumnElement[str] = sa.literal_column(f"'{BACKFILL_PREFIX}'")
    end: sa.ColumnElement[str] = sa.literal_column(f"'{BACKFILL_PREFIX[:-1]};'")  # ";" is the character after ":"
    return (schedules.c.key < first) | (schedules.c.key >= end)


def has_user_and_type(queue: sa.Table) -> sa.ColumnElement[bool]:
    """Return the condition that a row is in the index of users by type.

    The condition selects the same rows as `has_user`, but its SQL text differs from the condition of the index of
    users, so that a query by type does not use that index. Such a query must get the user's name from a subquery. With
    a parameter, PostgreSQL would know that the name is not empty, and might use the index of users.
    """
    return queue.c.user_name != sa.literal_column("''")


def highest_band(queue: sa.FromClause, *conditions: sa.ColumnElement[bool]) -> sa.ScalarSelect[Any]:
    """Return the highest band of the tasks that meet `conditions`, as a subquery that reads one row of the index `due`.

    With max() PostgreSQL would read all waiting tasks if none were waiting when it last analysed the table.
    """
    order = [queue.c[name].desc() for name in ("band", "due", "key")]
    return sa.select(queue.c.band).where(*conditions).order_by(*order).limit(1).scalar_subquery()


def of_type(
    dialect: type[Dialect], rows: sa.Select[Any], table: sa.Table, type_: sa.ColumnElement[str]
) -> sa.Select[Any]:
    """Return the SELECT of those of `rows` that have a type, earliest due time first. It reads the index `type_due`.

    If most rows of the table have one type, an index on `due` looks equally good to a planner. But that index also has
    the rows of other types. MariaDB and MySQL obey a hint. PostgreSQL must find no other index with the order of the
    SELECT. In this order it ignores a column with a plain equality.
    """
    condition, same = type_condition_and_order(dialect, table, type_)
    return with_index_hint(rows.where(condition).order_by(*same, table.c.due, table.c.key), table, "type_due")


def type_condition_and_order(
    dialect: type[Dialect], table: sa.Table, type_: sa.ColumnElement[str]
) -> tuple[sa.ColumnElement[bool], Sequence[sa.ColumnElement[Any]]]:
    """Return the condition that a row has a type, and the columns that must precede the due time in an order.

    See `of_type`.
    """
    same = (table.c.type,) if dialect.order_chooses_index else ()
    return dialect.by_index(table.c.type, type_), same


def leased_of_users(dialect: type[Dialect], queue: sa.Table, *columns: sa.ColumnElement[Any]) -> sa.Select[Any]:
    """Return a SELECT of the leased tasks of :users. Pass the names through `listed_twice`.

    If no task was leased when PostgreSQL last analysed the table, the index by holder looks as good as that by user.
    But that index also has the tasks of other users, and lacks the order of this SELECT.
    """
    c, holder = queue.c, user_column(queue, "holder")
    of_users = (has_user(queue), c.user_name.in_(sa.bindparam("users", expanding=True)))
    rows = sa.select(*columns).where(*of_users, holder > "", c.status == RUNNING)
    return rows.order_by(c.user_name, holder) if dialect.order_chooses_index else rows


def listed_twice(names: Sequence[str]) -> Sequence[str]:
    """Return the names, of which the last occurs twice.

    With a single name PostgreSQL would take IN for `=`, and would ignore the name in the order of the rows.
    """
    return [*names, *names[-1:]]


def wanted_types(table: sa.Table) -> sa.FromClause:
    """Return a table of the types in :types, with the column `wanted_type`.

    `column_as_parameter` makes the value of :types.
    """
    return rows_in("types", [sa.column("wanted_type", table.c.type.type)])


def _index(table: sa.Table, suffix: str, columns: Sequence[sa.ColumnElement[Any]], where: str | None = None) -> None:
    """Add an index. If the database has partial indexes, the index contains only rows that meet `where`."""
    condition = None if where is None else sa.text(where)
    sa.Index(f"{table.name}_{suffix}", *columns, postgresql_where=condition, sqlite_where=condition)


def _add_partial_indexes(queue: sa.Table) -> None:
    """Add indexes that leave out rows that no query needs."""
    c = queue.c
    _index(queue, "user_due", [c.band, c.user_name, c.due, c.key], "band IS NOT NULL AND user_name > ''")
    _index(queue, "type_user_due", [c.type, c.band, c.user_name, c.due, c.key], "band IS NOT NULL AND user_name <> ''")
    _index(queue, "user_run", [c.user_name, c.holder], "holder IS NOT NULL AND user_name > ''")
    _index(queue, "purge", [c.purge_at], "purge_at IS NOT NULL")
    _index(queue, "holder", [c.holder], "holder IS NOT NULL")
    _index(queue, "ended", [c.status, c.key], HAS_ENDED)


def has_status(queue: sa.Table, status: str) -> Sequence[sa.ColumnElement[bool]]:
    """Return conditions by which an index finds the rows with this status."""
    c, is_status = queue.c, queue.c.status == sa.literal_column(f"'{status}'")
    if status in (TASK_FAILED, TASK_CANCELLED):
        has_ended = c.status.in_([sa.literal_column(f"'{each}'") for each in (TASK_FAILED, TASK_CANCELLED)])
        # the same text as in the condition of the index
        return (is_status, c.ended == status if "ended" in c else has_ended)
    if status == TASK_FINISHED:
        return (is_status, c.holder.is_(None), c.purge_at.is_not(None))
    return (is_status, c.band.is_not(None) if status == WAITING else c.holder.is_not(None))


def _add_full_indexes(queue: sa.Table) -> None:
    """Add the indexes for a database without partial indexes.

    They are on the columns of `user_column`, on `holder` and `purge_at`, and on a column `ended`. These columns are
    added, too. `ended` is NULL for tasks that have not failed and are not cancelled.
    """
    for source in (queue.c.band, queue.c.due, queue.c.holder):
        made = sa.Computed(f"CASE WHEN user_name > '' THEN {source.name} END", persisted=True)
        queue.append_column(sa.Column(f"user_{source.name}", source.type, made))
    c = queue.c
    _index(queue, "of_user_due", [c.user_band, c.user_name, c.user_due, c.key])
    _index(queue, "of_type_user_due", [c.type, c.user_band, c.user_name, c.user_due, c.key])
    _index(queue, "of_user_run", [c.user_name, c.user_holder])
    _index(queue, "held", [c.holder, c.purge_at, c.claim])
    made = sa.Computed(f"CASE WHEN {HAS_ENDED} THEN status END", persisted=True)
    queue.append_column(sa.Column("ended", queue.c.status.type, made))
    _index(queue, "has_ended", [c.ended, c.key])


USER_BAND = 1000
"""What `band_of` adds to the priority of a task with user. It is more than twice any priority."""
ABOVE_ALL_BANDS = 2 * USER_BAND


def schedules_table(metadata: sa.MetaData, name: str) -> sa.Table:
    """Return the table of schedules. Raises ConfigError if `name` is not a plain identifier.

    - `version` counts the changes of the definition.
    - `last_time` is the last settled regular occurrence. `extra` is the last occurrence that `run_now` requested.
    - While `next_time` is an extra run, `regular_time` is the next regular occurrence, which is due at `regular_due`.
    - `paused_from` and `paused_until` are the last pause; `paused_until` is NULL while the pause lasts.
    - `earlier_pauses` are earlier pauses with occurrences that still have to be skipped, as `<from>-<until>`, separated
      by spaces.
    - `extra_waits` is 1 if a run by `run_now` waits for the end of the pause.
    - `runs` counts runs for `max_runs`. `failures` counts failures in a row for `pause_after`.
    - `previous_ended` is when the previous run was settled, for `overlap`.
    - `alert_at` is when psched reports the next regular occurrence as late; NULL without `alert_after`, and for a
      schedule that is paused or has ended.
    - `alerted` is the last occurrence whose alert was sent. A node that sends an alert reserves it until
      `alert_claimed_until`.
    - `failing` is the run time of `next_time` if an attempt has failed, else NULL. So a schedule without failures never
      writes to the index on `failing`.
    """
    table = _leased_table(
        metadata,
        name,
        CLAIMED_OF_SCHEDULE,
        sa.Column("cron", ExactText(255), nullable=False),
        sa.Column("timezone", ExactText(255), nullable=False),
        sa.Column("delay_ms", sa.BigInteger, nullable=False),
        sa.Column("next_time", sa.BigInteger, nullable=False),
        sa.Column("due", sa.BigInteger, nullable=False),
        sa.Column("version", sa.BigInteger, nullable=False, server_default="0"),
        sa.Column("last_time", sa.BigInteger),
        sa.Column("extra", sa.BigInteger),
        sa.Column("regular_time", sa.BigInteger),
        sa.Column("regular_due", sa.BigInteger),
        sa.Column("catch_up", sa.String(8), nullable=False, server_default="all"),
        *limit_columns(),
        sa.Column("alert_at", sa.BigInteger),
        sa.Column("alerted", sa.BigInteger),
        sa.Column("alert_claimed_until", sa.BigInteger),
        sa.Column("paused_from", sa.BigInteger),
        sa.Column("paused_until", sa.BigInteger),
        sa.Column("earlier_pauses", LongText),
        sa.Column("extra_waits", sa.Integer),
        sa.Column("runs", sa.Integer),
        sa.Column("failures", sa.Integer),
        sa.Column("previous_ended", sa.BigInteger),
        *option_columns(),
    )
    failed = "attempts > CASE WHEN status = 'running' THEN 1 ELSE 0 END"
    made = sa.Computed(f"CASE WHEN {failed} THEN next_time + delay_ms END", persisted=True)
    table.append_column(sa.Column("failing", sa.BigInteger, made))
    c = table.c
    _index(table, "due", [c.due, c.key])
    _index(table, "type_due", [c.type, c.due, c.key])
    _index(table, "holder", [c.holder], "holder IS NOT NULL")
    _index(table, "alert", [c.alert_at, c.key], "alert_at IS NOT NULL")
    _index(table, "failing", [c.failing, c.key], "failing IS NOT NULL")
    _index(table, "owner", [c.owner, c.key], "owner IS NOT NULL")
    return table


def calendars_table(metadata: sa.MetaData, schedules: str) -> sa.Table:
    """Return the table of calendars. `content`: JSON; NULL if deleted. `changed`: unix milliseconds."""
    return sa.Table(
        f"{checked_name(schedules)}_calendars",
        metadata,
        sa.Column("name", ExactText(255), primary_key=True),
        sa.Column("version", sa.Integer, nullable=False),
        sa.Column("content", LongText),
        sa.Column("changed", sa.BigInteger, nullable=False),
        **MYSQL_OPTIONS,
    )


def failures_table(metadata: sa.MetaData, name: str) -> sa.Table:
    """Return the table of runs that failed for good and are not reported yet.

    A node that reports a failure reserves it until `claimed_until`.
    """
    table = sa.Table(
        f"{checked_name(name)}_failures",
        metadata,
        sa.Column("key", ExactText(255), primary_key=True),
        sa.Column("scheduled_time", sa.BigInteger, primary_key=True),
        sa.Column("fence", sa.BigInteger, primary_key=True),
        sa.Column("type", ExactText(255), nullable=False),
        sa.Column("attempts", sa.Integer, nullable=False),
        sa.Column("error", LongText),
        sa.Column("node", ExactText(255), nullable=False),
        sa.Column("failed", sa.BigInteger, nullable=False),
        sa.Column("claimed_until", sa.BigInteger, nullable=False, server_default="0"),
        **MYSQL_OPTIONS,
    )
    _index(table, "claimed", [table.c.claimed_until, table.c.key])
    return table


def queue_table(metadata: sa.MetaData, name: str, partial_indexes: bool) -> sa.Table:
    """Return the table of queue tasks. Raises ConfigError if `name` is not a plain identifier.

    `band` is the priority of a task, plus 1,000 if the task has a user; workers acquire tasks of a higher band first.
    `band` and `due` are NULL for a task that has ended. `purge_at` is NULL for a task that has not ended. `user_name`
    is empty for a task without user. `headers`, `progress` and `result` are JSON. The indexes find: due tasks in a
    band; due tasks of a user in a band, also by type; the running tasks of a user; due tasks of a type; tasks whose
    retention is over; the tasks of a holder; failed and cancelled tasks.

    Each index that contains a task costs several writes per run. `partial_indexes`: whether the indexes of users leave
    out tasks without user. If not, these indexes are on separate columns (`user_column`). These are NULL for tasks
    without user.
    """
    table = _leased_table(
        metadata,
        name,
        CLAIMED_OF_TASK,
        sa.Column("run_at", sa.BigInteger, nullable=False),
        sa.Column("due", sa.BigInteger),
        sa.Column("user_name", ExactText(255), nullable=False, server_default=""),
        sa.Column("max_running", sa.Integer),
        sa.Column("priority", sa.Integer, nullable=False, server_default="0"),
        sa.Column("band", sa.Integer),
        sa.Column("max_attempts", sa.Integer),
        sa.Column("cancel_requested", sa.Integer, nullable=False, server_default="0"),
        sa.Column("headers", LongText),
        sa.Column("progress", LongText),
        sa.Column("result", LongText),
        sa.Column("finished_at", sa.BigInteger),
        sa.Column("purge_at", sa.BigInteger),
        sa.CheckConstraint("(due IS NULL) = (status <> 'waiting' AND status <> 'running')", name=f"{name}_has_due"),
        sa.CheckConstraint("(due IS NULL) = (band IS NULL)", name=f"{name}_has_band"),
        sa.CheckConstraint(
            f"band = priority + CASE WHEN user_name > '' THEN {USER_BAND} ELSE 0 END", name=f"{name}_right_band"
        ),
        sa.CheckConstraint("purge_at IS NULL OR due IS NULL", name=f"{name}_no_purge"),
        sa.CheckConstraint("max_running >= 1", name=f"{name}_max_running"),
        sa.CheckConstraint("typeof(user_name) = 'text'", name=f"{name}_user").ddl_if(dialect="sqlite"),
    )
    c = table.c
    _index(table, "due", [c.band, c.due, c.key], "band IS NOT NULL")
    _index(table, "type_due", [c.type, c.band, c.due, c.key], "band IS NOT NULL")
    (_add_partial_indexes if partial_indexes else _add_full_indexes)(table)
    return table


def users_table(metadata: sa.MetaData, queue: str) -> sa.Table:
    """Return the table of a queue's users. A worker that acquires tasks of a user locks and changes the user's row."""
    return sa.Table(
        f"{checked_name(queue)}_users",
        metadata,
        sa.Column("user_name", ExactText(255), primary_key=True),
        sa.Column("version", sa.BigInteger, nullable=False, server_default="0"),
        **MYSQL_OPTIONS,
    )


def band_of(user: str | None, priority: int) -> int:
    """Return the band of a waiting or running task.

    All rows of a band have the same precedence; higher bands are acquired first.
    """
    return priority if user is None else priority + USER_BAND


def has_users(band: int) -> bool:
    return band > USER_BAND // 2


def _leased_table(
    metadata: sa.MetaData, name: str, claimed: tuple[str, ...], *columns: sa.Column[Any] | sa.CheckConstraint
) -> sa.Table:
    """Return a table of due rows with leases: the columns that lease_statements.py writes, and `columns`.

    CHECK constraints refuse rows that could never be due, and keys that only SQLite would store: no statement could
    find, settle or delete such rows. Any other invalid value harms only its own row.

    `claimed`: the columns that are read from a row that was just leased.

    - `size` is the number of bytes of the data as JSON, compressed or not.
    - `due`, one of `columns`, is when the row is due or its lease ends; NULL after the row is finished for good.
    - `ready` is the value of `due` before the last acquire, `claim` the number of that acquire.
    - `nonce` is the number of the call that inserted the row. `endings` records how the row's last leases ended.
    - `holder` is NULL if the row is not leased.
    - `attempts` counts the current lease and earlier leases that were not released. It does not count a lease that
      expired while `taken_ahead` was `AHEAD` or `AHEAD_AGAIN`, because no run started under it.
    - `taken_ahead` is 0 after a run is recorded as started.
    """
    return sa.Table(
        checked_name(name),
        metadata,
        sa.Column("key", ExactText(255), primary_key=True),
        sa.Column("type", ExactText(255), nullable=False),
        sa.Column("data", LongText, nullable=False),
        sa.Column("size", sa.BigInteger, nullable=False, server_default="0"),
        *columns,
        sa.Column("ready", sa.BigInteger),
        sa.Column("status", sa.String(16), nullable=False, server_default=WAITING),
        sa.Column("fence", sa.BigInteger, nullable=False, server_default="0"),
        sa.Column("claim", sa.BigInteger),
        sa.Column("nonce", sa.BigInteger, nullable=False, server_default="0"),
        sa.Column("endings", sa.String(MOST_CHARACTERS), nullable=False, server_default=""),
        sa.Column("holder", ExactText(255)),
        sa.Column("node", ExactText(255)),
        sa.Column("attempts", sa.Integer, nullable=False, server_default="0"),
        sa.Column("taken_ahead", sa.Integer, nullable=False, server_default="0"),
        sa.Column("crashes", sa.Integer, nullable=False, server_default="0"),
        sa.Column("last_error", LongText),
        sa.Column("created", sa.BigInteger, nullable=False, server_default="0"),
        sa.Column("updated", sa.BigInteger, nullable=False, server_default="0"),
        sa.CheckConstraint('typeof("key") = \'text\' AND length("key") BETWEEN 1 AND 255', name=f"{name}_key").ddl_if(
            dialect="sqlite"
        ),
        info={"claimed": claimed},
        **MYSQL_OPTIONS,
    )
