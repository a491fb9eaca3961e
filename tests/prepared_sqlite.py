"""SQLite databases with empty tables, made once and then copied. Making them takes psched 30 ms."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

_files: dict[tuple[object, ...], bytes] = {}
_in_memory: dict[tuple[type, str], bytes] = {}


def make_tables(file: Path, kind: tuple[object, ...], create: Callable[[], object]) -> None:
    """Copy the first file of this `kind` that was made. If there is none, or `file` exists, call `create`.

    `create` makes the tables in `file` and leaves no connection open.
    """
    if file.exists():
        create()
    elif kind in _files:
        file.write_bytes(_files[kind])
    else:
        create()
        _files[kind] = file.read_bytes()


def make_tables_in_memory(store: Any, table: str) -> None:
    """Make the tables of a store in memory, or copy those of the first such store. `table`: the store's table."""
    connection = store._database.run(lambda connection, _: connection.connection.driver_connection)
    image = _in_memory.get((type(store), table))
    if image is not None:
        connection.deserialize(image)
    else:
        store.create_tables()
        _in_memory[type(store), table] = connection.serialize()
