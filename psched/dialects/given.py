"""Changing many rows by one statement, which is told of them in one parameter. Any process.

What the rows have in common is told once, in parameters of its own: to take each row apart, member by member, costs a
database as much as what is then done with it, MariaDB even more.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sqlalchemy import ColumnElement, Insert, Select, Update, bindparam, column

from psched.dialects.insertion import as_parameter, rows_in
from psched.dialects.pairs import Executing, Expanding, Texts

_PREFIX = "given_"
"""Begins the name of each column and parameter that is given, so that none is a word of SQL."""

_ROWS = "given"
_KEY = "key"
_KEYS = "keys"

_OFTEN = 8
"""How often the rows must have had the same in common for the statement to be built for that, where another will do."""

Told = Mapping[str, ColumnElement[Any]]
"""What is given of a row, by its names, as a statement uses it: with `key` the rows come in."""


class Given:
    """A statement on given rows, built once for each choice of what these often have in common.

    To build and compile one takes as long as to settle a hundred rows. So where the one for rows without anything in
    common was compiled beforehand, it is used for a choice that comes rarely, or for the first time.
    """

    def __init__(self, types: Mapping[str, Any], build: Callable[[Told], Update | Insert]) -> None:
        """`types`: of what is given of each row, `key` among it."""
        self._types = types
        self._build = build
        self._texts: dict[tuple[str, ...], Texts] = {}
        self._rare: Counter[tuple[str, ...]] = Counter()

    def prepare(self, connection: Executing) -> None:
        """Compile the statement for rows without anything in common."""
        self._built(tuple(self._types)).of(connection)

    def execute(self, connection: Executing, rows: Sequence[Mapping[str, Any]], values: Mapping[str, Any]) -> int:
        """Execute it on `rows`, which have a value for each of its names, and return how many rows it changed.

        `values`: further parameters. There has to be a row.
        """
        first = rows[0]
        differing = tuple([name for name in self._types if any(row[name] != first[name] for row in rows)])
        if differing not in self._texts and tuple(self._types) in self._texts:
            self._rare[differing] += 1
            differing = differing if self._rare[differing] > _OFTEN else tuple(self._types)
        (prepared,) = self._built(differing).of(connection)
        names = [name for name in self._types if name == _KEY or name in differing]
        same = {f"{_PREFIX}{name}": first[name] for name in self._types if name not in names}
        parameters = prepared.parameters({**values, **same, _ROWS: as_parameter(rows, names)})
        changed: int = connection.exec_driver_sql(prepared.text, parameters).rowcount
        return changed

    def _built(self, differing: tuple[str, ...]) -> Texts:
        if differing not in self._texts:
            self._texts[differing] = Texts(self._build(self._told(differing)))
        return self._texts[differing]

    def _told(self, differing: Sequence[str]) -> Told:
        """Return a column for the key and for what differs, and a parameter for the rest."""
        columns = {name: type_ for name, type_ in self._types.items() if name == _KEY or name in differing}
        rows = rows_in(_ROWS, [column(f"{_PREFIX}{name}", type_) for name, type_ in columns.items()])
        return {
            name: rows.c[f"{_PREFIX}{name}"] if name in columns else bindparam(f"{_PREFIX}{name}", type_=type_)
            for name, type_ in self._types.items()
        }


class Compiled:
    """A statement that is compiled once for each kind of connection."""

    def __init__(self, statement: Update | Insert | Select[Any]) -> None:
        self._texts = Texts(statement)

    def prepare(self, connection: Executing) -> None:
        """Compile it, if that was not done."""
        self._texts.of(connection)

    def execute(self, connection: Executing, values: Mapping[str, Any]) -> int:
        """Execute it and return how many rows it changed."""
        (prepared,) = self._texts.of(connection)
        changed: int = connection.exec_driver_sql(prepared.text, prepared.parameters(values)).rowcount
        return changed

    def rows(self, connection: Executing, values: Mapping[str, Any]) -> Sequence[Sequence[Any]]:
        """Execute it and return the rows that it returns, as the driver has them."""
        (prepared,) = self._texts.of(connection)
        found: Sequence[Sequence[Any]] = connection.exec_driver_sql(
            prepared.text, prepared.parameters(values)
        ).fetchall()
        return found


class OfKeys:
    """A statement on :keys, whose text is written once for each power of two of them: the last key comes repeatedly.

    To write the text anew for each number of keys costs a client more than a server needs for keys that are repeated.
    """

    def __init__(self, statement: Update) -> None:
        """`statement` has the keys in an expanding parameter."""
        self._expanding = Expanding(statement, _KEYS)

    def prepare(self, connection: Executing) -> None:
        """Compile it."""
        self._expanding.of(connection, 1)

    def execute(self, connection: Executing, keys: Sequence[str], values: Mapping[str, Any]) -> int:
        """Execute it on `keys`, of which there is one at the least, and return how many rows it changed."""
        prepared, names = self._expanding.of(connection, 1 << (len(keys) - 1).bit_length())
        told = dict.fromkeys(names, keys[-1]) | dict(zip(names, keys, strict=False))
        changed: int = connection.exec_driver_sql(prepared.text, prepared.parameters({**values, **told})).rowcount
        return changed
