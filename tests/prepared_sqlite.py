"""SQLite files with empty tables, made once and copied: psched takes 30 ms to make the tables. In the test process."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

_files: dict[tuple[object, ...], bytes] = {}


def make_tables(file: Path, kind: tuple[object, ...], create: Callable[[], object]) -> None:
    """Make the tables in `file` by `create`, which leaves no connection open, or copy the first file of this `kind`."""
    if file.exists():
        create()
    elif kind in _files:
        file.write_bytes(_files[kind])
    else:
        create()
        _files[kind] = file.read_bytes()
