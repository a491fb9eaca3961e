"""The goals of the benchmark, as data: ratios to another contender in the same run, and absolute bounds.

The absolute bounds were set on a machine on which some floors were three times as fast as on the machine of
docs/benchmarks.md. So such a bound comes with a ratio to a floor or a peer: the ratio that the bound had on the faster
machine. This ratio holds on any machine.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

Rounds = Mapping[tuple[str, str, str, str], Sequence[float]]
"""Maps workload, store, contender and metric to the values of all rounds."""

QUESTIONS = (
    *("overview", "schedules", "schedules of a type", "schedules with a prefix", "schedules overdue", "one schedule"),
    *("schedule types", "overdue now", "missed runs", "runs of a type", "runs by minute"),
    *("tasks", "waiting tasks", "finished tasks", "tasks of a type", "tasks of a user", "tasks due for long"),
    *("failed tasks", "failed tasks of a type", "one task", "task types", "nodes", "doctor"),
)
"""The questions to `psched.insight` that are measured."""
PAGES = (
    *("Now", "Schedules", "Schedules of a type", "Schedules with a prefix", "Schedules overdue", "Schedule"),
    *("Older history", "Queue", "Tasks", "Tasks waiting", "Tasks of a user", "Tasks failed", "Task", "Proof"),
    *("Proof export", "/week", "/yesterday", "/what-if", "/nodes", "/doctor"),
)
"""The web pages that are measured."""
SQL = ("postgresql", "mariadb", "sqlite")
ALL = (*SQL, "redis")


class GoalVerdict(NamedTuple):
    """The measured value (a ratio, if the goal compares two contenders), and whether the goal is reached."""

    found: float
    reached: bool


@dataclass(frozen=True)
class Goal:
    """A bound for psched's value of a metric: `at_least` or `at_most`.

    If `against` is given, the bound is a multiple of that contender's value. This is the value of the same metric of
    the same workload, unless `of` names another workload and metric. `meant`: the same bound as ratios, as pairs
    (times, against).
    """

    workload: str
    store: str
    metric: str
    at_least: float | None = None
    at_most: float | None = None
    against: str | None = None
    of: tuple[str, str] | None = None
    meant: tuple[tuple[float, str], ...] = ()

    @property
    def words(self) -> str:
        """The goal, in the form that a report shows."""
        sign, bound = ("≥", self.at_least) if self.at_least is not None else ("≤", self.at_most)
        others = "" if self.of is None else f" in {self.of[0]}"
        return f"{sign} {bound:,g}" + ("" if self.against is None else f" × {self.against}{others}")

    @property
    def compared(self) -> tuple[str, str, str, str] | None:
        """The key in `Rounds` of the value to compare with; None if the goal is an absolute bound."""
        if self.against is None:
            return None
        workload, metric = self.of or (self.workload, self.metric)
        return workload, self.store, self.against, metric

    def ratios(self) -> Iterator[Goal]:
        """Yield the ratios in `meant` as goals of their own."""
        for times, against in self.meant:
            least, most = (None, times) if self.at_least is None else (times, None)
            yield replace(self, at_least=least, at_most=most, against=against, meant=())

    def reached(self, rounds: Rounds) -> GoalVerdict | None:
        """Return the median of the rounds' values or ratios; None if one of the contenders was not measured.

        If the two contenders were measured in different numbers of rounds, the value is the ratio of their medians.
        """
        mine = rounds.get((self.workload, self.store, "psched", self.metric))
        theirs = (1.0,) if self.compared is None else rounds.get(self.compared)
        if mine is None or theirs is None:
            return None
        if len(mine) != len(theirs):
            mine, theirs = (statistics.median(mine),), (statistics.median(theirs),)
        found = statistics.median(one / other if other else math.inf for one, other in zip(mine, theirs, strict=True))
        return GoalVerdict(
            found, found >= self.at_least if self.at_least is not None else found <= (self.at_most or 0.0)
        )


def _times(workload: str, metric: str, against: str, **at_least: float) -> list[Goal]:
    return [Goal(workload, store, metric, at_least=times, against=against) for store, times in at_least.items()]


def _at_most(
    workload: str, metric: str, bound: float, *stores: str, meant: tuple[float, str] | None = None
) -> list[Goal]:
    return [Goal(workload, store, metric, at_most=bound, meant=(meant,) if meant else ()) for store in stores]


def _with_many_stored(metric: str, workload: str, of: str, times: float = 1.25) -> list[Goal]:
    return [Goal("stored", store, metric, at_most=times, against="psched", of=(workload, of)) for store in SQL]


GOALS = (
    *_times("functions", "tasks/s", "PgQueuer", postgresql=1.5),
    *_times("functions", "tasks/s", "floor 500/500", mariadb=0.45),
    *_times("functions", "tasks/s", "huey", sqlite=8),
    # Where both were measured side by side, BullMQ's best result (Node.js, not run here) was 1.08 times the floor.
    *_times("functions", "tasks/s", "floor 1/1", redis=1.62),
    *_times("finishes", "tasks/s", "floor 1/1", postgresql=1.6, mariadb=3, sqlite=0.4),
    *_times("submit", "tasks/s", "floor", postgresql=0.75, mariadb=0.75, sqlite=0.4, redis=0.4),
    Goal("submit-many", "postgresql", "tasks/s", at_least=100_000, meant=((0.92, "floor"),)),
    *_times("submit-many", "tasks/s", "floor", mariadb=0.4, sqlite=0.4, redis=0.4),
    *_at_most("async-submit", "longest stall ms", 20, *ALL),
    # The ratio to the floor was computed with a floor that wrote tasks, whose rows are narrower than those of
    # schedules.
    Goal("add", "postgresql", "schedules/s", at_least=30_000, meant=((0.275, "floor"), (17, "APScheduler 3"))),
    Goal("pick-up", "postgresql", "p50 ms", at_most=2, meant=((1.82, "floor"),)),
    Goal("pick-up", "redis", "p50 ms", at_most=1, meant=((1.1, "huey"),)),
    *_at_most("pick-up", "p50 ms", 550, "mariadb", "sqlite"),
    *_at_most("due-alone", "p50 ms", 3, *ALL, meant=(0.5, "APScheduler 3")),
    *_at_most("due-together", "second p50 ms", 30, *ALL, meant=(0.166, "APScheduler 3")),
    *_at_most("due-together", "second last ms", 100, *ALL, meant=(0.275, "APScheduler 3")),
    *_with_many_stored("pick-up p50 ms", "pick-up", "p50 ms"),
    *_with_many_stored("alone p50 ms", "due-alone", "p50 ms"),
    *_with_many_stored("second p50 ms", "due-together", "second p50 ms"),
    *_with_many_stored("second last ms", "due-together", "second last ms"),
    *_with_many_stored("PSS MB", "due-together", "PSS MB", 1.05),
    *(
        goal
        for what in ("additions", "no change", "edits", "deletions")
        for goal in _at_most("plan-apply", f"plan {what} s", 3, *ALL)
    ),
    *(
        goal
        for what in ("additions", "edits", "deletions")
        for goal in _at_most("plan-apply", f"apply {what} s", 2, *ALL)
    ),
    *_at_most("simulate", "year s", 60, "sqlite"),
    *_at_most("idle", "queries/s", 0.2, "postgresql", "redis"),
    *_at_most("idle", "queries/s", 2.2, "mariadb", "sqlite"),  # each of the two sections polls once a second
    Goal("idle", "postgresql", "CPU %", at_most=0.1, meant=((0.118, "PgQueuer"), (0.118, "Procrastinate"))),
    Goal("idle", "redis", "CPU %", at_most=0.1, meant=((0.5, "Celery"), (0.222, "huey"))),
    *_at_most("idle", "CPU %", 0.1, "mariadb", "sqlite"),
    Goal("idle", "postgresql", "PSS MB", at_most=95, meant=((0.8, "PgQueuer"), (0.99, "Procrastinate"))),
    Goal("idle", "redis", "PSS MB", at_most=95, meant=((0.83, "Celery"),)),
    *_at_most("idle", "PSS MB", 95, "mariadb", "sqlite"),
    *(Goal("children-64", store, "share", at_least=0.9) for store in ("postgresql", "mariadb")),
    *_at_most("children-64", "acquire p99 ms", 50, "postgresql", "mariadb"),
    *_at_most("children-64", "errors", 0, "postgresql", "mariadb"),
    *(
        goal
        for question in QUESTIONS
        for goal in _at_most("insight", f"{question} p50 ms", 30, "postgresql", "mariadb")
    ),
    *(
        goal
        for question in QUESTIONS
        for goal in _at_most("insight", f"{question} p99 ms", 150, "postgresql", "mariadb")
    ),
    *(goal for page in PAGES for goal in _at_most("web", f"{page} p50 ms", 150, "postgresql", "mariadb")),
    *(goal for page in PAGES for goal in _at_most("web", f"{page} p99 ms", 400, "postgresql", "mariadb")),
    *_at_most("web", "first load kB", 60, "postgresql", "mariadb"),
    *_at_most("web", "first load requests", 8, "postgresql", "mariadb"),
    *_at_most("web", "20 tabs CPU %", 3, "postgresql", "mariadb"),
    *_at_most("web", "20 tabs statements/s", 8, "postgresql", "mariadb"),
    *_at_most("web", "scrape p99 ms", 50, "postgresql", "mariadb"),
    *(Goal("web", store, "drain beside tabs share", at_least=0.95) for store in ("postgresql", "mariadb")),
)
