"""The laboratory keeps its own promises: fresh databases, servers that tests can break, and leaks that are found."""

from __future__ import annotations

import sqlalchemy as sa

from faultlab.sql import connect


def _tables(url: str) -> list[str]:
    with connect(url) as connection:
        names = sa.inspect(connection).get_table_names()
        connection.execute(sa.text("CREATE TABLE mine (id INTEGER)"))
        return names


def test_each_test_gets_an_empty_database(database: str) -> None:
    assert _tables(database) == []


def test_and_so_does_the_next(database: str) -> None:
    assert _tables(database) == []
