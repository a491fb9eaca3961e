"""The laboratory's own promises: fresh databases, servers that can be broken, leaks that are found."""

from __future__ import annotations

import sqlalchemy as sa

DRIVERS = {"sqlite": "sqlite", "mysql": "mysql+pymysql", "postgresql": "postgresql+psycopg"}


def _tables(url: str) -> list[str]:
    parsed = sa.make_url(url)
    engine = sa.create_engine(parsed.set(drivername=DRIVERS[parsed.drivername]))
    try:
        with engine.begin() as connection:
            names = sa.inspect(connection).get_table_names()
            connection.execute(sa.text("CREATE TABLE mine (id INTEGER)"))
            return names
    finally:
        engine.dispose()


def test_each_test_gets_an_empty_database(database: str) -> None:
    assert _tables(database) == []


def test_and_so_does_the_next(database: str) -> None:
    assert _tables(database) == []
