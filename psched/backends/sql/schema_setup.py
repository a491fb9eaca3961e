"""Creates, upgrades, checks and diagnoses the tables of a store. A separate table records the tables' layout."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cache, partial
from typing import Any

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError
from sqlalchemy.schema import CreateIndex, CreateTable

from psched.backends.common import layout_version
from psched.backends.common.layout_version import RecordedLayout, Standing
from psched.backends.common.retries import RetryReason
from psched.backends.sql import upgrades
from psched.backends.sql.compiled_statements import Statement, cached, execute_text
from psched.backends.sql.database import Database
from psched.backends.sql.dialect import MYSQL_OPTIONS, Dialect, ExactText, verbatim
from psched.error_messages import one_line
from psched.errors import ConfigError
from psched.store.doctor_finding import Finding, unwritable

log = logging.getLogger(__name__)

_TRIES = 20
"""The maximum number of attempts of `psched init`. An attempt fails if another program creates the same table or index
at the same time.
"""
_SHOWN = 5
"""How many missing columns an error message names."""


class Schema:
    """The tables of a store with their indexes. The columns of the main table are checked, too."""

    _is_shared = True
    """Whether other programs also create these tables. If so, a wrong collation is only a warning."""

    def __init__(self, database: Database, table: sa.Table, key: str, maker: str, *others: sa.Table) -> None:
        """`key`: the column of the keys. `maker`: for messages, the program that creates these tables."""
        self._database = database
        self._table = table
        self._tables = (table, *others)
        self._indexed: Sequence[sa.Table] = self._tables
        self._key = key
        self._maker = maker

    def create(self) -> None:
        """Create missing tables and indexes, and upgrade tables of an earlier layout.

        Only one process at a time changes existing tables. Raises ConfigError in these cases: another program or
        version created the table, the server is too old, the file cannot be used, or a table cannot be changed while
        workers run.
        """
        dialect = self._database.dialect
        dialect.create_database()
        with self._database.patient() as patient:
            for left in reversed(range(_TRIES)):
                try:
                    problem = patient.run(lambda connection, _: dialect.too_old(connection) or self._create(connection))
                    if problem is None:
                        problem = self._upgrade(patient)
                    break
                except DBAPIError as error:
                    problem = dialect.unusable_file(error)
                    if problem is not None:
                        break
                    if left == 0 or not dialect.is_already_there(error):
                        raise
        if problem is not None:
            raise ConfigError(problem)

    def _upgrade(self, patient: Database) -> str | None:
        """Make the changes that the tables need. Return an error message if the tables must stay unchanged, else None.

        `patient`: the database with long timeouts, for building indexes. The lock of `psched init` needs its own
        session, and a pooler may offer none. So the lock is taken only if there is something to change.
        """
        changes = partial(patient.run, lambda connection, _: self._changes(connection))
        if not changes():
            return None
        with patient.dialect.init_lock(patient.dedicated):
            for change in changes():
                # A statement that waits for a lock on the table makes others wait. So only the building of an index may
                # wait for an hour.
                database = patient if change.is_index else self._database
                log.debug("table=%s %s", change.table, change.sql)
                try:
                    database.run(partial(_execute, database.dialect, change))
                except DBAPIError as error:
                    if not database.dialect.is_only_offline(error):
                        raise
                    return (
                        f"{change.table} cannot be changed while workers run: {one_line(error)}; stop all workers, run "
                        f"{upgrades.offline(change.sql)}, and then again: psched init"
                    )
        return None

    def pending(self) -> list[str]:
        """Return the SQL by which `create` would change existing tables.

        Raises ConfigError as `check` does, but not for tables that can be upgraded.
        """
        self.check()
        return [change.sql for change in self._database.run(lambda connection, _: self._changes(connection))]

    def check(self) -> None:
        """Raise ConfigError, with the remedy, if the table cannot be used as it is."""
        problem = self.problem()
        if problem is not None:
            raise ConfigError(problem)

    def problem(self) -> str | None:
        """Return an error message with the remedy if the table cannot be used, else None."""
        dialect = self._database.dialect
        try:
            return self._database.run(lambda connection, _: dialect.too_old(connection) or self._problem(connection))
        except DBAPIError as error:
            problem = dialect.unusable_file(error)
            if problem is None and not dialect.is_missing_table(error):
                raise
            return problem or self._is_missing(self._table)

    def diagnose(self, writing: bool) -> Iterator[Finding]:
        database, problem = self._database, self.problem()
        pooler = database.dialect.pooler_finding(database.run, database.dedicated)
        if pooler is not None:
            yield pooler
        yield Finding("table", problem is None, f"{self._table.name} exists" if problem is None else problem)
        if problem is None:
            yield from database.run(lambda connection, _: list(self._findings(connection, writing)))

    def _create(self, connection: sa.Connection) -> str | None:
        """Create the table, with its indexes, if it is missing. Return an error message if it cannot be used."""
        self._create_table(connection, self._table)
        return self._column_problem(self._columns(connection, self._table))

    def _create_table(self, connection: sa.Connection, table: sa.Table) -> None:
        if not sa.inspect(connection).has_table(table.name):
            for statement in _creation(table):
                connection.execute(statement)

    def _changes(self, connection: sa.Connection) -> list[upgrades.UpgradeStatement]:
        dialect = connection.dialect
        with self._database.transaction(connection):  # so that no other session drops a table meanwhile
            missing = self._missing_indexes(connection)
        broken = self._database.dialect.invalid_indexes(connection, [str(index.name) for index in missing])
        made: list[upgrades.UpgradeStatement] = []
        for index in missing:
            table, name = _of_index(index).name, str(index.name)
            if name in broken:
                made.append(upgrades.UpgradeStatement(table, upgrades.drop_index(name, dialect), is_index=True))
            made.append(upgrades.UpgradeStatement(table, upgrades.add_index(index, dialect), is_index=True))
        return made

    def _problem(self, connection: sa.Connection) -> str | None:
        return self._column_problem(self._columns(connection, self._table))

    def _is_missing(self, table: sa.Table) -> str:
        return f"the table {table.name} does not exist; create it with: psched init (for a queue: psched queue init)"

    def _columns(self, connection: sa.Connection, table: sa.Table) -> Collection[str] | None:
        """Return the names of a table's columns; None if the table does not exist.

        Reads them from an empty answer. SQLAlchemy would read the catalogue with statements that take 4 MB of memory.
        """
        statement = cached(_no_rows, table)
        try:
            with self._database.savepoint(connection):
                answer = execute_text(connection, *statement.step(connection, {}))
            return [column[0] for column in (answer.cursor if hasattr(answer, "cursor") else answer).description]
        except DBAPIError as error:
            if not self._database.dialect.is_missing_table(error):
                raise
            return None

    def _column_problem(self, present: Collection[str] | None) -> str | None:
        """Return an error message if the table is missing or lacks columns of psched, else None.

        `present`: the columns of the table, as `_columns` returns them.
        """
        if present is None:
            return self._is_missing(self._table)
        missing = [column.name for column in self._table.columns if column.name not in present]
        return self._lacking(missing, present) if missing else None

    def _lacking(self, missing: Sequence[str], present: Collection[str]) -> str:
        """Return the message, with the remedy, for a table that lacks columns. `present`: the columns of the table."""
        more = f" and {len(missing) - _SHOWN} more" if len(missing) > _SHOWN else ""
        return (
            f"{self._maker} did not create the table {self._table.name}: the table has no column "
            f"{', '.join(missing[:_SHOWN])}{more}; configure another table, or the type that created this table"
        )

    def _missing_indexes(self, connection: sa.Connection) -> list[sa.Index]:
        missing: list[sa.Index] = []
        present = self._database.dialect.indexed_columns(connection, [table.name for table in self._indexed])
        for table in self._indexed:
            if table.name in present:
                indexes = [each for each in table.indexes if tuple(each.columns.keys()) not in present[table.name]]
                missing += sorted(indexes, key=lambda index: str(index.name))
        return missing

    def _findings(self, connection: sa.Connection, writing: bool) -> Iterator[Finding]:
        dialect = self._database.dialect
        yield Finding("server", True, dialect.version(connection))
        encryption = dialect.encryption(connection)
        if encryption is not None:
            yield encryption
        if writing:
            yield self._writing(connection)
        missing = [str(index.name) for index in self._missing_indexes(connection)]
        if missing:
            remedy = "run psched init (for a queue: psched queue init)"
            yield Finding("indexes", False, f"missing index {', '.join(missing)}", remedy=remedy)
        else:
            yield Finding("indexes", True, "all there")
        problem = dialect.key_problem(connection, self._table.name, self._key)
        if problem is None:
            yield Finding("keys", True, "keys are compared byte by byte")
        else:
            yield Finding("keys", self._is_shared, problem, warning=self._is_shared)

    def _writing(self, connection: sa.Connection) -> Finding:
        """Test whether the user may write, by an UPDATE of no row. For SQLite, also test whether the disk has room."""
        key = self._table.c[self._key]
        try:
            connection.execute(sa.update(self._table).where(sa.false()).values({key: key}))
        except DBAPIError as error:
            if error.connection_invalidated or self._database.retry_reason(error) is RetryReason.CONFLICT:
                raise
            return unwritable(self._table.name, error.orig)
        full = self._database.dialect.full_disk()
        if full is not None:
            return full
        return Finding("writing", True, f"{self._table.name} can be written")


def _creation(table: sa.Table) -> list[CreateTable | CreateIndex]:
    return [CreateTable(table), *map(CreateIndex, sorted(table.indexes, key=lambda index: str(index.name)))]


def creation(tables: Sequence[sa.Table], dialect: sa.Dialect) -> list[str]:
    made = (str(statement.compile(dialect=dialect)) for table in tables for statement in _creation(table))
    return [" ".join(sql.split()) for sql in made]


def _of_index(index: sa.Index) -> sa.Table:
    assert index.table is not None
    return index.table


def _execute(dialect: Dialect, change: upgrades.UpgradeStatement, connection: sa.Connection, uncertain: bool) -> None:
    if change.is_index:
        dialect.execute_alone(connection, change.sql)
    else:
        connection.execute(verbatim(change.sql))


def _no_rows(table: sa.Table) -> Statement:
    return Statement(sa.select(sa.literal_column("*")).select_from(table).where(sa.literal_column("1 = 0")))


def _no_row_of_any(tables: Sequence[sa.Table], dialect: sa.Dialect) -> str:
    """Return a SELECT without rows that fails if one of the tables lacks a column.

    SQLAlchemy does not build this SELECT, because it would keep objects for each of 300 columns in every process.
    """
    quote = dialect.identifier_preparer
    parts = []
    for number, table in enumerate(tables):
        columns = ", ".join(quote.format_column(column, use_table=True) for column in table.c)
        rows = f"SELECT {columns} FROM {quote.format_table(table)} WHERE 1 = 0"  # noqa: S608 – quoted names
        parts.append(f"SELECT 1 FROM ({rows}) AS part_{number}")  # noqa: S608 – quoted names
    return " UNION ALL ".join(parts)


NAMED = 10
"""The maximum number of keys that one finding of `psched doctor` names."""


def unusable(keys: Sequence[object]) -> Finding:
    """Return the finding about rows that are never due. It names at most `NAMED` keys."""
    if not keys:
        return Finding("rows", True, "no row has an invalid due time or priority")
    named = ", ".join(repr(key) for key in keys[:NAMED]) + (" and more" if len(keys) > NAMED else "")
    message = f"these rows are never due, because another program wrote an invalid due time or priority: {named}"
    return Finding("rows", False, message, remedy="delete them")


@cache
def _meta_table() -> sa.Table:
    """Return the table of layouts. It has one row per store; `table_name` is the name of the store's first table.

    `schema_hash` distinguishes unreleased states of a layout. Programs whose layout is at least `oldest_layout` can use
    the tables. This table never changes, because programs of every version read it.
    """
    return sa.Table(
        "psched_meta",
        sa.MetaData(),
        sa.Column("table_name", ExactText(64), primary_key=True),
        sa.Column("layout", sa.Integer, nullable=False),
        sa.Column("schema_hash", ExactText(64), nullable=False),
        sa.Column("oldest_layout", sa.Integer, nullable=False),
        **MYSQL_OPTIONS,
    )


def schema_hash(tables: Sequence[sa.Table], common: Sequence[sa.Table] = ()) -> str:
    """Return 16 hexadecimal digits that identify the schema of `tables` and `common`.

    The name of the first table does not matter. The result is the same on every Python, SQLAlchemy and database.
    """
    first = tables[0].name
    lines = [line for table in tables for line in _lines(table, first)]
    lines += [line for table in common for line in _lines(table, "")]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]


def _lines(table: sa.Table, first: str) -> Iterator[str]:
    """Yield lines that describe a table.

    `first`: the beginning of the table's name. The lines leave it out.
    """

    def relative(name: object) -> str:
        return str(name).removeprefix(first)

    yield f"table {relative(table.name)}"
    for column in table.columns:
        yield _column_line(column)
    checks = (constraint for constraint in table.constraints if isinstance(constraint, sa.CheckConstraint))
    yield from sorted(f"check {relative(check.name)}: {check.sqltext}" for check in checks)
    yield from sorted(f"index {relative(index.name)} {_index_line(index)}" for index in table.indexes)


def _column_line(column: sa.Column[object]) -> str:
    length = getattr(column.type, "length", None)
    words = ["column", column.name, type(column.type).__name__ + ("" if length is None else f"({length})")]
    words += ["NULL" if column.nullable else "NOT NULL"]
    words += ["PRIMARY KEY"] if column.primary_key else []
    words += [f"DEFAULT {column.server_default.arg}"] if isinstance(column.server_default, sa.DefaultClause) else []
    words += [f"COMPUTED {column.computed.sqltext}"] if column.computed is not None else []
    return " ".join(words)


def _index_line(index: sa.Index) -> str:
    conditions = {str(options["where"]) for options in index.dialect_options.values() if "where" in options}
    where = "".join(f" WHERE {condition}" for condition in sorted(conditions - {"None"}))
    return f"{'UNIQUE ' if index.unique else ''}({', '.join(index.columns.keys())}){where}"


Columns = Mapping[sa.Table, Collection[str] | None]
"""The columns of each table; None for a missing table."""


class RecordedSchema(Schema):
    """The tables of one store. `psched_meta` records their layout under the name of the first table."""

    _is_shared = False

    def __init__(self, kind: str, database: Database, *tables: sa.Table, common: Sequence[sa.Table] = ()) -> None:
        """`kind`: see `NewColumn`. `tables`: the store's main table, then its other tables.

        `common`: tables that all stores share.
        """
        super().__init__(database, tables[0], "key", "psched's rdb store", *tables[1:])
        self._kind = kind
        self._meta = meta = _meta_table()
        self._common = tuple(common)
        self._indexed = (*self._tables, *self._common)
        self.hash = cached(schema_hash, tuple(tables), tuple(common))
        c = meta.c
        self._recorded = sa.select(c.layout, c.schema_hash, c.oldest_layout).where(c.table_name == self._table.name)

    @property
    def tables(self) -> Sequence[sa.Table]:
        """All tables, in the order of their creation."""
        return (self._meta, *self._common, *self._tables)

    def check(self) -> None:
        super().check()
        recorded = self._database.run(lambda connection, _: self._read_recorded(connection))
        if recorded is not None and recorded.layout > layout_version.LAYOUT:
            log.warning("%s", layout_version.newer(self._have(self._tables), recorded.layout))

    def pending(self) -> list[str]:
        def work(connection: sa.Connection, _: bool) -> list[str] | None:
            columns = self._columns_of_each(connection)
            if self._standing(connection, columns)[0] is not Standing.OLDER:
                return None
            absent = [table for table in self.tables if columns[table] is None]
            created = creation(absent, connection.dialect)
            return created + [change.sql for change in self._changes(connection)]

        made = self._database.run(work)
        return super().pending() if made is None else made

    def layouts_to_go(self) -> int:
        """Return how many layouts the tables are behind. 0 if they do not exist or cannot be upgraded."""

        def work(connection: sa.Connection, _: bool) -> int:
            standing, recorded = self._standing(connection, self._columns_of_each(connection))
            behind = standing is Standing.OLDER and recorded is not None
            return layout_version.LAYOUT - recorded.layout if behind else 0  # type: ignore[union-attr]

        try:
            return self._database.run(work)
        except DBAPIError as error:
            dialect = self._database.dialect
            if not dialect.is_missing_table(error) and dialect.unusable_file(error) is None:
                raise
            return 0

    def _create(self, connection: sa.Connection) -> str | None:
        columns = self._columns_of_each(connection)
        standing, _ = self._standing(connection, columns)
        problem = self._version_problem(connection, columns, upgrading=True)
        if problem is not None or standing is Standing.NEWER:
            return problem
        self._create_table(connection, self._meta)
        if standing is not Standing.OLDER:
            self._record(connection)
        for table in (*self._common, *self._tables):
            self._create_table(connection, table)
        if standing is Standing.OLDER:
            return None
        return self._column_problem(self._columns(connection, self._table))

    def _changes(self, connection: sa.Connection) -> list[upgrades.UpgradeStatement]:
        columns = self._columns_of_each(connection)
        standing, recorded = self._standing(connection, columns)
        if standing is Standing.NEWER:
            return []
        since = layout_version.LAYOUT if recorded is None else recorded.layout
        present = {table.name: names for table, names in columns.items() if names is not None}
        name = self._database.dialect.name
        steps = upgrades.changes(since, self._kind, self._table.name, present, name, connection.dialect)
        return [*steps, *super()._changes(connection)]

    def _upgrade(self, patient: Database) -> str | None:
        problem = super()._upgrade(patient)
        if problem is None:
            patient.run(lambda connection, _: self._record_upgrade(connection))
        return problem

    def _record(self, connection: sa.Connection) -> None:
        """Record the layout before any table exists. So tables without a record were created by another version."""
        name = self._table.name
        with self._database.transaction(connection):
            if self._read_recorded(connection) != self._current():
                connection.execute(sa.delete(self._meta).where(self._meta.c.table_name == name))
            self._database.dialect.insert_one(connection, self._meta, {"table_name": name, **self._values()})

    def _record_upgrade(self, connection: sa.Connection) -> None:
        c = self._meta.c
        own = (c.table_name == self._table.name, c.layout < layout_version.LAYOUT)
        connection.execute(sa.update(self._meta).where(*own).values(**self._values()))

    def _values(self) -> dict[str, Any]:
        current = self._current()
        return {"layout": current.layout, "schema_hash": current.schema, "oldest_layout": current.oldest_layout}

    def _current(self) -> RecordedLayout:
        return RecordedLayout(layout_version.LAYOUT, self.hash, layout_version.oldest_usable())

    def _problem(self, connection: sa.Connection) -> str | None:
        if self._are_complete(connection) and self._recorded_standing(connection)[0].is_usable:
            return None
        columns = {table: self._columns(connection, table) for table in self._in_reading_order()}
        absent = [table for table in (*self._tables, *self._common) if columns[table] is None]
        problem = None
        if self._table not in absent:
            problem = self._version_problem(connection, columns) or self._column_problem(columns[self._table])
        return problem or (self._is_missing(absent[0]) if absent else None)

    def _are_complete(self, connection: sa.Connection) -> bool:
        """Return whether one statement can read all columns of all tables.

        If not, the caller reads each table by itself, to find out what is missing.
        """
        text = _no_row_of_any(self._in_reading_order(), connection.dialect)
        try:
            with self._database.savepoint(connection):
                execute_text(connection, text).fetchall()
        except DBAPIError as error:
            if error.connection_invalidated or self._database.retry_reason(error) is not None:
                raise
            return False
        return True

    def _in_reading_order(self) -> tuple[sa.Table, ...]:
        """Return all tables, the table of layouts last.

        Another process that is now creating the tables creates the table of layouts first. So if any other table is
        found, the table of layouts is found, too.
        """
        return (*self._tables, *self._common, self._meta)

    def _columns_of_each(self, connection: sa.Connection) -> Columns:
        """Return the columns of each table, for `psched init` and its preview.

        Asks the catalogue first whether a table exists: on PostgreSQL, reading a missing table would abort a
        transaction of the caller.
        """
        inspector = sa.inspect(connection)
        return {
            table: self._columns(connection, table) if inspector.has_table(table.name) else None
            for table in self._in_reading_order()
        }

    def _read_recorded(self, connection: sa.Connection) -> RecordedLayout | None:
        row = connection.execute(self._recorded).one_or_none()
        return None if row is None else RecordedLayout(*row)

    def _standing(self, connection: sa.Connection, columns: Columns) -> tuple[Standing, RecordedLayout | None]:
        """Return whether the tables are older or newer than this version, and their recorded layout.

        Missing tables count as current. `columns`: the columns of each table. Reads the recorded layout after the
        columns, because another process that creates the tables at this moment records the layout first.
        """
        meta = columns[self._meta]
        is_readable = meta is not None and set(self._meta.c.keys()) <= set(meta)
        if any(columns[table] is not None for table in self._tables):
            return self._recorded_standing(connection, is_readable)
        return Standing.CURRENT, self._read_recorded(connection) if is_readable else None

    def _recorded_standing(
        self, connection: sa.Connection, is_readable: bool = True
    ) -> tuple[Standing, RecordedLayout | None]:
        """Return the result of `_standing` for existing tables.

        `is_readable`: whether the table of layouts exists and has all its columns.
        """
        recorded = self._read_recorded(connection) if is_readable else None
        return layout_version.standing(recorded, self.hash, upgrades.released_hashes), recorded

    def _version_problem(self, connection: sa.Connection, columns: Columns, upgrading: bool = False) -> str | None:
        """Return an error message with its remedy if another version of psched created a table, else None.

        `columns`: the columns of each table. `upgrading`: whether tables that can be upgraded are accepted.
        """
        present = [table for table in self._tables if columns[table] is not None]
        other = [table for table in (self._meta, *self._common) if self._is_foreign(table, columns[table])]
        if other:
            names = ", ".join(table.name for table in other)
            return self._recreate((*other, *self._tables), f"other columns in {names}")
        standing, recorded = self._standing(connection, columns)
        if standing.is_usable:
            return None
        if standing is Standing.OLDER and recorded is not None:
            return None if upgrading else layout_version.needs_upgrade(self._have(self._tables), recorded.layout)
        if standing is Standing.TOO_NEW and recorded is not None:
            return layout_version.too_new(self._have(self._tables), recorded.layout)
        if recorded is not None:
            return self._recreate(self._tables, f"their schema is {recorded.schema}")
        foreign = self._column_problem(columns[self._table]) if self._table in present else None
        return foreign or self._recreate(self._tables, "no schema is recorded for them")

    def _is_foreign(self, table: sa.Table, columns: Collection[str] | None) -> bool:
        """Return whether a shared table lacks a column that no upgrade adds. If so, psched did not create it."""
        if columns is None:
            return False
        return not set(table.c.keys()) <= {*columns, *upgrades.columns_to_come(table.name)}

    def _recreate(self, tables: Collection[sa.Table], found: str) -> str:
        return (
            f"{_named(tables)} were created by another version of psched ({found}; this version needs {self.hash}), "
            "and are not changed. Create them again: stop all workers, drop these tables (their rows are lost), and "
            "run: psched init (for a queue: psched queue init)"
        )

    def _have(self, tables: Collection[sa.Table]) -> str:
        return f"{_named(tables)} have"

    def _findings(self, connection: sa.Connection, writing: bool) -> Iterator[Finding]:
        recorded = self._read_recorded(connection)
        if recorded is not None and recorded.layout > layout_version.LAYOUT:
            yield Finding("layout", True, layout_version.newer(self._have(self._tables), recorded.layout), warning=True)
        yield from super()._findings(connection, writing)


def _named(tables: Collection[sa.Table]) -> str:
    *first, last = (table.name for table in tables)
    return f"the tables {', '.join(first)} and {last}"
