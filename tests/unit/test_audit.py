"""The audit accuses no correct past, and finds each kind of thing that may be wrong with one."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from psched.audit import Verdict
from psched.model import Rule
from tests.unit.past import BEGIN, Past

RULES = [
    Rule("*/5 * * * *", "Europe/Berlin", 2),
    Rule("0 * * * *", "UTC", 0),
    Rule("30 2 * * *", "America/New_York", -5),
    Rule("*/20 * * * * *", "Asia/Tokyo", 1.5),
    Rule("0 0 1 * *", "UTC", 0),
]
DEEDS = st.one_of(
    st.tuples(st.just("run"), st.floats(0.1, 5000)),
    st.tuples(st.just("run"), st.just(0.5)),
    st.tuples(st.just("skip"), st.integers(1, 40)),
    st.tuples(st.just("modify"), st.sampled_from(RULES)),
    st.tuples(st.just("move"), st.integers(-3000, 3000)),
    st.tuples(st.just("run_now"), st.none()),
    st.tuples(st.just("again"), st.none()),
)


def past_of(deeds: list[tuple[str, object]], rule: Rule = RULES[0]) -> Past:
    past = Past(rule=rule)
    past.add()
    for deed, value in deeds:
        match deed, value:
            case "run", float(seconds):
                past.run(seconds)
            case "skip", int(count):
                past.skip(count)
            case "modify", Rule() as new:
                past.modify(new)
            case "move", int(span):
                past.move(int(past.now) + span)
            case "run_now", _:
                past.run_now()
            case _:
                past.delete()
                past.add()
    past.now = min(past.now, past.row.next_time) if past.row is not None else past.now
    return past


def kinds(verdict: Verdict) -> list[tuple[str, int]]:
    return [(found.kind, found.time) for found in verdict.violations]


@given(st.lists(DEEDS, max_size=25), st.sampled_from(RULES))
def test_a_correct_past_is_not_accused(deeds: list[tuple[str, object]], rule: Rule) -> None:
    past = past_of(deeds, rule)
    verdict = past.judged()
    assert kinds(verdict) == []
    assert verdict.ran == sum(row.outcome == "finished" for row in past.rows)
    assert verdict.skipped == sum(row.count or 0 for row in past.rows if row.outcome == "skipped")


@given(st.lists(DEEDS, min_size=1, max_size=25), st.data())
def test_no_part_of_a_correct_past_is_accused(deeds: list[tuple[str, object]], data: st.DataObject) -> None:
    past = past_of(deeds)
    end = max(BEGIN, int(past.now)) + 1
    since = data.draw(st.integers(BEGIN, end))
    until = data.draw(st.integers(since, end))
    assert kinds(past.judged(since, until)) == []


def test_a_schedule_may_have_been_moved_back_before_what_is_asked_for() -> None:
    past = past_of([("run", 0.25), ("move", -302), ("skip", 3)])
    assert kinds(past.judged(BEGIN + 201, BEGIN + 500)) == []


@given(st.lists(DEEDS, min_size=2, max_size=25), st.data())
def test_an_entry_that_is_gone_is_missed(deeds: list[tuple[str, object]], data: st.DataObject) -> None:
    past = past_of(deeds)
    assume(len(past.rows) > 1)
    gone = past.rows.pop(data.draw(st.integers(1, len(past.rows) - 1)))
    assert ("missing", gone.scheduled_time) in kinds(past.judged())


@given(st.lists(DEEDS, min_size=2, max_size=25), st.data())
def test_an_entry_that_is_there_twice_is_extra(deeds: list[tuple[str, object]], data: st.DataObject) -> None:
    past = past_of(deeds)
    assume(past.rows)
    twice = data.draw(st.sampled_from(past.rows))
    past.rows.append(replace(twice, fence=twice.fence + 1000))
    assert [kind for kind, _ in kinds(past.judged()) if kind == "extra"]


@given(st.lists(DEEDS, min_size=2, max_size=25), st.data())
def test_a_run_of_what_nobody_asked_for_is_extra(deeds: list[tuple[str, object]], data: st.DataObject) -> None:
    past = past_of(deeds)
    assume(past.rows)
    place = data.draw(st.integers(0, len(past.rows) - 1))
    row = past.rows[place]
    other = replace(row, scheduled_time=row.scheduled_time + 1, last=None, outcome="finished", fence=row.fence)
    past.rows[place] = other
    found = kinds(past.judged())
    assert ("extra", other.scheduled_time) in found
    assert [kind for kind, _ in found if kind == "missing"]


@given(st.lists(DEEDS, min_size=2, max_size=25), st.data())
def test_a_run_amid_another_one_overlaps(deeds: list[tuple[str, object]], data: st.DataObject) -> None:
    past = past_of(deeds)
    runs = [place for place, row in enumerate(past.rows) if row.started is not None]
    assume(len(runs) > 1)
    number = data.draw(st.integers(1, len(runs) - 1))
    before, place = past.rows[runs[number - 1]], runs[number]
    past.rows[place] = replace(past.rows[place], started=before.ended - 0.01)
    assert ("overlapping", past.rows[place].scheduled_time) in kinds(past.judged())


def test_a_run_that_began_late_is_found_by_the_given_bound() -> None:
    past = Past()
    past.add()
    past.run(late=10)
    past.run(late=31)
    times = [row.scheduled_time for row in past.rows]
    assert kinds(past.judged(late=30)) == [("late", times[1])]
    assert kinds(past.judged(late=9)) == [("late", times[0]), ("late", times[1])]
    assert kinds(past.judged()) == []


def test_what_is_overdue_and_not_finished_is_missing() -> None:
    past = Past()
    past.add()
    past.run()
    assert past.row is not None
    past.now = past.row.next_run_time + 59
    assert kinds(past.judged()) == []
    past.now += 2
    assert kinds(past.judged()) == [("missing", past.row.next_time)]
    past.row = replace(past.row, paused_from=past.now - 500)
    assert kinds(past.judged()) == []


def test_occurrences_past_the_stored_one_are_not_taken_for_done() -> None:
    past = Past()
    past.add()
    past.run()
    assert past.row is not None
    hop = past.row.next_time
    past.row = replace(past.row, next_time=hop + 900)
    verdict = past.judged(until=hop + 900)
    assert [(found.kind, found.time, found.last, found.count) for found in verdict.violations] == [
        ("missing", hop, hop + 600, 3)
    ]


def test_a_row_that_was_removed_past_psched_is_still_expected_to_run() -> None:
    past = Past()
    past.add()
    past.run()
    last = past.rows[-1].scheduled_time
    past.row = None
    assert kinds(past.judged(until=last + 299)) == []
    assert kinds(past.judged(until=last + 300)) == [("missing", last + 300)]


def test_what_retention_has_deleted_is_unknown_and_not_missing() -> None:
    past = Past()
    past.add()
    for _ in range(5):
        past.run()
    del past.rows[:2]
    verdict = past.judged()
    assert [found.kind for found in verdict.violations] == ["unknown"]
    assert kinds(past.judged(since=past.rows[0].scheduled_time)) == []


def test_a_gap_of_a_year_of_seconds_is_told_at_once() -> None:
    past = Past(rule=Rule("* * * * * *", "UTC"))
    past.add()
    past.run()
    assert past.row is not None
    first = past.row.next_time
    past.row = replace(past.row, next_time=first + 30_000_000)
    past.now = past.row.next_time
    [found] = past.judged().violations
    assert (found.kind, found.time, found.last, found.count) == ("missing", first, first + 29_999_999, None)


@pytest.mark.parametrize("then", ["vixie 2025b", "perfectsched 2026f"])
def test_it_is_said_when_times_were_computed_otherwise(then: str) -> None:
    past = Past()
    past.add()
    for _ in range(4):
        past.run()
    past.rows[:2] = [replace(row, reckoning=then) for row in past.rows[:2]]
    [(what, time)] = past.judged().notes
    assert then in what
    assert time == past.rows[2].scheduled_time
