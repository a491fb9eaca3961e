"""The tables of `rdb`: times are unix milliseconds, keys compare byte by byte. Children and clients."""

from __future__ import annotations

from typing import Any

from sqlalchemy import BigInteger, CheckConstraint, Column, Computed, Index, Integer, MetaData, String, Table, text

from psched.backends.lease_endings import MOST_CHARACTERS
from psched.backends.rdb.indexes import index_all, index_holders, index_some
from psched.backends.sql.layout import checked_name
from psched.dialects.base import ExactText, LongText

USER_BAND = 1000
"""What sets the bands of tasks with a user apart; more than twice any priority."""

_LEASED = ("key", "ready", "fence", "due", "claim", "nonce")
_SHARED = ("type", "data", "attempts", "last_error")
CLAIMED_OF_TASK = (
    *_LEASED,
    *_SHARED,
    *("cancel_requested", "run_at", "created", "user_name", "max_running", "priority", "max_attempts", "size"),
    "taken_ahead",
)
CLAIMED_OF_SCHEDULE = (
    *_LEASED,
    *_SHARED,
    *("cron", "timezone", "delay_ms", "next_time", "last_time", "extra", "regular_time", "regular_due"),
    *("paused_from", "paused_until", "earlier_pauses", "extra_waits"),
    *("catch_up", "max_lateness_ms", "alert_after_ms", "max_attempts", "version", "size"),
    "taken_ahead",
)
"""What is read of a row that was just leased, in this order."""

AHEAD = 1
"""`taken_ahead` of a lease whose run is not recorded as begun."""
AHEAD_AGAIN = 2
"""The same, when the row's last lease ended by itself: this run is recorded as begun before it begins."""
EXPIRED = 3
"""`taken_ahead` of a waiting row whose last lease ended by itself."""

WAITING = "waiting"
RUNNING = "running"
FINISHED = "finished"
FAILED = "failed"
CANCELLED = "cancelled"


def schedules_table(metadata: MetaData, name: str) -> Table:
    """Return the table of schedules. Raises ConfigError for a name that is no plain identifier.

    `version` counts the changes of the definition; `last_time` is the regular occurrence that was settled last, `extra`
    the last one that `run_now` asked for. While `next_time` is that of an extra run, `regular_time` is the regular
    occurrence that comes after it, due at `regular_due`. `paused_from` and `paused_until` (NULL: it lasts) are the last
    pause, `earlier_pauses` those before it that may have occurrences still to be skipped, as `<from>-<until>` with
    spaces between them; `extra_waits` is 1 when what `run_now` asked for waits for the end of the pause. Of the alarm:
    `alert_at` is when the next regular occurrence is too late (NULL for never), `alerted` the last occurrence that was
    told, `ringing_until` the end of the claim of the node that is telling.
    `failing` is when `next_time` was to run, NULL unless an attempt of it has failed: an index that a schedule without
    failures never writes to.
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
        Column("max_lateness_ms", BigInteger),
        Column("alert_after_ms", BigInteger),
        Column("max_attempts", Integer),
        Column("alert_at", BigInteger),
        Column("alerted", BigInteger),
        Column("ringing_until", BigInteger),
        Column("paused_from", BigInteger),
        Column("paused_until", BigInteger),
        Column("earlier_pauses", LongText),
        Column("extra_waits", Integer),
    )
    failed = "attempts > CASE WHEN status = 'running' THEN 1 ELSE 0 END"
    made = Computed(f"CASE WHEN {failed} THEN next_time + delay_ms END", persisted=True)
    table.append_column(Column("failing", BigInteger, made))
    c = table.c
    watched, failing = text("alert_at IS NOT NULL"), text("failing IS NOT NULL")
    Index(f"{name}_due", c.due, c.key)
    Index(f"{name}_type_due", c.type, c.due, c.key)
    index_holders(table)
    Index(f"{name}_alert", c.alert_at, c.key, postgresql_where=watched, sqlite_where=watched)
    Index(f"{name}_failing", c.failing, c.key, postgresql_where=failing, sqlite_where=failing)
    return table


def ledger_table(metadata: MetaData, schedules: str) -> Table:
    """Return the table of what was settled.

    Its primary key has the occurrences of a schedule together. `extra` is 1 for a run besides those. `trouble` is 1
    when not all went well, so that failures are found by the index that finds what is old.
    """
    table = Table(
        f"{checked_name(schedules)}_ledger",
        metadata,
        Column("key", ExactText(255), primary_key=True),
        Column("scheduled_time", BigInteger, primary_key=True),
        Column("fence", BigInteger, primary_key=True),
        Column("version", BigInteger, nullable=False),
        Column("outcome", String(16), nullable=False),
        Column("detail", LongText),
        Column("last_time", BigInteger),
        Column("occurrences", Integer),
        Column("extra", Integer, nullable=False, server_default="0"),
        Column("previous", BigInteger),
        Column("attempts", Integer, nullable=False),
        Column("trouble", Integer, nullable=False),
        Column("node", ExactText(255)),
        Column("started", BigInteger),
        Column("ended", BigInteger, nullable=False),
        Column("error", LongText),
        Column("reckoning", String(64), nullable=False),
        mysql_engine="InnoDB",
        mysql_charset="utf8mb4",
    )
    c = table.c
    Index(f"{table.name}_ended", c.trouble, c.ended, c.key, c.scheduled_time, c.fence)
    return table


def changes_table(metadata: MetaData, schedules: str) -> Table:
    """Return the table of the changes of definitions, one row for each version of a schedule.

    `number` is that of the call that made the change, by which it is known again when its answer was lost.
    `paused_from` and `paused_until` are the schedule's last pause then.
    """
    return Table(
        f"{checked_name(schedules)}_changes",
        metadata,
        Column("key", ExactText(255), primary_key=True),
        Column("version", BigInteger, primary_key=True),
        Column("changed", BigInteger, nullable=False),
        Column("action", String(16), nullable=False),
        Column("node", ExactText(255)),
        Column("type", ExactText(255), nullable=False),
        Column("cron", ExactText(255), nullable=False),
        Column("timezone", ExactText(255), nullable=False),
        Column("delay_ms", BigInteger, nullable=False),
        Column("catch_up", String(8), nullable=False),
        Column("max_lateness_ms", BigInteger),
        Column("alert_after_ms", BigInteger),
        Column("max_attempts", Integer),
        Column("pending", BigInteger),
        Column("first_time", BigInteger, nullable=False),
        Column("due", BigInteger, nullable=False),
        Column("reckoning", String(64)),
        Column("number", BigInteger),
        Column("paused_from", BigInteger),
        Column("paused_until", BigInteger),
        mysql_engine="InnoDB",
        mysql_charset="utf8mb4",
    )


def failures_table(metadata: MetaData, name: str) -> Table:
    """Return the table of runs that have failed for good, and nobody was told of, beside a table of rows.

    `telling_until` is the end of the claim of the node that is telling of it. The table is empty but for that.
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
        Column("telling_until", BigInteger, nullable=False, server_default="0"),
        mysql_engine="InnoDB",
        mysql_charset="utf8mb4",
    )
    Index(f"{table.name}_telling", table.c.telling_until, table.c.key)
    return table


def queue_table(metadata: MetaData, name: str, partial_indexes: bool) -> Table:
    """Return the table of queue tasks. Raises ConfigError for a name that is no plain identifier.

    `band` (see `band_of`) is NULL once a task is retired, as is `due`; `purge_at` is NULL until then. `user_name` is
    empty for a task without user. The indexes serve these questions: what is due in a band; what is due of one user in
    a band, and of a type besides; how many tasks of a user are running; what is due of a type; whose retention is over;
    who holds what.

    Each index that has a task costs it several writes. `partial_indexes`: tasks without user can be left out of those
    of users. Else these have columns of their own (`OfUsers`), which stay as they are for such a task whatever it does.
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
    in_band = text("band IS NOT NULL")
    Index(f"{name}_due", c.band, c.due, c.key, postgresql_where=in_band, sqlite_where=in_band)
    Index(f"{name}_type_due", c.type, c.band, c.due, c.key, postgresql_where=in_band, sqlite_where=in_band)
    (index_some if partial_indexes else index_all)(table)
    return table


def users_table(metadata: MetaData, queue: str) -> Table:
    """Return the table of a queue's users: a row to be changed, and so locked, by whoever claims tasks of one."""
    return Table(
        f"{checked_name(queue)}_users",
        metadata,
        Column("user_name", ExactText(255), primary_key=True),
        Column("version", BigInteger, nullable=False, server_default="0"),
        mysql_engine="InnoDB",
        mysql_charset="utf8mb4",
    )


def band_of(user: str | None, priority: int) -> int:
    """Return the band of a waiting or running task: rows that are claimed alike, the highest priority first."""
    return priority if user is None else priority + USER_BAND


def milliseconds(seconds: float) -> int:
    """Return unix seconds as the tables keep them. Raises ValueError for what is no time of this calendar."""
    if not abs(seconds) < 253_402_300_800:
        raise ValueError(f"{seconds!r} is no time that can be stored: the last year is 9999")
    return round(seconds * 1000)


def has_users(band: int) -> bool:
    """Tell whether the rows of a band have users."""
    return band > USER_BAND // 2


def _leased_table(
    metadata: MetaData, name: str, claimed: tuple[str, ...], *columns: Column[Any] | CheckConstraint
) -> Table:
    """Return a table of due rows with leases: everything that leases.py writes, and `columns`.

    CHECK constraints keep out rows that could never be due, and keys that SQLite alone would store: what else may stand
    in a row costs that row only, but these could not be named, settled or deleted.

    `claimed`: the columns that are read of a row that was just leased.

    `size` is how many bytes the data has as JSON, compressed or not. Among `columns` is `due`: when the row is due or
    its lease ends, NULL once it is finished for good. `ready` is what `due` was before the last acquire, `claim` which
    acquire that was, `nonce` which `add` made the row, `endings` how its last leases ended; `holder` is NULL unless it
    is leased. `attempts` counts the present lease, and earlier ones that were not given back; but not one that ended by
    itself while `taken_ahead` was `AHEAD` or `AHEAD_AGAIN`: no run was recorded as begun under it. It is 0 once one is.
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
        mysql_engine="InnoDB",
        mysql_charset="utf8mb4",
    )
