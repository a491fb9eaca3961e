"""Pauses, resumes, run-nows and runs in any order: which occurrences run, and which are skipped."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from psched.errors import ScheduleError
from psched.model import NEVER, Rule, ScheduleRow
from psched.schedules import rule_occurrences
from psched.schedules.pause_and_run_now import MOST_PAUSES, paused, resumed, run_now
from psched.schedules.skip_policy import skip_entry

DIALECT = "vixie"
EVERY_SECOND = Rule("* * * * * *", "UTC")
START = 100
FAR = 10_000


def row_of(rule: Rule = EVERY_SECOND, next_time: int = START) -> ScheduleRow:
    due = next_time + rule.delay
    return ScheduleRow("key", "t", {}, "waiting", rule=rule, next_time=next_time, next_run_time=due)


@dataclass
class Simulation:
    """The row of a schedule, which a worker and clients change, beside the expected result.

    `asked`: the regular occurrences for which run-now was called. `pauses`: the begin and end of each pause.
    """

    row: ScheduleRow = field(default_factory=row_of)
    now: float = START - 2.5
    ran: list[int] = field(default_factory=list)
    skipped: list[int] = field(default_factory=list)
    extra_runs: int = 0
    asked: set[int] = field(default_factory=set)
    asked_extra: int = 0
    pauses: list[tuple[float, float]] = field(default_factory=list)
    paused_from: float | None = None
    may_run: bool = False
    """Whether run-now was called during the present pause."""

    def pause(self) -> None:
        if self.paused_from is None:
            self.paused_from, self.may_run = self.now, False
        self.row = paused(self.row, self.now, DIALECT)

    def resume(self) -> None:
        if self.paused_from is not None:
            self.pauses.append((self.paused_from, self.now))
        self.paused_from = None
        seen = self.row
        self.row, entry = resumed(seen, self.now, DIALECT)
        if entry is not None:
            self.skip(seen.next_time, entry.last)

    def run_now(self) -> None:
        before = self.row
        if before.status == "running":
            return
        self.row, self.may_run = run_now(before, self.now), True
        if self.row.is_extra:
            self.asked_extra += not before.is_extra
        else:
            assert before.next_time <= self.now
            self.asked.add(before.next_time)

    def begin(self) -> None:
        """Acquire the due row like a worker: park the row, skip occurrences, or begin a run."""
        while self.row.status != "running" and self.row.next_run_time <= self.now:
            row = self.row
            if row.paused and (row.extra_waits or not row.is_asked_for):
                self.row = replace(row, next_run_time=NEVER)
                continue
            entry = skip_entry(row, self.now, DIALECT)
            if entry is None:
                assert self.may_run or self.paused_from is None
                self.row = replace(row, status="running", settled=False, attempts=row.attempts + 1)
            else:
                self.skip(row.next_time, entry.last)
                self.settle(row.next_time if entry.last is None else entry.last)

    def fail(self) -> None:
        if self.row.status == "running":
            self.row = replace(self.row, status="waiting", next_run_time=self.now)

    def finish(self) -> None:
        if self.row.status != "running":
            return
        if self.row.is_extra:
            self.extra_runs += 1
            self.row = self.row.regular()
        else:
            self.ran.append(self.row.next_time)
            self.settle(self.row.next_time)

    def skip(self, first: int, last: int | None) -> None:
        self.skipped += range(first, (first if last is None else last) + 1)

    def settle(self, last: int) -> None:
        time = rule_occurrences.next_time(self.row.rule, last, DIALECT)
        due = NEVER if self.row.paused else time + self.row.rule.delay
        self.row = replace(self.row, status="waiting", settled=True, attempts=0, next_time=time, next_run_time=due)

    def end(self) -> None:
        """Resume, and run all due occurrences."""
        self.resume()
        while self.row.status == "running" or self.row.next_run_time <= self.now:
            self.begin()
            self.finish()


ACTIONS = ["pause", "pause", "resume", "resume", "run_now", "begin", "fail", "finish"]
STEPS = st.tuples(st.sampled_from(ACTIONS), st.integers(0, 2))
"""An action, and the number of seconds that pass before it."""


@example([("run_now", 0), ("begin", 0), ("pause", 0), ("fail", 0), ("begin", 0)])
@settings(max_examples=300)
@given(st.lists(STEPS, min_size=8, max_size=40))
def test_occurrences_outside_pauses_and_those_of_run_now_run_once_and_others_are_skipped(
    steps: list[tuple[str, int]],
) -> None:
    simulation = Simulation()
    for action, seconds in steps:
        simulation.now += seconds
        getattr(simulation, action)()
    simulation.end()
    came = range(START, int(simulation.now) + 1)
    expected = [t for t in came if t in simulation.asked or not any(b <= t < e for b, e in simulation.pauses)]
    assert simulation.ran == expected
    assert simulation.skipped == [time for time in came if time not in expected]
    assert simulation.extra_runs == simulation.asked_extra


def test_a_run_now_before_a_pause_is_due_when_the_pause_ends() -> None:
    """The occurrence's time has come, but its delay has not passed."""
    row = run_now(row_of(Rule("* * * * *", "UTC", 600), 60), 70)
    row = paused(row, 80, DIALECT)
    assert row.next_run_time == NEVER
    row, entry = resumed(row, 90, DIALECT)
    assert (row.next_time, row.next_run_time, entry) == (60, 90, None)
    assert skip_entry(row, 90, DIALECT) is None


def after(row: ScheduleRow, *pauses: tuple[float, float]) -> ScheduleRow:
    for begin, end in pauses:
        row, _ = resumed(paused(row, begin, DIALECT), end, DIALECT)
    return row


@pytest.mark.parametrize(
    ("pauses", "kept"),
    [
        ([(10, 20), (30, 40)], []),
        ([(10, 70), (80, 90)], [(10, 70)]),
        ([(10, 70), (80, 90), (100, 120), (130, 140)], [(10, 70)]),
        ([(10, 70), (80, 90), (100, 130), (140, 150)], [(10, 70), (100, 130)]),
        ([(62.5, 122), (130, 140)], []),
        ([(62.5, 122.5), (130, 140)], [(62.5, 122.5)]),
    ],
)
def test_only_pauses_with_occurrences_to_come_are_kept(pauses: list[Any], kept: list[Any]) -> None:
    """Occurrences are at each minute and run two seconds later. The run of the first, at 60, is in progress."""
    row = replace(row_of(Rule("* * * * *", "UTC", 2), 60), status="running", settled=False)
    assert list(after(row, *pauses).earlier_pauses) == kept


def test_pauses_whose_occurrences_are_settled_are_dropped() -> None:
    row = replace(row_of(next_time=0), status="running", settled=False)
    row = after(row, *((n + 0.5, n + 1.5) for n in range(4)))
    assert len(row.earlier_pauses) == 3
    row = replace(row, next_time=3)
    assert paused(row, 9, DIALECT).earlier_pauses == ((2.5, 3.5), (3.5, 4.5))


def test_a_row_keeps_a_hundred_pauses_and_refuses_another() -> None:
    row = replace(row_of(next_time=0), status="running", settled=False)
    row = after(row, *((2 * n + 0.5, 2 * n + 1.5) for n in range(MOST_PAUSES + 1)))
    assert len(row.earlier_pauses) == MOST_PAUSES
    with pytest.raises(ScheduleError, match="'key': 101 earlier pauses have occurrences that are not skipped yet"):
        paused(row, FAR, DIALECT)


def test_a_schedule_with_an_unusable_rule_can_be_paused() -> None:
    row = after(replace(row_of(), rule=Rule("no cron", "UTC"), status="running", settled=False), (200, 300))
    assert paused(row, 400, DIALECT).earlier_pauses == ((200, 300),)


def test_extra_runs_of_the_same_second_have_increasing_times() -> None:
    times = []
    row = row_of(Rule("0 * * * *", "UTC"), 3600)
    for now, due in [(100.25, 100.25), (100.5, 101), (100.75, 102)]:
        extra = run_now(row, now)
        assert extra.next_run_time == due, "no run begins before its time"
        assert run_now(extra, now).next_run_time == due, "nor when it is asked for again"
        times.append(extra.next_time)
        row = extra.regular()
    assert times == [100, 101, 102]
    assert run_now(row, 104.0).next_time == 104
    ahead = replace(row, extra=700)
    assert run_now(ahead, 104.0).next_time == 104, "an occurrence that ran ahead of its time is no extra run"


def test_an_extra_run_of_the_next_second_does_not_begin_early_after_a_resume() -> None:
    row = run_now(paused(row_of(), START - 100, DIALECT), START - 99.6)
    row = run_now(replace(row.regular(), next_run_time=NEVER), START - 99.5)  # the first extra run is over
    assert row.next_time == START - 99
    resumed_row, _ = resumed(row, START - 99.2, DIALECT)
    assert resumed_row.next_run_time == START - 99
    assert resumed(row, START - 98.5, DIALECT)[0].next_run_time == START - 98.5
