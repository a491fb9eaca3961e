"""Connects to a database directly, without psched, by a URL in psched's form. Runs in the test process."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import sqlalchemy as sa

_DRIVERS = {"mysql": "mysql+pymysql", "postgresql": "postgresql+psycopg"}


@contextmanager
def connect(url: str) -> Iterator[sa.Connection]:
    """Yield a connection in autocommit, and close it in the end."""
    parsed = sa.make_url(url)
    driver = _DRIVERS.get(parsed.drivername, parsed.drivername)
    engine = sa.create_engine(parsed.set(drivername=driver), isolation_level="AUTOCOMMIT")
    try:
        with engine.connect() as connection:
            yield connection
    finally:
        engine.dispose()
