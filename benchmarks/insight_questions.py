"""Measures how long `psched.insight` takes to answer, with 100,000 schedules, a million tasks and a million runs.

`fill` also stores these rows for the benchmark of the web pages.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Mapping

import sqlalchemy as sa

from benchmarks.databases import Place
from benchmarks.large_table import SERIES
from benchmarks.worker import BenchmarkWorker
from benchmarks.workload import Contender, Scale, Workload
from faultlab import sql
from psched.config import load
from psched.insight import Insight, ScheduleInsight, TaskInsight, open_insight

SCHEDULES = 100_000
_TASKS = 1_000_000
_RUNS = 1_000_000
_TIMES = 100
"""How often each question is asked."""
_HOUR = 3_600_000
"""Milliseconds in an hour."""

_AT = "MOD(n, 20)"
"""Decides the status of a task: half of the tasks wait, one in twenty has failed, and the others are finished."""
_USER = "CASE WHEN MOD(n, 2) = 0 THEN '' ELSE CONCAT('user', MOD(n, 1000)) END"
_WAITS = f"{_AT} < 10"

_COPIES: Mapping[str, Mapping[str, str]] = {
    "psched_schedules": {
        "key": "CONCAT('stored-', n)",
        "type": "CONCAT('type', MOD(n, 20))",
        "cron": "CONCAT(MOD(n, 59), ' ', MOD(n, 23), ' * * *')",
        "due": "CASE WHEN n <= 200 THEN {now} - n * 1000 ELSE {now} + 100 * {hour} + n * 1000 END",
        "next_time": "CASE WHEN n <= 200 THEN {now} - n * 1000 ELSE {now} + 100 * {hour} + n * 1000 END",
    },
    "psched_queue": {
        "key": "CONCAT('stored-', n)",
        "type": "CONCAT('type', MOD(n, 20))",
        "user_name": _USER,
        "status": f"CASE WHEN {_WAITS} THEN 'waiting' WHEN {_AT} = 19 THEN 'failed' ELSE 'finished' END",
        "due": f"CASE WHEN {_WAITS} THEN {{now}} + 500000000 - n * 1000 END",
        "band": f"CASE WHEN {_WAITS} THEN CASE WHEN MOD(n, 2) = 0 THEN 0 ELSE 1000 END END",
        "finished_at": f"CASE WHEN {_WAITS} THEN NULL ELSE {{now}} END",
        "purge_at": f"CASE WHEN {_WAITS} THEN NULL ELSE {{now}} + {{hour}} END",
    },
    "psched_schedules_ledger": {
        "key": "CONCAT('stored-', 1 + MOD(n, 100000))",
        "scheduled_time": "{now} - n * 2600",
        "fence": "n",
        "trouble": "CASE WHEN MOD(n, 500) = 0 THEN 1 ELSE 0 END",
        "started": "{now} - n * 2600",
        "ended": "{now} - n * 2600 + 20000",
    },
    "psched_schedules_changes": {
        "key": "CONCAT('stored-', n)",
        "type": "CONCAT('type', MOD(n, 20))",
        "cron": "CONCAT(MOD(n, 59), ' ', MOD(n, 23), ' * * *')",
        "changed": "{now} - 500 * {hour}",
        "first_time": "{now} - 500 * {hour}",
    },
}
"""For each table, the columns in which copies differ from the table's first row, with SQL expressions of their values.
"""


_ANALYSE = {"postgresql": "VACUUM (ANALYZE) {}", "mariadb": "ANALYZE TABLE {}", "sqlite": "ANALYZE {}"}
"""For each store, a statement that gathers the statistics of a table.

On PostgreSQL the statement also marks pages as visible to all, as autovacuum does within a minute or two. Until then, a
count by an index also reads the row of each index entry.
"""


def _fill(place: Place, table: str, count: int) -> None:
    """Fill a table with copies of its only row, and let the database gather the table's statistics."""
    changed = _COPIES[table]
    with sql.connect(place.url) as connection:
        columns = [each["name"] for each in sa.inspect(connection).get_columns(table) if "computed" not in each]
        quote = connection.dialect.identifier_preparer.quote
        values = {"now": round(time.time() * 1000), "hour": _HOUR}
        chosen = ", ".join(changed[name].format(**values) if name in changed else quote(name) for name in columns)
        names = ", ".join(map(quote, columns))
        connection.execute(
            sa.text(
                f"INSERT INTO {table} ({names}) SELECT {chosen} FROM (SELECT * FROM {table} LIMIT 1) AS model,"
                f" ({SERIES[place.store]}) AS numbers"
            ),
            {"count": count},
        )
        connection.execute(sa.text(_ANALYSE[place.store].format(table)))


def fill(place: Place, worker: BenchmarkWorker, scale: Scale) -> None:
    """Store the schedules, tasks and runs, unless an earlier round has stored them at this place."""
    marker = place.folder / "stored"
    if marker.exists():
        return
    with worker.schedules() as schedules, worker.queue() as queue:
        schedules.add("model", "late", cron="0 0 1 1 *")
        queue.submit("model", "late")
        schedules["model"].run_now()
        task = schedules.poll()
        assert task is not None
        task.finish()
    _fill(place, "psched_schedules", scale.count(SCHEDULES))
    _fill(place, "psched_queue", scale.count(_TASKS))
    _fill(place, "psched_schedules_ledger", scale.count(_RUNS))
    _fill(place, "psched_schedules_changes", scale.count(SCHEDULES))
    marker.touch()


def _questions(insight: Insight, count: int) -> Mapping[str, Callable[[], object]]:
    schedules, tasks, chance = insight.schedules, insight.tasks, random.Random(1)
    assert isinstance(schedules, ScheduleInsight)
    assert isinstance(tasks, TaskInsight)

    def key() -> str:
        return f"stored-{chance.randint(1, count)}"

    def type_() -> str:
        return f"type{chance.randrange(20)}"

    return {
        "overview": insight.overview,
        "schedules": schedules.page,
        "schedules of a type": lambda: schedules.page(type=type_()),
        "schedules with a prefix": lambda: schedules.page(prefix=f"{key()[:10]}"),
        "schedules overdue": lambda: schedules.page(state="overdue"),
        "one schedule": lambda: schedules.details(key()),
        "schedule types": schedules.types,
        "overdue now": schedules.overdue,
        "missed runs": schedules.troubles,
        "runs of a type": schedules.run_report,
        "runs by minute": schedules.runs_by_time,
        "tasks": tasks.page,
        "tasks of a type": lambda: tasks.page(status="waiting", type=type_()),
        "tasks of a user": lambda: tasks.page(status="waiting", user=f"user{chance.randrange(500) * 2 + 1}"),
        "tasks due for long": lambda: tasks.late(3600),
        "failed tasks": lambda: tasks.page(status="failed"),
        "failed tasks of a type": lambda: tasks.page(status="failed", type=type_()),
        "one task": lambda: tasks.details(key()),
        "task types": tasks.types,
        "waiting tasks": lambda: tasks.page(status="waiting"),
        "finished tasks": lambda: tasks.page(status="finished"),
        "nodes": insight.nodes,
        "doctor": insight.doctor,
    }


def answers(place: Place, scale: Scale) -> Mapping[str, float]:
    """Return percentiles of the time of each question, in milliseconds, and the seconds that a forecast takes."""
    worker = BenchmarkWorker(place)
    fill(place, worker, scale)
    found: dict[str, float] = {}
    with open_insight(load(worker.config)) as insight:
        for name, ask in _questions(insight, scale.count(SCHEDULES)).items():
            ask()  # connects, and compiles the statements of the question
            spans = []
            for _ in range(scale.count(_TIMES)):
                begun = time.perf_counter()
                ask()
                spans.append((time.perf_counter() - begun) * 1000)
            spans.sort()
            found[f"{name} p50 ms"] = spans[len(spans) // 2]
            found[f"{name} p99 ms"] = spans[math.ceil(len(spans) * 0.99) - 1]
        assert insight.schedules is not None
        begun = time.perf_counter()
        insight.schedules.forecast()
        found["forecast s"] = time.perf_counter() - begun
    return found


WORKLOADS = (
    Workload(
        "insight",
        "how long a question about 100,000 schedules, 1,000,000 tasks and 1,000,000 runs takes",
        (Contender("psched", answers, ("postgresql", "mariadb"), once=True),),
    ),
)
