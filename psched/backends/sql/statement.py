"""Two statements that are done together or not at all, with as little in between as a database allows. Any process.

They are compiled once, and then handed to the driver as they are: what a run's end costs is mostly this.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from sqlalchemy import Insert, Select, Update


@dataclass(frozen=True, slots=True)
class Prepared:
    """A statement as the driver takes it: its text, its parameters' names, and the values that some always have.

    `places`: the names in their order; None where the driver finds parameters by their names.
    """

    text: str
    places: tuple[str, ...] | None
    own: Mapping[str, Any]

    @classmethod
    def of(cls, statement: Update | Insert | Select[Any], connection: Executing) -> Prepared:
        """Return `statement` for connections like this one."""
        compiled: Any = statement.compile(dialect=connection.dialect)
        places = None if compiled.positiontup is None else tuple(compiled.positiontup)
        own = {name: bind.effective_value for bind, name in compiled.bind_names.items() if not bind.required}
        return cls(str(compiled), places, own)

    def parameters(self, values: Mapping[str, Any]) -> Any:
        """Return the parameters as the driver takes them."""
        everything = {**self.own, **values}
        return everything if self.places is None else tuple([everything[name] for name in self.places])


class Executing(Protocol):
    """What executes prepared statements: SQLAlchemy's Connection, or `direct.Direct`."""

    @property
    def dialect(self) -> Any:
        """SQLAlchemy's dialect, which knows the driver."""
        ...

    def exec_driver_sql(self, statement: str, parameters: Any = ..., /) -> Any:
        """Execute a statement; it returns its `rowcount`, `fetchone()` and `fetchall()`. Raises DBAPIError."""
        ...


def kind_of(connection: Executing) -> tuple[object, ...]:
    """Return what a statement's text depends on, besides the statement."""
    dialect = connection.dialect
    is_mariadb = getattr(dialect, "is_mariadb", False)
    quote = dialect.identifier_preparer.initial_quote  # which a session of MySQL's chooses
    return dialect.name, dialect.driver, dialect.paramstyle, quote, is_mariadb, dialect.server_version_info


class CompiledStatement:
    """Statements that are compiled once for each kind of connection. Safe to use from several threads."""

    def __init__(self, *statements: Update | Insert | Select[Any]) -> None:
        self._statements = statements
        self._prepared: dict[tuple[object, ...], tuple[Prepared, ...]] = {}

    def of(self, connection: Executing) -> tuple[Prepared, ...]:
        """Return the statements as the driver takes them."""
        kind = kind_of(connection)
        if kind not in self._prepared:
            self._prepared[kind] = tuple([Prepared.of(statement, connection) for statement in self._statements])
        return self._prepared[kind]


class ExpandingStatement:
    """A statement with an expanding parameter, compiled once for each kind of connection, and written out by number."""

    def __init__(self, statement: Update | Select[Any], name: str) -> None:
        self._statement = statement
        self._name = name
        self._compiled: dict[tuple[object, ...], Any] = {}
        self._prepared: dict[tuple[object, ...], tuple[Prepared, list[str]]] = {}

    def of(self, connection: Executing, count: int) -> tuple[Prepared, list[str]]:
        """Return the statement with `count` values in its expanding parameter, and the names of these."""
        kind = kind_of(connection)
        if (*kind, count) not in self._prepared:
            if kind not in self._compiled:
                self._compiled[kind] = self._compile(connection)
            self._prepared[(*kind, count)] = self._expanded(self._compiled[kind], count)
        return self._prepared[(*kind, count)]

    def _compile(self, connection: Executing) -> Any:
        return self._statement.compile(dialect=connection.dialect)

    def _expanded(self, compiled: Any, count: int) -> tuple[Prepared, list[str]]:
        own = {key: bind.effective_value for bind, key in compiled.bind_names.items() if not bind.required}
        blank = dict.fromkeys(compiled.bind_names.values()) | own
        state = compiled.construct_expanded_state({**blank, self._name: [""] * count}, escape_names=False)
        places = None if state.positiontup is None else tuple(state.positiontup)
        return Prepared(state.statement, places, own), list(state.parameter_expansion[self._name])


class TwoStatements:
    """A row is changed by `first`; if it was there, `second` is done. Built once for a table."""

    def __init__(self, first: Update, second: Insert) -> None:
        self._texts = CompiledStatement(first, second)

    def prepare(self, connection: Executing) -> None:
        """Compile both, if that was not done."""
        self._texts.of(connection)

    def prepared(self, connection: Executing) -> tuple[Prepared, Prepared]:
        """Return both as the driver takes them."""
        first, second = self._texts.of(connection)
        return first, second
