"""Measures psched on a table with a million schedules, which the database copies from one schedule of psched."""

from __future__ import annotations

import time
from collections.abc import Mapping

import sqlalchemy as sa

from benchmarks.databases import Place
from benchmarks.latency import REST, SINGLE, add_singly, bursts, spread, submit_singly
from benchmarks.worker import BenchmarkWorker
from benchmarks.workload import Contender, Scale, Workload
from faultlab import sql

_MANY = 1_000_000

SERIES = {
    "postgresql": "SELECT generate_series(1, CAST(:count AS BIGINT)) AS n",
    "mariadb": "SELECT seq AS n FROM seq_1_to_1000000 WHERE seq <= :count",
    "sqlite": (
        "WITH RECURSIVE series(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM series WHERE n < :count)"
        " SELECT n FROM series"
    ),
}
"""For each store, a SELECT of the numbers from 1 to :count."""


def store_schedules(place: Place, count: int, table: str = "psched_schedules") -> None:
    """Make `count` copies of the schedule `model`, which is due in the far future."""
    with sql.connect(place.url) as connection:
        found = sa.inspect(connection).get_columns(table)
        columns = [column["name"] for column in found if "computed" not in column]
        quote = connection.dialect.identifier_preparer.quote
        others = ", ".join(quote(name) for name in columns if name != "key")
        name = "CONCAT('stored-', n)" if place.store == "mariadb" else "'stored-' || n"
        connection.execute(
            sa.text(
                f"INSERT INTO {table} ({quote('key')}, {others}) SELECT {name}, {others}"
                f" FROM {table}, ({SERIES[place.store]}) AS numbers WHERE {quote('key')} = 'model'"
            ),
            {"count": count},
        )


def among_many(place: Place, scale: Scale) -> Mapping[str, float]:
    """Return the latencies and the memory with a million stored schedules that are not due.

    The schedules are stored once, because all rounds use the same place.
    """
    worker, marker = BenchmarkWorker(place), place.folder / "stored"
    with worker.schedules() as schedules, worker.queue() as queue:
        if not marker.exists():
            schedules.add("model", "late", cron="0 0 1 1 *", next_run_time=4_000_000_000.0)
            store_schedules(place, scale.count(_MANY))
            marker.touch()
        with worker:
            time.sleep(REST)
            found = dict(bursts(worker, schedules, scale))
            for name, value in spread(add_singly(worker, schedules, scale.count(SINGLE))).items():
                found[f"alone {name}"] = value
            for name, value in spread(submit_singly(worker, queue, scale.count(SINGLE))).items():
                found[f"pick-up {name}"] = value
    return found


WORKLOADS = (
    Workload(
        "stored",
        "the latencies with 1,000,000 stored schedules that are not due (1,000 in the other tables)",
        (Contender("psched", among_many, ("postgresql", "mariadb", "sqlite"), lasting=True),),
    ),
)
