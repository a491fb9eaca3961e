"""What MariaDB answers is read as PyMySQL reads it, in fewer steps."""

from __future__ import annotations

from typing import Any

import pymysql
import pytest

from faultlab.mariadb import MariaDB
from faultlab.ports import HOST
from faultlab.servers import PASSWORD, USER, Server
from psched.backends.sql.pymysql_rows import SwiftConnection

LENGTHS = (0, 1, 250, 251, 252, 65535, 65536, 16_777_215 - 64)
"""Of texts: where the length of a value begins to take more bytes, and a row that takes nearly a whole packet."""


def rows_of(kind: type[Any], server: Server, *statements: str) -> list[Any]:
    """Return what a connection of `kind` reads, or the code of the error."""
    connection = kind(host=HOST, port=server.port, user=USER, password=PASSWORD, ssl_disabled=True, charset="utf8mb4")
    found: list[Any] = []
    with connection, connection.cursor() as cursor:
        for statement in statements:
            try:
                found.append((cursor.execute(statement), cursor.fetchall(), cursor.rowcount, cursor.description))
            except pymysql.MySQLError as error:
                found.append(error.args)
    return found


@pytest.mark.parametrize("length", LENGTHS)
def test_texts_of_any_length_are_read_whole(mariadb: MariaDB, length: int) -> None:
    (found,) = rows_of(SwiftConnection, mariadb, f"SELECT 1, REPEAT('x', {length}), NULL, 'after'")
    assert found[1] == ((1, "x" * length, None, "after"),)


def test_values_errors_and_counts_are_as_pymysql_has_them(mariadb: MariaDB) -> None:
    statements = (
        "SELECT 'ä€😀', NULL, -7, 1.5, 2e0, DATE '2024-02-29', X'00ff', ''",
        "SELECT seq, REPEAT('a', seq) FROM (SELECT 1 AS seq UNION SELECT 300 UNION SELECT NULL) AS some",
        "SELECT 1 FROM (SELECT 1) AS none WHERE FALSE",
        "SELECT nothing",
        "DO 1",
        "SELECT 2",
        *("SELECT 3 AS same", "SELECT 'x' AS same", "SELECT X'00ff' AS same", "SELECT 1.5 AS same, 4 AS more"),
    )
    twice = 2 * statements  # what is known of an answer's columns is of use to a like one only
    assert rows_of(SwiftConnection, mariadb, *twice) == rows_of(pymysql.Connection, mariadb, *twice)
