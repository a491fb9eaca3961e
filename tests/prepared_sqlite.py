"""SQLite databases with empty tables, made once and copied: to make them takes psched 30 ms. In the test process."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

_files: dict[tuple[object, ...], bytes] = {}
_in_memory: dict[tuple[type, str], bytes] = {}


def make_tables(file: Path, kind: tuple[object, ...], create: Callable[[], object]) -> None:
    """Make the tables in `file` by `create`, which leaves no connection open, or copy the first file of this `kind`."""
    if file.exists():
        create()
    elif kind in _files:
        file.write_bytes(_files[kind])
    else:
        create()
        _files[kind] = file.read_bytes()


def make_tables_in_memory(store: Any, table: str) -> None:
    """Make the tables of a store in memory whose own is `table`, or copy those of the first such store."""
    connection = store._database.run(lambda connection, _: connection.connection.driver_connection)
    image = _in_memory.get((type(store), table))
    if image is not None:
        connection.deserialize(image)
    else:
        store.create_tables()
        _in_memory[type(store), table] = connection.serialize()
