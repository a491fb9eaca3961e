"""A table full of schedules that are not due: copies of one that psched added, made by the database itself."""

from __future__ import annotations

import sqlalchemy as sa

from tests.bench.places import Place
from tests.lab import sql

_SERIES = {
    "postgresql": "SELECT generate_series(1, :count) AS n",
    "mariadb": "SELECT seq AS n FROM seq_1_to_1000000 WHERE seq <= :count",
    "sqlite": (
        "WITH RECURSIVE series(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM series WHERE n < :count)"
        " SELECT n FROM series"
    ),
}


def store_schedules(place: Place, count: int, table: str = "psched_schedules") -> None:
    """Copy the schedule `model` so often; each copy is due in the far future."""
    with sql.connect(place.url) as connection:
        columns = [column["name"] for column in sa.inspect(connection).get_columns(table)]
        quote = connection.dialect.identifier_preparer.quote
        others = ", ".join(quote(name) for name in columns if name != "key")
        name = "CONCAT('stored-', n)" if place.store == "mariadb" else "'stored-' || n"
        connection.execute(
            sa.text(
                f"INSERT INTO {table} ({quote('key')}, {others}) SELECT {name}, {others}"
                f" FROM {table}, ({_SERIES[place.store]}) AS numbers WHERE {quote('key')} = 'model'"
            ),
            {"count": count},
        )
