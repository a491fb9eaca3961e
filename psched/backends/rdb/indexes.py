"""The indexes of who holds what and of a queue's users, where an index can leave rows out and where it cannot.

Children and clients.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from sqlalchemy import Column, ColumnElement, Computed, Index, Select, Table, literal_column, text


class OfUsers(NamedTuple):
    """What indexes have of tasks with a user; NULL for those without, unless an index can leave these out."""

    band: ColumnElement[Any]
    due: ColumnElement[Any]
    holder: ColumnElement[Any]


def of_users(queue: Table) -> OfUsers:
    """Return the columns by which tasks with a user are found."""
    c = queue.c
    return OfUsers(c.user_band, c.user_due, c.user_holder) if "user_due" in c else OfUsers(c.band, c.due, c.holder)


def has_user(queue: Table) -> ColumnElement[bool]:
    """Return the condition that a row is in the indexes of users; a parameter would not show that it is."""
    return queue.c.user_name > literal_column("''")


def has_user_and_type(queue: Table) -> ColumnElement[bool]:
    """Return the condition that a row is in the index of users by type.

    It says the same as `has_user` in other words, so that the index of users is not taken for a query by type. Say
    the user's name by a subquery then: PostgreSQL concludes from a name that is told that it is not empty.
    """
    return queue.c.user_name != literal_column("''")


def by_type(rows: Select[Any], table: Table) -> Select[Any]:
    """Return a SELECT of rows of one type that is read by the index on type.

    MariaDB and MySQL take the index of all types where most rows are of this type, and so read what is due of others.
    """
    force = f"FORCE INDEX ({table.name}_type_due)"
    return rows.with_hint(table, force, "mysql").with_hint(table, force, "mariadb")


def index_some(queue: Table) -> None:
    """Add the indexes that leave out what they are not asked for."""
    c, name = queue.c, queue.name
    retired = text("purge_at IS NOT NULL")
    typed = text("band IS NOT NULL AND user_name <> ''")
    waits, runs = text("band IS NOT NULL AND user_name > ''"), text("holder IS NOT NULL AND user_name > ''")
    Index(f"{name}_user_due", c.band, c.user_name, c.due, c.key, postgresql_where=waits, sqlite_where=waits)
    Index(
        f"{name}_type_user_due", c.type, c.band, c.user_name, c.due, c.key, postgresql_where=typed, sqlite_where=typed
    )
    Index(f"{name}_user_run", c.user_name, c.holder, postgresql_where=runs, sqlite_where=runs)
    Index(f"{name}_purge", c.purge_at, postgresql_where=retired, sqlite_where=retired)
    index_holders(queue)


def index_all(queue: Table) -> None:
    """Add the columns of `OfUsers` and the indexes: those of users, and one of what is held or kept."""
    name = queue.name
    for column in (queue.c.band, queue.c.due, queue.c.holder):
        made = Computed(f"CASE WHEN user_name > '' THEN {column.name} END", persisted=True)
        queue.append_column(Column(f"user_{column.name}", column.type, made))
    c, users = queue.c, of_users(queue)
    Index(f"{name}_of_user_due", users.band, c.user_name, users.due, c.key)
    Index(f"{name}_of_type_user_due", c.type, users.band, c.user_name, users.due, c.key)
    Index(f"{name}_of_user_run", c.user_name, users.holder)
    Index(f"{name}_held", c.holder, c.purge_at, c.claim)


def index_holders(table: Table) -> None:
    """Add the index of who holds what."""
    held = text("holder IS NOT NULL")
    Index(f"{table.name}_holder", table.c.holder, postgresql_where=held, sqlite_where=held)
