"""Statements that are compiled once and then given to the driver as text.

SQLAlchemy's own execution of a statement costs a client more than the driver's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
    """What executes prepared statements: SQLAlchemy's Connection, or a `RawConnection`."""

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
    """A statement that SQLAlchemy compiles once for each kind of connection. Safe to use from several threads."""

    def __init__(self, statement: Update | Insert | Select[Any]) -> None:
        self._statement = statement
        self._prepared: dict[tuple[object, ...], Prepared] = {}

    def prepare(self, connection: Executing) -> Prepared:
        """Return the statement as the driver takes it, compiled if it was not."""
        kind = kind_of(connection)
        if kind not in self._prepared:
            self._prepared[kind] = Prepared.of(self._statement, connection)
        return self._prepared[kind]

    def execute(self, connection: Executing, values: Mapping[str, Any]) -> int:
        """Execute it and return how many rows it changed."""
        prepared = self.prepare(connection)
        changed: int = connection.exec_driver_sql(prepared.text, prepared.parameters(values)).rowcount
        return changed

    def rows(self, connection: Executing, values: Mapping[str, Any]) -> Sequence[Sequence[Any]]:
        """Execute it and return its rows, as the driver has them."""
        prepared = self.prepare(connection)
        found: Sequence[Sequence[Any]] = connection.exec_driver_sql(
            prepared.text, prepared.parameters(values)
        ).fetchall()
        return found


class KeyedStatement:
    """A statement on the keys in its expanding parameter `keys`, compiled once for each kind of connection.

    Its text is written once for each power of two of them; the last key is repeated. To write the text for each number
    of keys costs a client more than the repeated keys cost a server.
    """

    def __init__(self, statement: Update) -> None:
        self._statement = statement
        self._compiled: dict[tuple[object, ...], Any] = {}
        self._prepared: dict[tuple[object, ...], tuple[Prepared, list[str]]] = {}

    def prepare(self, connection: Executing, count: int = 1) -> tuple[Prepared, list[str]]:
        """Return the statement with `count` keys, and the names of their parameters."""
        kind = kind_of(connection)
        if (*kind, count) not in self._prepared:
            if kind not in self._compiled:
                self._compiled[kind] = self._compile(connection)
            self._prepared[(*kind, count)] = self._expanded(self._compiled[kind], count)
        return self._prepared[(*kind, count)]

    def execute(self, connection: Executing, keys: Sequence[str], values: Mapping[str, Any]) -> int:
        """Execute it on `keys`, at least one, and return how many rows it changed."""
        prepared, names = self.prepare(connection, 1 << (len(keys) - 1).bit_length())
        padded = dict.fromkeys(names, keys[-1]) | dict(zip(names, keys, strict=False))
        changed: int = connection.exec_driver_sql(prepared.text, prepared.parameters({**values, **padded})).rowcount
        return changed

    def _compile(self, connection: Executing) -> Any:
        return self._statement.compile(dialect=connection.dialect)

    def _expanded(self, compiled: Any, count: int) -> tuple[Prepared, list[str]]:
        own = {key: bind.effective_value for bind, key in compiled.bind_names.items() if not bind.required}
        blank = dict.fromkeys(compiled.bind_names.values()) | own
        state = compiled.construct_expanded_state({**blank, "keys": [""] * count}, escape_names=False)
        places = None if state.positiontup is None else tuple(state.positiontup)
        return Prepared(state.statement, places, own), list(state.parameter_expansion["keys"])


class TwoStatements:
    """A row is changed by `first`; if it was there, `second` is executed in the same transaction."""

    def __init__(self, first: Update, second: Insert) -> None:
        self.first = CompiledStatement(first)
        self.second = CompiledStatement(second)

    def prepare(self, connection: Executing) -> None:
        """Compile both, if that was not done."""
        self.first.prepare(connection)
        self.second.prepare(connection)
