"""The audit reports no violation for a correct past, and finds each kind of violation."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from psched.model import NEVER, Calendar, Policy, Rule
from psched.schedules.audit_result import Kind, Verdict, Why
from psched.schedules.pause_and_run_now import with_regular
from tests.unit.recorded_history import BEGIN, Past

RULES = [
    Rule("*/5 * * * *", "Europe/Berlin", 2),
    Rule("0 * * * *", "UTC", 0),
    Rule("30 2 * * *", "America/New_York", -5),
    Rule("*/20 * * * * *", "Asia/Tokyo", 1.5),
    Rule("0 0 1 * *", "UTC", 0),
    Rule("@every 7m phase 30s", "UTC"),
    Rule("@at 2020-09-13T13:00", "UTC", 30),
    Rule("*/3 * * * *", "Asia/Tokyo", 1, start=BEGIN + 1800, end=BEGIN + 9000),
    Rule("*/10 * * * *", "UTC", -3, spread=400),
    Rule("*/5 * * * *", "Europe/Berlin", 2, max_runs=2),
    Rule("*/4 * * * *", "UTC", max_runs=5),
    Rule("0 * * * *", "Asia/Tokyo", 1, exclude=(Calendar("days", 1, ("2020-09-13", "2020-09-15")),)),
    Rule("*/40 * * * *", "UTC", exclude=(Calendar("days", 2, ("2020-09-14",), ("sun",)),), spread=90, max_runs=9),
]
ACTIONS = st.one_of(
    st.tuples(st.just("run"), st.floats(0.1, 5000)),
    st.tuples(st.just("run"), st.just(0.5)),
    st.tuples(st.just("skip"), st.integers(1, 40)),
    st.tuples(st.just("modify"), st.sampled_from(RULES)),
    st.tuples(st.just("move"), st.integers(-3000, 3000)),
    st.tuples(st.just("run_now"), st.none()),
    st.tuples(st.just("again"), st.none()),
)


def past_of(actions: list[tuple[str, object]], rule: Rule = RULES[0]) -> Past:
    past = Past(rule=rule)
    past.add()
    for action, value in actions:
        match action, value:
            case "run", float(seconds):
                past.run(seconds)
            case "skip", int(count):
                past.skip(count)
            case "modify", Rule() as new:
                past.modify(new)
            case "move", int(span):
                past.catch_up()
                past.move(int(past.now) + span)
            case "run_now", _:
                past.run_now()
            case _:
                past.catch_up()
                past.delete()
                past.add()
    past.now = min(past.now, past.row.next_time) if past.row is not None else past.now
    return past


def kinds(verdict: Verdict) -> list[tuple[str, int]]:
    return [(found.kind, found.time) for found in verdict.violations]


@given(st.lists(ACTIONS, max_size=25), st.sampled_from(RULES))
def test_a_correct_past_has_no_violation(actions: list[tuple[str, object]], rule: Rule) -> None:
    past = past_of(actions, rule)
    verdict = past.judged()
    assert kinds(verdict) == []
    assert verdict.ran == sum(row.outcome == "finished" for row in past.rows)
    assert verdict.skipped == sum(row.count or 0 for row in past.rows if row.outcome == "skipped")


@given(st.lists(ACTIONS, min_size=1, max_size=25), st.data())
def test_no_part_of_a_correct_past_has_a_violation(actions: list[tuple[str, object]], data: st.DataObject) -> None:
    past = past_of(actions)
    end = max(BEGIN, int(past.now)) + 1
    since = data.draw(st.integers(BEGIN, end))
    until = data.draw(st.integers(since, end))
    assert kinds(past.judged(since, until)) == []


def test_a_schedule_may_be_moved_back_before_the_audited_span() -> None:
    past = past_of([("run", 0.25), ("move", -302), ("skip", 3)])
    assert kinds(past.judged(BEGIN + 201, BEGIN + 500)) == []


@given(st.lists(ACTIONS, min_size=2, max_size=25), st.data())
def test_an_occurrence_whose_entry_is_gone_is_missing(actions: list[tuple[str, object]], data: st.DataObject) -> None:
    past = past_of(actions)
    regular = [place for place, row in enumerate(past.rows) if place and row.detail != "run-now"]
    assume(regular)
    gone = past.rows.pop(data.draw(st.sampled_from(regular)))
    assert ("missing", gone.scheduled_time) in kinds(past.judged())


@given(st.lists(ACTIONS, min_size=2, max_size=25), st.data())
def test_an_occurrence_that_was_settled_twice_is_doubled(
    actions: list[tuple[str, object]], data: st.DataObject
) -> None:
    past = past_of(actions)
    assume(past.rows)
    twice = data.draw(st.sampled_from(past.rows))
    past.rows.append(replace(twice, fence=twice.fence + 1000))
    assert ("doubled", twice.scheduled_time) in kinds(past.judged())


@given(st.lists(ACTIONS, min_size=2, max_size=25), st.data())
def test_a_run_that_no_definition_asks_for_is_extra(actions: list[tuple[str, object]], data: st.DataObject) -> None:
    past = past_of(actions)
    regular = [place for place, row in enumerate(past.rows) if row.detail != "run-now"]
    assume(regular)
    place = data.draw(st.sampled_from(regular))
    row = past.rows[place]
    other = replace(row, scheduled_time=row.scheduled_time + 1, last=None, outcome="finished", fence=row.fence)
    past.rows[place] = other
    found = kinds(past.judged())
    assert ("extra", other.scheduled_time) in found
    assert [kind for kind, _ in found if kind == "missing"]


@given(st.lists(ACTIONS, min_size=2, max_size=25), st.data())
def test_a_run_during_another_one_is_overlapping(actions: list[tuple[str, object]], data: st.DataObject) -> None:
    past = past_of(actions)
    runs = [place for place, row in enumerate(past.rows) if row.started is not None]
    assume(len(runs) > 1)
    number = data.draw(st.integers(1, len(runs) - 1))
    before, place = past.rows[runs[number - 1]], runs[number]
    past.rows[place] = replace(past.rows[place], started=before.ended - 0.01)
    times = {past.rows[place].scheduled_time, past.rows[runs[number - 1]].scheduled_time}
    assert times & {time for kind, time in kinds(past.judged()) if kind == "overlapping"}


def test_a_schedule_ends_by_max_runs_and_no_sooner() -> None:
    past = Past(rule=Rule("*/5 * * * *", "UTC", max_runs=3))
    past.add()
    for _ in range(3):
        past.run()
    first, *_, last = (row.scheduled_time for row in past.rows)
    past.now += 5000
    assert past.there.ended
    for since, until in ((0, 2**31), (last, 2**31), (last + 1, 2**31), (first, last - 1)):
        assert kinds(past.judged(since, until)) == []
    past.rows.pop(1)
    assert ("missing", last + 300) in kinds(past.judged())
    past.modify(Rule("*/5 * * * *", "UTC", max_runs=3, delay=1))
    assert ("missing", last + 300) in kinds(past.judged())


def test_a_run_beyond_max_runs_is_extra() -> None:
    past = Past(rule=Rule("*/5 * * * *", "UTC"))
    past.add()
    past.now = past.there.next_time + 1
    for _ in range(4):
        past.run()
    past.changes[0] = replace(past.changes[0], rule=replace(past.rule, max_runs=3))
    assert ("extra", past.rows[-1].scheduled_time) in kinds(past.judged())


def test_a_run_that_began_later_than_the_given_bound_is_late() -> None:
    past = Past()
    past.add()
    past.run(late=10)
    past.run(late=31)
    times = [row.scheduled_time for row in past.rows]
    assert kinds(past.judged(late=30)) == [("late", times[1])]
    assert kinds(past.judged(late=9)) == [("late", times[0]), ("late", times[1])]
    assert kinds(past.judged()) == []


def test_an_overdue_occurrence_is_missing_unless_paused() -> None:
    past = Past()
    past.add()
    past.run()
    assert past.row is not None
    past.now = past.row.next_run_time + 9
    assert (kinds(past.judged()), past.judged().pending) == ([], 1)
    past.now += 2
    assert past.judged().pending == 0
    assert kinds(past.judged()) == [("missing", past.row.next_time)]
    past.row = replace(past.row, paused_from=past.now - 500)
    assert (kinds(past.judged()), past.judged().reasons) == ([], {"paused"})
    past.row = replace(past.row, paused_from=past.now - 1)
    assert kinds(past.judged()) == [("missing", past.row.next_time)]


def test_occurrences_that_the_row_jumped_over_are_missing() -> None:
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


def test_a_row_deleted_by_another_program_is_still_expected_to_run() -> None:
    past = Past()
    past.add()
    past.run()
    last = past.rows[-1].scheduled_time
    past.row = None
    past.now = last + 500
    assert kinds(past.judged(until=last + 299)) == []
    assert kinds(past.judged(until=last + 300)) == [("missing", last + 300)]


def test_occurrences_whose_entries_were_trimmed_are_unknown() -> None:
    past = Past()
    past.add()
    for _ in range(5):
        past.run()
    del past.rows[:2]
    verdict = past.judged()
    assert [found.kind for found in verdict.violations] == ["unknown"]
    assert kinds(past.judged(since=past.rows[0].scheduled_time)) == []


def test_a_gap_of_a_year_of_seconds_is_one_violation() -> None:
    past = Past(rule=Rule("* * * * * *", "UTC"))
    past.add()
    past.run()
    assert past.row is not None
    first = past.row.next_time
    past.row = replace(past.row, next_time=first + 30_000_000)
    past.now = past.row.next_time + 5
    [found] = past.judged().violations
    assert (found.kind, found.time, found.last, found.count) == ("missing", first, first + 29_999_999, 30_000_000)


@pytest.mark.parametrize("then", ["vixie 2025b", "perfectsched 2026f"])
def test_a_change_of_dialect_or_tz_database_is_noted(then: str) -> None:
    past = Past()
    past.add()
    for _ in range(4):
        past.run()
    past.rows[:2] = [replace(row, reckoning=then) for row in past.rows[:2]]
    [(what, time)] = past.judged().notes
    assert then in what
    assert time == past.rows[2].scheduled_time


def test_due_occurrences_that_never_ran_are_missing_wherever_the_span_begins() -> None:
    past = Past(rule=Rule("0 * * * *", "UTC"))
    past.add()
    past.now = BEGIN + 48 * 3600
    first = past.there.next_time
    for since, time, count in ((0, 0, 48), (1, 1, 47), (24 * 3600, 24, 24), (47 * 3600, 47, 1)):
        verdict = past.judged(since and first + since)
        [found] = verdict.violations
        assert (found.kind, found.time, found.count) == ("missing", first + time * 3600, count)
        assert (verdict.missing, verdict.expected) == (count, count)
    assert past.judged(first + 1, first + 3599).expected == 0


def test_a_year_of_seconds_in_which_nothing_ran_is_counted() -> None:
    past = Past(rule=Rule("* * * * * *", "Europe/Berlin"))
    past.add()
    past.now = BEGIN + 365 * 86400
    [found] = past.judged(BEGIN + 11).violations
    assert (found.time, found.count) == (BEGIN + 11, 365 * 86400 - 10 - 10)
    assert past.judged().pending == 10


def test_every_second_occurrence_missing_for_long_is_listed_in_part_and_counted_in_full() -> None:
    past = Past(rule=Rule("* * * * * *", "UTC"))
    past.add()
    for _ in range(4000):
        past.run(seconds=0.1, late=0.1)
    del past.rows[1::2]
    verdict = past.judged()
    assert verdict.missing == 2000
    assert (len(verdict.violations), verdict.unlisted) == (1000, 1000)


def test_an_occurrence_is_running_until_its_lease_ends() -> None:
    past = waiting_past()
    assert past.row is not None
    past.row = replace(past.row, status="running", attempts=3, next_run_time=past.now + 5)
    verdict = past.judged()
    assert (verdict.running, verdict.missing) == (1, 2)
    assert verdict.violations[0].why == Why(
        "it waits behind an occurrence that is running, after it failed 2 times", past.there.next_time
    )
    past.row = replace(past.row, next_run_time=past.now - 1)
    verdict = past.judged()
    assert (verdict.running, verdict.missing) == (0, 3)
    assert verdict.violations[0].what == "it has an expired lease, at attempt 3"


@pytest.mark.parametrize("catch_up", ["latest", "none"])
def test_occurrences_that_the_policy_will_skip_are_pending_during_a_run(catch_up: str) -> None:
    past = waiting_past()
    assert past.row is not None
    past.row = replace(past.row, status="running", attempts=1, next_run_time=past.now + 5, policy=Policy(catch_up))
    verdict = past.judged()
    assert (verdict.running, verdict.pending, verdict.violations) == (1, 2, [])


def test_an_occurrence_that_keeps_failing_is_missing_with_its_error() -> None:
    past = waiting_past()
    assert past.row is not None
    past.row = replace(past.row, attempts=4, last_error="Traceback\nValueError: it broke", next_run_time=past.now + 5)
    first, behind = past.judged().violations
    assert (first.count, first.why) == (
        1,
        Why("it failed 4 times, the last error: ValueError: it broke", next_attempt=past.now + 5),
    )
    assert (behind.count, behind.why) == (
        2,
        Why(
            "it waits behind an occurrence that failed 4 times, the last error: ValueError: it broke",
            past.row.next_time,
            past.now + 5,
        ),
    )


BEHIND = {
    "it waits behind an occurrence that failed once, the last error: it broke": {"attempts": 1, "next_run_time": 5.0},
    "it waits behind an occurrence that is running": {"status": "running", "attempts": 1, "next_run_time": 1e10},
    "it waits behind an occurrence that is running, after it failed once, the last error: it broke": {
        "status": "running",
        "attempts": 2,
        "next_run_time": 1e10,
    },
    "it waits behind an occurrence that has an expired lease, at attempt 1": {"status": "running", "attempts": 1},
    "it waits behind an occurrence that is running, or waits for a retry": {"status": "leased", "next_run_time": 1e10},
    "it waits behind an occurrence that cannot be run: no cron": {"problem": "no cron"},
    "it has no entry in the ledger": {},
}


@pytest.mark.parametrize(("what", "row"), BEHIND.items())
def test_an_occurrence_behind_a_run_names_that_run_wherever_the_span_begins(what: str, row: dict[str, object]) -> None:
    past = waiting_past()
    first = past.there.next_time
    if "it broke" in what:
        row = {**row, "last_error": "it broke"}
    past.row = replace(past.there, **row)  # type: ignore[arg-type]
    for since in (first + 1, first + 300):
        verdict = past.judged(since=since)
        [found] = verdict.violations
        assert (found.kind, found.time, found.count, found.what) == ("missing", first + 300, 2, what)
        waits = "behind" in what
        assert found.why.behind == (first if waits else None)
        assert found.why.next_attempt == (5.0 if "failed once" in what and "running" not in what else None)
        assert (verdict.pending, verdict.missing) == (0, 2)


def test_an_occurrence_behind_a_paused_run_has_no_next_attempt() -> None:
    past = waiting_past()
    past.row = replace(
        past.there, attempts=1, last_error="it broke", next_run_time=NEVER, paused_from=past.now - 5, paused_until=None
    )
    verdict = past.judged(since=past.there.next_time + 1)
    assert [found.why for found in verdict.violations] == [
        Why("it waits behind an occurrence that failed once, the last error: it broke", past.there.next_time)
    ]


def test_an_occurrence_behind_an_extra_run_names_that_run() -> None:
    past = waiting_past()
    row = past.there
    past.row = replace(
        with_regular(row, row), next_time=row.next_time - 7, extra=row.next_time - 7, attempts=2, last_error="it broke"
    )
    [found] = past.judged().violations
    assert (found.count, found.what) == (
        3,
        "it waits behind an extra run that failed 2 times, the last error: it broke",
    )
    assert (found.why.behind, found.why.next_attempt) == (row.next_time - 7, row.next_run_time)


@pytest.mark.parametrize("catch_up", ["latest", "none"])
def test_occurrences_that_the_policy_will_skip_are_pending_wherever_the_span_begins(catch_up: str) -> None:
    past = waiting_past()
    past.row = replace(past.there, status="running", attempts=1, next_run_time=past.now + 5, policy=Policy(catch_up))
    verdict = past.judged(since=past.there.next_time + 1)
    assert (verdict.running, verdict.pending, verdict.violations) == (0, 2, [])


def test_a_leased_row_that_may_wait_for_a_retry_is_unknown() -> None:
    past = waiting_past()
    assert past.row is not None
    past.row = replace(past.row, status="leased", next_run_time=past.now + 5)
    assert [(found.kind, found.count) for found in past.judged().violations] == [("unknown", 1), ("missing", 2)]


def test_a_deferred_first_run_is_not_missing_before_its_time() -> None:
    past = Past()
    past.add()
    assert past.row is not None
    late = past.row.next_time + 1000
    past.changes[-1] = replace(past.changes[-1], due=late)
    past.row = replace(past.row, next_run_time=late)
    past.now = late - 1
    assert (past.judged().violations, past.judged().pending) == ([], 4)
    past.now = late + 11
    assert past.judged().missing == 4


def waiting_past() -> Past:
    """Return a past with three occurrences, 5 minutes apart, that are due and have not begun."""
    past = Past()
    past.add()
    past.run()
    assert past.row is not None
    past.now = past.row.next_time + 2 * 300 + 60
    return past


@pytest.mark.parametrize(
    ("policy", "reason", "what"),
    [
        (Policy(), "late", "which the policy then in force does not permit: catch_up=all, no max_lateness"),
        (Policy("latest"), "late", "does not permit: catch_up=latest, no max_lateness"),
        (Policy("all", 9), "superseded", "does not permit: catch_up=all, max_lateness=9"),
        (Policy("latest"), "superseded", "no later occurrence was due"),
        (Policy("none"), "late", "it was in time"),
        (Policy("all", 30), "late", "it was in time"),
        (Policy("none", 5), "paused", "the schedule was not paused then"),
        (Policy("none", 5), "a whim", "skipped as a whim, which no policy or pause gives"),
        (Policy("none", 5), None, "skipped as None, which no policy or pause gives"),
    ],
)
def test_a_skip_that_the_policy_does_not_permit_is_a_violation(policy: Policy, reason: str | None, what: str) -> None:
    past = Past(policy=policy)
    past.add()
    assert past.row is not None
    past.now = past.row.next_time + 2 + 20
    past.settle("skipped", reason)
    past.run()
    verdict = past.judged()
    [found] = verdict.violations
    assert (found.kind, found.time) == ("unpermitted", past.rows[0].scheduled_time)
    assert what in found.what
    assert (verdict.skipped, verdict.ran, verdict.expected) == (0, 1, 2)


@pytest.mark.parametrize(
    ("policy", "reason", "after"),
    [
        (Policy("latest"), "superseded", 300),
        (Policy("none"), "superseded", 300),
        (Policy("none"), "late", 61),
        (Policy("all", 30), "late", 31),
        (Policy("all", 0), "late", 1),
    ],
)
def test_a_skip_that_the_policy_permits_is_no_violation(policy: Policy, reason: str, after: int) -> None:
    past = Past(policy=policy)
    past.add()
    assert past.row is not None
    past.now = past.row.next_time + 2 + after
    past.settle("skipped", reason)
    past.policy = Policy()
    past.modify(past.rule)
    assert (past.judged().violations, past.judged().skipped) == ([], 1)


def test_only_occurrences_within_a_pause_may_be_skipped_as_paused() -> None:
    past = Past()
    past.add()
    past.run()
    past.change("pause")
    first = past.there.next_time
    past.now = first + 602
    past.settle("skipped", "paused", first + 300, 2)
    past.change("resume", first + 301)
    assert past.judged().violations == []
    for time in (first + 1, first + 302):
        wrong = replace(past, changes=[replace(c, at=time) if c.action == "resume" else c for c in past.changes])
        [found] = wrong.judged(until=first + 599).violations
        assert (found.kind, found.count) == ("unpermitted", 2)


def past_of_two_pauses() -> tuple[Past, int]:
    """Return a past with three occurrences without entries, and the first of them.

    The first and the last are in a pause.
    """
    past = Past()
    past.add()
    past.run()
    first = past.there.next_time
    begins, ends = [past.now, first + 400], [first + 10, first + 700]
    for begin, end in zip(begins, ends, strict=True):
        past.now = begin
        past.change("pause")
        past.now = end
        past.change("resume")
    past.now = first + 702
    return past, first


@pytest.mark.parametrize("together", [True, False])
def test_an_occurrence_between_two_pauses_may_not_be_skipped_as_paused(together: bool) -> None:
    past, first = past_of_two_pauses()
    if together:
        past.settle("skipped", "paused", first + 600, 3)
    else:
        for _ in range(3):
            past.settle("skipped", "paused")
    [found] = past.judged(until=first + 899).violations
    assert (found.kind, found.what) == ("unpermitted", "skipped as paused, but the schedule was not paused then")
    assert (found.time, found.count) == ((first, 3) if together else (first + 300, 1))


def test_an_occurrence_between_two_pauses_without_entry_is_missing() -> None:
    past, first = past_of_two_pauses()
    earlier = ((first - 200.0, first + 10.0),)
    past.row = replace(past.there, earlier_pauses=earlier, paused_from=first + 400, paused_until=first + 700)
    verdict = past.judged(until=first + 899)
    assert [(found.kind, found.time, found.count) for found in verdict.violations] == [("missing", first + 300, 1)]
    assert (verdict.skipped, verdict.reasons) == (2, {"paused"})
    past.row = replace(past.there, paused_until=None)
    assert past.judged(until=first + 899).skipped == 2


def test_a_pause_begins_at_its_recorded_time_but_not_within_the_pause_before() -> None:
    past, first = past_of_two_pauses()
    past.settle("skipped", "paused")
    past.run()
    past.settle("skipped", "paused")

    def kinds_when(begin: float, written: float) -> list[tuple[str, int]]:
        *others, change, last = past.changes
        change = replace(change, at=written, paused_from=begin)
        return kinds(replace(past, changes=[*others, change, last]).judged(until=first + 899))

    assert kinds_when(first + 601, first + 640) == []
    assert kinds_when(first + 603, first + 640) == [("unpermitted", first + 600)]
    assert kinds_when(first + 9, first + 640) == [("unpermitted", first + 600)]
    assert kinds_when(first + 650, first + 601) == []


def test_due_occurrences_are_skipped_by_a_move_and_missing_after_a_deletion() -> None:
    past = waiting_past()
    past.move(int(past.now) + 1)
    verdict = past.judged()
    assert (verdict.violations, verdict.skipped, verdict.reasons) == ([], 3, {"moved"})
    past = waiting_past()
    past.delete()
    [found] = past.judged().violations
    assert (found.kind, found.count) == ("missing", 3)
    assert found.what == "it was due, and not finished, when the schedule was deleted"


def test_an_occurrence_that_was_given_up_is_failed() -> None:
    past = Past()
    past.add()
    past.run()
    past.now += 300
    past.settle("failed", error="ValueError: it broke")
    verdict = past.judged()
    [found] = verdict.violations
    assert (found.kind, found.what) == ("failed", "given up after 1 attempts: ValueError: it broke")
    assert (verdict.failed, verdict.missing, verdict.expected) == (1, 0, 2)


def test_a_run_before_its_time_is_early() -> None:
    past = Past()
    past.add()
    past.run(late=-1.5)
    past.run(late=-0.9)
    assert kinds(past.judged()) == [("early", past.rows[0].scheduled_time)]


def test_a_run_acquired_under_the_definition_before_is_not_early() -> None:
    past = Past()
    past.add()
    past.modify(Rule("*/5 * * * *", "Europe/Berlin", 2))
    assert past.row is not None
    past.now = past.row.next_time + 3
    started = past.now
    past.row = replace(past.row, rule=Rule("*/5 * * * *", "Europe/Berlin", 3600), next_run_time=past.now + 300)
    past.change("modify")
    past.now += 1
    past.settle("finished", started=started)
    assert past.judged().violations == []


def test_the_time_before_the_first_recorded_change_is_unknown() -> None:
    past = Past()
    past.add()
    for _ in range(5):
        past.run()
    past.modify(Rule("*/10 * * * *", "Europe/Berlin", 2))
    past.run()
    del past.changes[0]
    past.rows = past.rows[-1:]
    verdict = past.judged()
    assert [(found.kind, found.what) for found in verdict.violations] == [
        ("unknown", "the ledger does not reach back to this time: older records were deleted")
    ]


def test_occurrences_of_an_unusable_rule_are_unknown() -> None:
    past = Past()
    past.add()
    past.skip(3)
    rule = Rule("*/5 * * * *", "Europe/Atlantis")
    past.changes[-1] = replace(past.changes[-1], rule=rule)
    past.row = replace(past.there, rule=rule)
    past.now = past.there.next_time + 1000
    found = past.judged().violations
    assert found[0].kind == "unknown"
    assert "its rule cannot be used: timezone 'Europe/Atlantis'" in found[0].what


def test_entries_without_a_reckoning_are_read_with_the_present_dialect() -> None:
    past = Past()
    past.add()
    past.run()
    past.run()
    past.rows[:] = [replace(row, reckoning="") for row in past.rows]
    past.changes[:] = [replace(change, reckoning="?") for change in past.changes]
    past.now = past.there.next_time + 60
    assert kinds(past.judged()) == [("missing", past.there.next_time)]


def test_a_skip_is_right_only_while_the_run_before_was_going_on() -> None:
    past = Past(policy=Policy(overlap="skip"))
    past.add()
    past.run(seconds=700)  # two occurrences come due, 300 and 600 s later
    time = past.there.next_time
    past.settle("skipped", "overlap", time + 300, 2)
    assert (past.judged().violations, past.judged().skipped) == ([], 2)
    assert past.judged(since=time + 300).violations == []
    past.settle("skipped", "overlap")
    [violation] = past.judged().violations
    assert (violation.kind, violation.time) == (Kind.UNPERMITTED, time + 600)
    assert "the previous run was settled 199.500 s before this one was due" in violation.what
    assert past.judged(since=time + 600).violations == [violation]
    waiting = Past(policy=Policy())
    waiting.add()
    waiting.run(seconds=700)
    waiting.settle("skipped", "overlap")
    assert "overlap=wait" in waiting.judged().violations[0].what
    unrun = Past(policy=Policy(overlap="skip"))
    unrun.add()
    unrun.settle("skipped", "overlap")
    assert "no earlier run is recorded" in unrun.judged().violations[0].what
