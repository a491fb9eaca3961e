"""A database whose tables are made once, and copied for each daemon: to make them takes longer. In the test process."""

from __future__ import annotations

import tempfile
from functools import cache
from pathlib import Path

from psched.config import from_mapping
from psched.schedules.collection import open_schedules

DECIDING = {"type", "url", "table", "schedules", "queue", "ledger"}
"""The keys of a configuration that decide which tables there are."""


@cache
def empty_database() -> bytes:
    """Return a SQLite file with the tables of a configuration that says none of these."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "psched.db"
        section = from_mapping({"type": "rdb", "url": f"sqlite:///{file}"}).sections[0]
        with open_schedules(section, "test") as schedules:
            schedules.store.create_tables()
        return file.read_bytes()
