"""Whatever is edited, run, missed or skipped, the audit reports no violation for a schedule that psched runs.

The tests use SQLite in memory, and set the clock.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from psched.backends import open_stores
from psched.errors import ScheduleError
from psched.model import LeaseTimes
from psched.schedules.collection import Defaults, ScheduleCollection
from psched.store import StoreSettings
from psched.testing.database_clock import DatabaseClock
from tests.prepared_sqlite import make_tables_in_memory

BEGIN = 1_772_917_200
"""Unix seconds: 2026-03-07 21:00 UTC, a Saturday. Clocks change in New York on the next day."""
HOUR = 3600

DAYS = st.lists(st.sampled_from(["2026-03-07", "2026-03-08", "2026-03-09", "sat", "sun", "mon"]), max_size=3)
OPTIONS: dict[str, st.SearchStrategy[Any]] = {
    "cron": st.sampled_from(["*/20 * * * *", "30 2 * * *", "0 * * * *", "@every 25m phase 7s", "@at 2026-03-08T02:30"]),
    "timezone": st.sampled_from(["UTC", "America/New_York", "Asia/Kolkata"]),
    "delay": st.sampled_from([0, 40, 4000, -90]),
    "start": st.sampled_from([None, BEGIN + HOUR, BEGIN + 5 * HOUR, BEGIN + 30 * HOUR + 0.5]),
    "end": st.sampled_from([None, BEGIN + 31 * HOUR, BEGIN + 60 * HOUR - 0.5]),
    "max_runs": st.sampled_from([None, 1, 2, 5]),
    "spread": st.sampled_from([0, 30, 3000]),
    "exclude": st.sampled_from([None, ["free"], ["free", "other"]]),
    "catch_up": st.sampled_from(["all", "latest", "none"]),
    "max_lateness": st.sampled_from([None, 10, 2000]),
    "max_attempts": st.sampled_from([None, 1]),
}


def options(names: Iterable[str]) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries({name: OPTIONS[name] for name in names})


FIRST = st.sets(st.sampled_from(sorted(OPTIONS)), max_size=4).flatmap(lambda names: options({"cron", *names}))
ONE_OPTION = st.sampled_from(sorted(OPTIONS)).flatmap(lambda name: options([name]))
ACTIONS = st.one_of(
    st.tuples(st.just("wait"), st.sampled_from([60, 1300, HOUR, 9 * HOUR])),
    st.tuples(st.just("work"), st.sampled_from([1, 3, 30])),
    st.tuples(st.just("modify"), ONE_OPTION),
    st.tuples(st.just("modify"), FIRST),
    st.tuples(st.just("move"), st.sampled_from([-5 * HOUR, -1, 70, 9 * HOUR])),
    st.tuples(st.just("modify during a run"), ONE_OPTION),
    st.tuples(st.just("calendar"), st.tuples(st.sampled_from(["free", "other"]), DAYS)),
    st.tuples(st.sampled_from(["pause", "resume", "run_now", "fail", "add again"]), st.none()),
)


@pytest.fixture
def clock() -> Iterator[DatabaseClock]:
    clock = DatabaseClock()
    clock.start()
    yield clock
    clock.stop()


@pytest.fixture
def schedules(clock: DatabaseClock) -> Iterator[ScheduleCollection]:
    clock.travel_to(BEGIN)
    store = open_stores("rdb", StoreSettings("sqlite://", "host/test/1", schedules="s", reckoning="vixie x")).schedules
    assert store is not None
    make_tables_in_memory(store, "s")
    with ScheduleCollection(store, LeaseTimes(300, 0, 300), Defaults("UTC")) as collection:
        yield collection


class Edits:
    """Does the actions on one schedule."""

    def __init__(self, schedules: ScheduleCollection, clock: DatabaseClock, key: str) -> None:
        self.schedules, self.clock, self.key = schedules, clock, key

    def do(self, action: str, value: Any) -> None:
        schedule = self.schedules[self.key]
        self.clock.shift(1)
        with contextlib.suppress(ScheduleError):  # what is refused changes nothing
            match action:
                case "wait":
                    self.clock.shift(value)
                case "work":
                    for _ in range(value):
                        self.run()
                case "modify":
                    schedule.modify(**value)
                case "move":
                    schedule.modify(next_time=int(self.clock.time()) + value)
                case "modify during a run":
                    self.run(lambda: schedule.modify(**value))
                case "calendar":
                    self.schedules.calendars.set(*value)
                case "pause":
                    schedule.pause()
                case "resume":
                    schedule.resume()
                case "run_now":
                    schedule.run_now()
                case "fail":
                    self.run(error="it broke")
                case "add again":
                    self.catch_up()  # what is due at a deletion is missing
                    schedule.delete()
                    self.clock.shift(1)
                    self.schedules.add(self.key, "t", cron="*/15 * * * *")

    def run(self, meanwhile: Callable[[], None] = lambda: None, error: str | None = None) -> None:
        task = self.schedules.poll()
        if task is None:
            return
        self.clock.shift(2)
        meanwhile()
        if error is None:
            task.finish()
        else:
            task.retry(error=error)

    def catch_up(self) -> None:
        """Run all that is due, so that nothing is late in the audit."""
        self.schedules[self.key].resume()
        for _ in range(2000):
            task = self.schedules.poll()
            if task is None:
                return
            task.finish()
        raise AssertionError("there is always something due")


@given(FIRST, st.lists(ACTIONS, min_size=8, max_size=25))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_the_audit_stays_proved(
    schedules: ScheduleCollection, clock: DatabaseClock, first: dict[str, Any], actions: list[tuple[str, Any]]
) -> None:
    key = f"key-{next(_NUMBERS)}"
    clock.travel_to(BEGIN)
    for name in ("free", "other"):
        schedules.calendars.set(name, ["sun"])
    schedules.add(key, "t", **first)
    edits = Edits(schedules, clock, key)
    for action, value in actions:
        edits.do(action, value)
    edits.catch_up()
    [verdict] = schedules.audit(0, int(schedules.store.now()), keys=[key])
    schedules[key].delete()
    found = [(each.kind, each.time - BEGIN, each.what) for each in verdict.violations if each.kind != "failed"]
    assert found == []
    assert verdict.pending == 0


_NUMBERS = itertools.count()
