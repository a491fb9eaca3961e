"""A SQLite database whose tables are made once. A copy of it for each daemon takes less time than new tables."""

from __future__ import annotations

import tempfile
from functools import cache
from pathlib import Path

from psched.config import from_mapping
from psched.schedules.collection import open_schedules

DECIDING = {"type", "url", "table", "schedules", "queue", "ledger"}
"""The keys of the configuration that decide which tables exist."""


@cache
def empty_database() -> bytes:
    """Return the bytes of a SQLite file with the tables for a configuration that has none of the keys in `DECIDING`."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "psched.db"
        section = from_mapping({"type": "rdb", "url": f"sqlite:///{file}"}).sections[0]
        with open_schedules(section, "test") as schedules:
            schedules.store.create_tables()
        return file.read_bytes()
