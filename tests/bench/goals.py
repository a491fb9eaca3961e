"""What psched is to reach, as data: by ratio to somebody in the same run, or by a bound."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

Medians = Mapping[tuple[str, str, str, str], float]
"""(workload, store, contender, metric) → median."""


@dataclass(frozen=True)
class Goal:
    """A metric of psched's is to be `at_least` or `at_most` so much: times what `against` reached, if that is given."""

    workload: str
    store: str
    metric: str
    at_least: float | None = None
    at_most: float | None = None
    against: str | None = None
    contender: str = "psched"

    @property
    def words(self) -> str:
        """The goal as a report shows it."""
        sign, bound = ("≥", self.at_least) if self.at_least is not None else ("≤", self.at_most)
        return f"{sign} {bound:,g}" + ("" if self.against is None else f" × {self.against}")

    def reached(self, medians: Medians) -> tuple[float, bool] | None:
        """Return the ratio, or the value where there is no `against`, and whether it will do; None if not measured."""
        mine = medians.get((self.workload, self.store, self.contender, self.metric))
        theirs = 1.0 if self.against is None else medians.get((self.workload, self.store, self.against, self.metric))
        if mine is None or theirs is None:
            return None
        ratio = mine / theirs
        good = ratio >= self.at_least if self.at_least is not None else ratio <= (self.at_most or 0.0)
        return ratio, good


def _everywhere(workload: str, metric: str, at_most: float, contender: str = "psched") -> list[Goal]:
    against = "1,000 stored" if contender != "psched" else None
    stores = ("postgresql", "mariadb", "sqlite") if against else ("postgresql", "mariadb", "sqlite", "redis")
    return [Goal(workload, store, metric, at_most=at_most, against=against, contender=contender) for store in stores]


GOALS = (
    Goal("functions", "postgresql", "tasks/s", at_least=1.5, against="PgQueuer"),
    Goal("functions", "mariadb", "tasks/s", at_least=0.45, against="floor 500/500"),
    Goal("functions", "sqlite", "tasks/s", at_least=8, against="huey"),
    # BullMQ's best (Node.js, not run here) was 1.08 times the floor where both were measured side by side.
    Goal("functions", "redis", "tasks/s", at_least=1.62, against="floor 1/1"),
    Goal("finishes", "postgresql", "tasks/s", at_least=1.6, against="floor 1/1"),
    Goal("finishes", "mariadb", "tasks/s", at_least=3, against="floor 1/1"),
    Goal("finishes", "sqlite", "tasks/s", at_least=0.4, against="floor 1/1"),
    Goal("submit", "postgresql", "tasks/s", at_least=0.75, against="floor"),
    Goal("submit", "mariadb", "tasks/s", at_least=0.75, against="floor"),
    Goal("submit", "sqlite", "tasks/s", at_least=0.4, against="floor"),
    Goal("submit", "redis", "tasks/s", at_least=0.4, against="floor"),
    Goal("submit-many", "postgresql", "tasks/s", at_least=100_000),
    Goal("submit-many", "mariadb", "tasks/s", at_least=0.4, against="floor"),
    Goal("submit-many", "sqlite", "tasks/s", at_least=0.4, against="floor"),
    Goal("submit-many", "redis", "tasks/s", at_least=0.4, against="floor"),
    Goal("add", "postgresql", "schedules/s", at_least=30_000),
    Goal("pick-up", "postgresql", "p50 ms", at_most=2),
    Goal("pick-up", "redis", "p50 ms", at_most=1),
    Goal("pick-up", "mariadb", "p50 ms", at_most=550),
    Goal("pick-up", "sqlite", "p50 ms", at_most=550),
    *_everywhere("due-alone", "p50 ms", at_most=3),
    *_everywhere("due-together", "p50 ms", at_most=30),
    *_everywhere("due-together", "last ms", at_most=100),
    *_everywhere("due-alone", "p50 ms", at_most=1.25, contender="1,000,000 stored"),
    *_everywhere("due-together", "last ms", at_most=1.25, contender="1,000,000 stored"),
    Goal("idle", "postgresql", "queries/s", at_most=0.2),
    Goal("idle", "redis", "queries/s", at_most=0.2),
    Goal("idle", "mariadb", "queries/s", at_most=2.2),  # two sections
    *_everywhere("idle", "CPU %", at_most=0.1),
    *_everywhere("idle", "PSS MB", at_most=95),
    Goal("children-64", "postgresql", "share", at_least=0.9),
    Goal("children-64", "mariadb", "share", at_least=0.9),
    Goal("children-64", "postgresql", "acquire p99 ms", at_most=50),
    Goal("children-64", "mariadb", "acquire p99 ms", at_most=50),
    Goal("children-64", "postgresql", "errors", at_most=0),
    Goal("children-64", "mariadb", "errors", at_most=0),
)
