"""The simulation of schedules: delays, outages, and that it agrees with real workers."""

from __future__ import annotations

import heapq
import random
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from psched.backends import open_stores
from psched.insight.simulation import SimulatedOutage, Simulation, handler_times, simulate, starts_in
from psched.model import NO_OCCURRENCE, LeaseTimes, Policy, Rule, ScheduleRow
from psched.schedules import rule_occurrences
from psched.schedules.collection import Defaults, ScheduleCollection
from psched.store import StoreSettings
from psched.testing.database_clock import DatabaseClock
from tests.prepared_sqlite import make_tables_in_memory

HOUR = 3600
BEGIN = 1_795_424_400
"""Unix seconds: 2026-11-23 09:00 UTC."""
LEASE = 300.0
SECONDS = 37.0


def row(key: str, cron: str, delay: float = 0, **given: Any) -> ScheduleRow:
    rule = given.pop("rule", Rule(cron, "UTC", delay))
    time = given.pop("next_time") if "next_time" in given else rule_occurrences.first_time(rule, BEGIN, "vixie")
    due = given.pop("next_run_time", time + rule.delay_of(key))
    return ScheduleRow(
        key, given.pop("type", "t"), {}, "waiting", rule=rule, next_time=time, next_run_time=due, **given
    )


def simulated(*rows: ScheduleRow, hours: int = 4, seconds: float = 1.0, workers: int = 1, **given: Any) -> Simulation:
    more: dict[str, Any] = {"now": BEGIN, "lease_time": LEASE} | given
    return simulate(rows, lambda _: seconds, BEGIN, BEGIN + hours * HOUR, workers=workers, dialect="vixie", **more)


def test_runs_wait_for_a_free_worker() -> None:
    found = simulated(*(row(f"k{n}", "0 * * * *") for n in range(4)), seconds=100, workers=2, hours=1)
    assert (found.runs, found.late, found.lateness.worst) == (4, 2, 100)
    assert [(each.key, each.worst, each.worst_time) for each in found.affected] == [
        ("k2", 100, BEGIN),
        ("k3", 100, BEGIN),
    ]
    assert found.busiest == found.hours[0]
    assert found.hours[0].busy == pytest.approx(400 / HOUR)
    assert found.caught_up == BEGIN + 100


def test_an_outage_is_caught_up_one_occurrence_at_a_time() -> None:
    outage = SimulatedOutage(BEGIN + 30, BEGIN + 30 + 2 * HOUR)
    found = simulated(row("k", "*/10 * * * *"), outage=outage, seconds=60)
    assert (found.missed, found.interrupted, found.runs) == (12 + 1, 1, 24)
    assert found.caught_up == outage.end + 13 * 60
    assert [hour.starts for hour in found.hours] == [0, 0, 16 + 2, 6]
    assert found.lateness.worst == outage.end - BEGIN
    assert found.lateness.p99 == found.lateness.worst  # the last class of the histogram ends later


def test_a_run_that_the_outage_ended_is_due_again_when_its_lease_ends() -> None:
    outage = SimulatedOutage(BEGIN + 30, BEGIN + 60)
    found = simulated(row("k", "0 9 * * *"), outage=outage, seconds=60)
    assert (found.interrupted, found.runs, found.lateness.worst) == (1, 1, 30 + LEASE)
    assert found.hours[0].busy == pytest.approx(90 / HOUR)


def test_a_run_that_ends_with_the_begin_of_the_outage_is_not_lost() -> None:
    found = simulated(row("k", "0 9 * * *"), outage=SimulatedOutage(BEGIN + 60, BEGIN + 90), seconds=60)
    assert (found.interrupted, found.runs, found.late) == (0, 1, 0)


def test_no_run_begins_with_the_begin_of_the_outage() -> None:
    found = simulated(row("k", "0 9 * * *"), outage=SimulatedOutage(BEGIN, BEGIN + HOUR))
    assert (found.interrupted, found.missed, found.lateness.worst) == (0, 1, HOUR)


def test_a_run_that_the_outage_ended_is_never_too_late() -> None:
    late = row("k", "0 9 * * *", policy=Policy("none"))
    found = simulated(late, outage=SimulatedOutage(BEGIN + 30, BEGIN + HOUR), seconds=60)
    assert (found.runs, found.skipped) == (1, {})


def test_no_more_occurrences_wait_than_max_runs_leaves() -> None:
    few = row("k", "* * * * *", rule=Rule("* * * * *", "UTC", max_runs=5), runs=2)
    found = simulated(few, outage=SimulatedOutage(BEGIN, BEGIN + HOUR))
    assert (found.missed, found.runs, found.waiting) == (3, 3, 0)


@pytest.mark.parametrize(
    ("policy", "runs", "skipped"),
    [
        (Policy("all"), 24, {}),
        (Policy("latest"), 24 - 10, {"superseded": 10}),
        (Policy("none"), 24 - 11, {"superseded": 10, "late": 1}),
        (Policy("all", max_lateness=1800), 24 - 8, {"late": 8}),
        (Policy("all", overlap="skip"), 24 - 10, {"overlap": 10}),
    ],
    ids=["all", "latest", "none", "max_lateness", "overlap"],
)
def test_policies_decide_what_an_outage_skips(policy: Policy, runs: int, skipped: dict[str, int]) -> None:
    outage = SimulatedOutage(BEGIN + 30, BEGIN + 2 * HOUR - 61)
    found = simulated(row("k", "*/10 * * * *", policy=policy), outage=outage)
    assert (found.runs, found.skipped) == (runs, skipped)


def test_occurrences_that_come_due_during_a_run_are_skipped_by_overlap() -> None:
    found = simulated(row("k", "*/10 * * * *", policy=Policy(overlap="skip")), seconds=1500, hours=3)
    assert (found.runs, found.skipped, found.late) == (6, {"overlap": 12}, 0)


def test_what_is_late_now_is_late_at_the_begin() -> None:
    late = row("late", "0 * * * *", next_time=BEGIN - 3 * HOUR)
    assert simulated(late, hours=1).runs == 4
    assert simulated(late, hours=1, now=BEGIN - HOUR).runs == 1


def test_a_range_in_the_past_begins_with_its_first_occurrences() -> None:
    assert simulated(row("k", "0 * * * *", next_time=BEGIN + 100 * HOUR), now=BEGIN + 100 * HOUR).runs == 4


def test_what_cannot_run_is_counted_and_left_out() -> None:
    found = simulated(
        row("paused", "* * * * *", paused_from=BEGIN - 60.0),
        row("failing", "* * * * *", policy=Policy(pause_after=3), failures=3),
        row("broken", "0 0 1 1 *", problem="its data is no JSON"),
        row("ended", "* * * * *", rule=Rule("* * * * *", "UTC", max_runs=1), runs=1, next_time=NO_OCCURRENCE),
    )
    assert (found.paused, found.unusable, found.schedules, found.runs) == (2, 1, 1, 0)


def test_too_few_workers_never_catch_up() -> None:
    found = simulated(*(row(f"k{n}", "* * * * *") for n in range(2)), seconds=60, hours=1)
    assert (found.runs, found.waiting, found.caught_up) == (60, 60, None)


def test_rows_are_not_changed() -> None:
    given = row("k", "* * * * *")
    simulated(given)
    assert given == row("k", "* * * * *")


def test_the_number_of_occurrences_is_known_before() -> None:
    rows = [
        *(row(f"k{n}", "0 * * * *") for n in range(3)),
        row("day", "30 12 * * *"),
        row("broken", "61 * * * *", next_time=0),
    ]
    assert starts_in(rows, BEGIN, BEGIN + 24 * HOUR - 1, "vixie") == 3 * 24 - 3 + 1


def test_handlers_take_as_long_as_their_last_runs_or_those_of_their_type() -> None:
    last = {"a": [10.0, 20.0], "b": [], "c": [30.0]}
    rows = [row(key, "* * * * *", type=type_) for key, type_ in (("a", "x"), ("b", "x"), ("c", "y"), ("d", "z"))]
    times = handler_times(rows, lambda _: last)
    assert [times.of(each) for each in rows] == [15, 15, 30, 22.5]
    assert times.unmeasured == ["z"]
    with pytest.raises(ValueError, match="the ledger has no run of these schedules"):
        handler_times(rows, lambda _: {}).of(rows[0])


@pytest.fixture
def clock() -> Iterator[DatabaseClock]:
    clock = DatabaseClock()
    clock.travel_to(BEGIN - 1)
    clock.start()
    yield clock
    clock.stop()


@pytest.fixture
def schedules() -> Iterator[ScheduleCollection]:
    settings = StoreSettings("sqlite://", "host/test/1", schedules="s", reckoning="vixie x")
    store = open_stores("rdb", settings).schedules
    assert store is not None
    make_tables_in_memory(store, "s")
    with ScheduleCollection(store, LeaseTimes(LEASE, 60), Defaults("UTC")) as collection:
        yield collection


def work(
    schedules: ScheduleCollection,
    clock: DatabaseClock,
    end: float,
    workers: int,
    seconds: float,
    outage: SimulatedOutage,
) -> None:
    """Acquire and finish like `workers` workers, with a clock that jumps from event to event."""
    running: list[tuple[float, int, Any]] = []
    now, stop, number = float(BEGIN), outage.begin, 0
    while now < end:
        clock.travel_to(now)
        while running and running[0][0] <= now:
            heapq.heappop(running)[2].finish()
        if now >= stop:
            for place, (_, _, task) in enumerate(sorted(running, key=lambda each: each[2].key)):
                clock.travel_to(now + place / 100)
                task.heartbeat()
            running.clear()
            now, stop = outage.end, end
            continue
        while len(running) < workers and (task := schedules.poll()) is not None:
            number += 1
            heapq.heappush(running, (now + seconds, number, task))
        events = [stop, end, *(each[0] for each in running)]
        if len(running) < workers and (wait := schedules.store.next_due()) is not None:
            events.append(now + max(wait, 0.001))
        now = min(event for event in events if event > now)
    for ends, _, task in sorted(running, key=lambda each: each[:2]):
        clock.travel_to(ends)
        task.finish()


@pytest.mark.parametrize("seed", range(2))
def test_the_simulation_agrees_with_workers(
    schedules: ScheduleCollection, clock: DatabaseClock, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # rows acquired in excess would be released, and come later
    monkeypatch.setattr("psched.acquisition.task_source._GROWTH", 1)
    draw = random.Random(seed)
    for n in range(8):
        schedules.add(
            f"k{n:02}",
            "t",
            cron=draw.choice(["*/10 * * * *", "*/7 * * * *", "30 * * * *", "@every 15m", "*/5 10-12 * * *"]),
            delay=n * 3 + 0.5,  # so that no two are due at once
            timezone=draw.choice(["UTC", "Asia/Kolkata"]),
            catch_up=draw.choice(["all", "latest", "none"]),
            max_lateness=draw.choice([None, 90, 1200]),
            max_runs=draw.choice([None, None, 9]),
            overlap=draw.choice(["wait", "skip"]),
        )
    schedules["k03"].pause()
    rows = [ScheduleRow(**_fields(each)) for each in schedules.list()]
    outage = SimulatedOutage(BEGIN + HOUR + draw.randrange(600), BEGIN + 2 * HOUR + draw.randrange(1200))
    end = BEGIN + 4 * HOUR
    expected = simulate(
        rows, lambda _: SECONDS, BEGIN, end, now=BEGIN - 1, workers=2, dialect="vixie", outage=outage, lease_time=LEASE,
        late_after=-1,
    )  # fmt: skip
    work(schedules, clock, end, 2, SECONDS, outage)
    runs, starts, late, skipped = Counter[str](), Counter[int](), dict[str, float](), dict[str, Counter[str]]()
    for entry in schedules.history():
        if entry.started is None:
            skipped.setdefault(entry.key, Counter())[entry.detail or ""] += entry.count or 0
        else:
            runs[entry.key] += 1
            starts[int(entry.started) // HOUR * HOUR] += 1
            due = entry.scheduled_time + 3 * int(entry.key[1:]) + 0.5
            late[entry.key] = max(late.get(entry.key, 0), entry.started - due)
    assert {each.key: each.runs for each in expected.affected if each.runs} == runs
    assert {each.key: each.skipped for each in expected.affected if each.skipped} == skipped
    assert {hour.time: hour.starts for hour in expected.hours if hour.starts} == starts
    assert {each.key: each.worst for each in expected.affected if each.runs} == pytest.approx(late, abs=0.2)
    assert expected.interrupted + expected.missed > 0
    assert [each for verdict in schedules.audit(BEGIN, int(outage.begin)) for each in verdict.violations] == []


def _fields(each: ScheduleRow) -> dict[str, Any]:
    return vars(each)
