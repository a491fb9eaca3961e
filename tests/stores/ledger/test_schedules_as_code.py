"""Plans of declared schedules on each database: applied as a whole or not at all, with their ledger entries."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from psched.backends import open_stores
from psched.backends.common.rows import alert_at
from psched.cli.formatting import json_line
from psched.errors import ConfigError, NotSupportedError
from psched.model import NEVER, NO_OCCURRENCE, LeaseTimes, NewSchedule, Policy, Retry, Rule, ScheduleRow
from psched.retry_wait import Backoff
from psched.schedules.collection import Defaults, ScheduleCollection
from psched.schedules.rule_change import redefined
from psched.schedules_file.declared import DeclaredSchedules
from psched.schedules_file.definition_differences import definition_of
from psched.schedules_file.plan import Plan, PlanConflictError, apply_declared, apply_plan, plan
from psched.schedules_file.plan_file import plan_object, read_plan
from psched.schedules_file.reader import parse_schedules
from psched.schedules_file.rollback_plans import rollback_to_time, rollback_to_version
from psched.schedules_file.writer import schedules_text
from psched.store import RowChange, ScheduleStore, StoreSettings
from tests.faults.killed_process import is_killed_before
from tests.stores.bench import FAR_OFF, LONG_AGO, Bench, new_row, soon
from tests.stores.databases import SharedDatabases
from tests.stores.lost_answers import answer_lost, writes_of
from tests.stores.sent_statements import before_each


def collection(store: ScheduleStore) -> ScheduleCollection:
    return ScheduleCollection(store, LeaseTimes(300, 300, 300), Defaults("UTC"))


def declared(*schedules: NewSchedule, owner: str = "billing") -> list[DeclaredSchedules]:
    return [DeclaredSchedules("jobs.yml", owner, schedules, lambda key: f"jobs.yml: {key}")]


def daily(key: str, hour: int = 3, **options: Any) -> NewSchedule:
    return NewSchedule(key, "report", f"0 {hour} * * *", **options)


def apply(schedules: ScheduleCollection, *wanted: NewSchedule, prune: bool = True, adopt: bool = False) -> list[str]:
    """Plan and apply these schedules. Return the changes."""
    found = plan(schedules, declared(*wanted), prune=prune, adopt=adopt)
    apply_plan(schedules, found)
    return [f"{each.action} {each.key}" for each in found.changes]


def as_read_again(found: Plan) -> Plan:
    """Return the plan as it is read from a file, without the rows on which it was based."""
    return read_plan(json_line(plan_object(found)), "plan.json")


def rows_of(store: ScheduleStore) -> dict[str, ScheduleRow]:
    return {row.key: row for row in store.list()}


def test_a_plan_adds_modifies_and_deletes_the_owner_s_schedules_only(store: ScheduleStore) -> None:
    schedules = collection(store)
    schedules.add("theirs", "report", cron="0 1 * * *", owner="shop")
    schedules.add("nobody's", "report", cron="0 1 * * *")
    assert apply(schedules, daily("a"), daily("b"), daily("c", data={"n": 1})) == ["add a", "add b", "add c"]
    before = rows_of(store)
    assert apply(schedules, daily("a"), daily("c", data={"n": 2}), daily("d")) == ["modify c", "add d", "delete b"]
    after = rows_of(store)
    assert after["c"].data == {"n": 2}
    assert after.keys() == {"theirs", "nobody's", "a", "c", "d"}
    assert [after[key] for key in ("theirs", "nobody's", "a")] == [before[key] for key in ("theirs", "nobody's", "a")]
    assert {row.policy.owner for key, row in after.items() if key in "acd"} == {"billing"}
    assert [change.action for change in schedules.ledger.changes("b")] == ["add", "delete"]
    assert [change.data for change in schedules.ledger.changes("c")] == ['{"n":1}', '{"n":2}']
    assert plan(schedules, declared(daily("a"))).undeclared == ("c", "d")


def test_a_schedule_of_another_owner_is_named_and_can_be_adopted(store: ScheduleStore) -> None:
    schedules = collection(store)
    schedules.add("a", "report", cron="0 3 * * *", owner="shop")
    schedules.add("b", "report", cron="0 3 * * *")
    with pytest.raises(ConfigError) as raised:
        plan(schedules, declared(daily("a"), daily("b"), daily("c")))
    assert str(raised.value).splitlines() == [
        "jobs.yml: a: the schedule exists and has the owner 'shop', not 'billing'",
        "jobs.yml: b: the schedule exists and has no owner, not 'billing'",
        "choose other keys, or take them over with --adopt",
    ]
    assert apply(schedules, daily("a"), daily("b"), adopt=True) == ["modify a", "modify b"]
    assert {row.policy.owner for row in rows_of(store).values()} == {"billing"}


def test_of_two_applies_at_once_one_conflicts_and_changes_nothing(store: ScheduleStore, other: ScheduleStore) -> None:
    first, second = collection(store), collection(other)
    apply(first, daily("a"), daily("b"), daily("c"))
    one = plan(first, declared(daily("a", 4), daily("c"), daily("new")), prune=True)
    two = plan(second, declared(daily("a", 5), daily("b"), daily("c", 5), daily("newer")), prune=True)
    late = plan(second, declared(daily("a"), daily("b"), daily("c"), daily("new", 7)))
    gone = plan(second, declared(daily("a"), daily("b", 9), daily("c"), daily("newest")))
    apply_plan(first, one)
    before = rows_of(store)
    cases = ((two, "a"), (late, "new"), (gone, "b"))
    for stale, key in (*cases, *((as_read_again(stale), key) for stale, key in cases)):
        with pytest.raises(PlanConflictError, match=rf"'{key}' was \w+ after the plan was made \(.* by ") as raised:
            apply_plan(second, stale)
        assert raised.value.keys == (key,)
        assert str(raised.value).endswith("; nothing was applied; make a new plan")
    assert rows_of(store) == before
    apply_declared(second, declared(daily("a", 5), daily("newer")))
    assert rows_of(store)["a"].rule.cron == "0 5 * * *"


def test_a_change_that_moves_no_run_is_a_conflict_too(store: ScheduleStore) -> None:
    schedules = collection(store)
    apply(schedules, daily("a"), daily("b"))
    for wanted in ((daily("a", description="Ours"), daily("b")), (daily("b"),)):
        stale = plan(schedules, declared(*wanted), prune=True)
        schedules["a"].modify(description=f"Theirs {len(wanted)}")
        for each in (stale, as_read_again(stale)):
            with pytest.raises(PlanConflictError, match="'a' was changed"):
                apply_plan(schedules, each)
    assert rows_of(store)["a"].policy.description == "Theirs 1"


def test_a_plan_from_a_file_is_applied_to_the_rows_as_they_are_then(store: ScheduleStore) -> None:
    schedules = collection(store)
    apply(schedules, NewSchedule("a", "report", "* * * * *", next_time=LONG_AGO), daily("b"), daily("c"))
    wanted = (NewSchedule("a", "mail", "*/2 * * * *", data={"n": 1}), daily("b", data={"n": 2}), daily("d"))
    found = as_read_again(plan(schedules, declared(*wanted), prune=True))
    task = schedules.poll()
    assert task is not None
    task.finish()
    due = rows_of(store)["a"].next_time
    apply_plan(schedules, found)
    rows = rows_of(store)
    assert rows.keys() == {"a", "b", "d"}
    assert (rows["a"].type, rows["a"].rule.cron, rows["a"].data, rows["a"].next_time) == (
        "mail",
        "*/2 * * * *",
        {"n": 1},
        due,
    )
    assert rows["b"].data == {"n": 2}
    actions = {key: [change.action for change in schedules.ledger.changes(key)][-1] for key in "abcd"}
    assert actions == {"a": "modify", "b": "modify", "c": "delete", "d": "add"}


def test_failures_are_counted_anew_when_pause_after_is_declared_again(store: ScheduleStore) -> None:
    schedules = collection(store)
    secondly = NewSchedule("a", "t", "* * * * * *", catch_up="latest", max_attempts=1)
    apply(schedules, secondly._replace(pause_after=3))
    while (task := schedules.poll()) is None:
        time.sleep(0.02)
    task.fail("no luck")
    assert rows_of(store)["a"].failures == 1
    apply(schedules, secondly)
    assert rows_of(store)["a"].failures is None


def test_a_run_that_advances_a_schedule_is_no_conflict(store: ScheduleStore) -> None:
    schedules = collection(store)
    apply(schedules, NewSchedule("a", "report", "* * * * *", next_time=0), daily("b"))
    found = plan(schedules, declared(NewSchedule("a", "mail", "* * * * *"), daily("b", 4)))
    task = schedules.poll()
    assert task is not None
    apply_plan(schedules, found)
    task.finish()
    assert (rows_of(store)["a"].type, rows_of(store)["b"].rule.cron) == ("mail", "0 4 * * *")
    assert plan(schedules, declared(NewSchedule("a", "mail", "* * * * *"), daily("b", 4))).changes == ()


LATER = 4_000_000_000
"""Unix seconds: an occurrence in the year 2096."""
STATES: dict[str, dict[str, Any]] = {
    "running": {},
    "retried": {},
    "running an extra run": {"extra": LONG_AGO, "regular_time": LATER, "regular_run_time": LATER + 5},
    "due": {},
    "waiting": {"next_time": LATER, "next_run_time": LATER},
    "waiting for its first run": {"next_time": LATER, "next_run_time": LATER + 500, "failures": 2},
    "due before its time": {"next_time": LATER},
    "waiting for its delay": {"next_run_time": LATER},
    "paused": {"next_time": LATER, "next_run_time": NEVER, "paused_from": LONG_AGO},
    "paused while due": {"next_run_time": NEVER, "paused_from": LONG_AGO},
    "due for an extra run": {"extra": LONG_AGO, "regular_time": LATER, "regular_run_time": LATER},
    "ended": {"next_time": NO_OCCURRENCE, "next_run_time": NO_OCCURRENCE},
    "run as often as allowed": {"next_time": LATER, "next_run_time": LATER, "runs": 3},
}
OLD, OLD_POLICY = Rule("@at 2096-10-02T07:06:40", "UTC"), Policy(max_attempts=9, alert_after=60)
NEW = {
    "type": (OLD, OLD_POLICY),
    "cron": (replace(OLD, cron="@at 2099-01-01T00:00", max_runs=3), OLD_POLICY),
    "delay": (replace(OLD, delay=30, spread=10), OLD_POLICY),
    "number of runs": (replace(OLD, max_runs=3), replace(OLD_POLICY, alert_after=None, pause_after=3)),
    "alert": (OLD, replace(OLD_POLICY, alert_after=90)),
}


def test_runs_since_the_plan_are_no_conflict_and_their_times_follow_the_new_rule(
    bench: Bench, store: ScheduleStore
) -> None:
    """Each row is in one of the states in which a worker may have left it since the plan."""
    names = [(state, change) for state in STATES for change in NEW]
    rows = {
        f"{state}: {change}": new_row(f"{state}: {change}", {}, rule=OLD, policy=OLD_POLICY, **STATES[state])
        for state, change in names
    }
    held = [row for key, row in rows.items() if key.startswith(("running", "retried"))]
    assert store.add_many(held) == []
    claims = store.acquire(len(held), 100)
    assert len(claims) == len(held)
    store.retry_many([Retry(each.lease, 50, None) for each in claims if each.row.key.startswith("retried")], soon())
    assert store.add_many([row for row in rows.values() if row not in held]) == []

    present, changes = rows_of(store), []
    for state, change in names:
        row = present[f"{state}: {change}"]
        rule, policy = NEW[change]
        wanted = replace(row, type="other", rule=rule, policy=policy)
        redefine = partial(redefined, wanted=wanted, dialect="vixie")
        seen = replace(
            row, status="waiting", attempts=0, settled=True, next_time=FAR_OFF, next_run_time=FAR_OFF, regular_time=None
        )
        changes.append(RowChange(seen, redefine(seen, FAR_OFF), redefine))
    store.extend([each.lease for each in claims if not each.row.key.startswith("retried")], 1000)  # this lease stays
    leased = {key: row.next_run_time for key, row in rows_of(store).items() if row.status == "running"}
    assert store.apply(changes) == []

    for key, row in rows_of(store).items():
        change = next(change for change in changes if change.key == key)
        assert change.redefine is not None
        wanted = change.redefine(present[key], store.now())
        wanted = replace(wanted, version=row.version, next_run_time=leased.get(key, wanted.next_run_time))
        assert row == wanted, key
        raw = bench.raw(key)
        assert raw is not None
        assert raw.get("alert_at") == alert_at(wanted), key


def test_an_apply_ends_while_workers_run_its_schedules_without_a_pause(
    bench: Bench, store: ScheduleStore, other: ScheduleStore
) -> None:
    """A worker runs what is due before each attempt of the apply.

    On SQL one attempt is enough, because it locks the rows.
    """
    schedules, workers = collection(store), collection(other)
    apply(schedules, *(NewSchedule(key, "report", "* * * * * *", next_time=LONG_AGO) for key in "abc"))
    in_progress = workers.poll()
    assert in_progress is not None
    found = plan(schedules, declared(*(NewSchedule(key, "report", "*/2 * * * * *") for key in "abc")))
    acquired: list[int] = []
    is_working = False

    def work(statement: str) -> None:
        nonlocal is_working
        is_locked = bench.type == "rdb" and acquired
        if is_working or is_locked or not statement.startswith(("BEGIN IMMEDIATE", "SELECT", "EVAL")):
            return
        is_working = True
        assert len(acquired) < 9, "the apply does not end"
        tasks = [task for _ in "abc" if (task := workers.poll()) is not None]
        acquired.append(len(tasks))
        for task in tasks if tasks or len(acquired) > 2 else [in_progress]:
            task.finish()
        is_working = False

    with before_each(work):
        apply_plan(schedules, found)
    assert acquired == ([2, 0, 0] if bench.type == "redis" else [2])
    rows = rows_of(store)
    assert {row.rule.cron for row in rows.values()} == {"*/2 * * * * *"}
    assert all(row.next_time < LONG_AGO + 9 for row in rows.values()), "an occurrence that is due stays due"
    assert workers.poll() is not None, "workers acquire again"


def test_a_lease_that_was_renewed_since_the_read_keeps_its_end(bench: Bench, store: ScheduleStore) -> None:
    bench.add(store, "a")
    claim = bench.take(store, "a")
    seen = rows_of(store)["a"]
    store.extend([claim.lease], 1000)
    assert store.apply([RowChange(seen, replace(seen, data={"n": 2}))]) == []
    row = rows_of(store)["a"]
    assert (row.data, row.next_run_time > seen.next_run_time + 500) == ({"n": 2}, True)


def test_changes_are_made_all_or_none(store: ScheduleStore) -> None:
    """The last change is refused after all others have been written in the transaction."""
    schedules = collection(store)
    apply(schedules, daily("a"), daily("b"), daily("z"))
    rows = rows_of(store)
    [new, taken] = schedules.rows_of([daily("new"), daily("z", 5)])
    [changed] = schedules.rows_of([daily("a", 7)])
    changes = [RowChange(rows["a"], changed), RowChange(rows["b"], None), RowChange(None, new), RowChange(None, taken)]
    assert store.apply(changes) == ["z"]
    assert rows_of(store) == rows
    assert [change.action for change in schedules.ledger.changes("a")] == ["add"]
    assert list(schedules.ledger.keys()) == ["a", "b", "z"]


@pytest.mark.parametrize("kind", ["add", "modify", "delete"])
def test_an_apply_without_an_answer_is_recognised(bench: Bench, store: ScheduleStore, kind: str) -> None:
    schedules = collection(store)
    before = {"add": (), "modify": (daily("a"), daily("b")), "delete": (daily("a"), daily("b"))}[kind]
    after = {"add": (daily("a"), daily("b")), "modify": (daily("a", 4), daily("b", 4)), "delete": ()}[kind]
    apply(schedules, *before)
    rehearsal = plan(schedules, declared(*after), prune=True)
    number = writes_of(lambda: apply_plan(schedules, rehearsal))
    apply(schedules, *before)
    found = plan(schedules, declared(*after), prune=True)
    with answer_lost(bench.database, number):
        apply_plan(schedules, found)
    assert rows_of(store).keys() == {new.key for new in after}
    for key in ("a", "b"):
        assert [change.action for change in schedules.ledger.changes(key)][-1] == kind


texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=10)
seconds = st.floats(0, 10_000) | st.integers(0, 100_000)
options: st.SearchStrategy[dict[str, Any]] = st.fixed_dictionaries(
    {},
    optional={
        "delay": st.floats(-1000, 1000),
        "timezone": st.sampled_from(["UTC", "Europe/Berlin", "Asia/Tokyo"]),
        "data": st.dictionaries(texts, st.none() | texts | st.integers(-(2**70), 2**70) | st.floats(-1e9, 1e9)),
        "catch_up": st.sampled_from(["all", "latest", "none"]),
        "max_lateness": st.none() | seconds,
        "alert_after": st.none() | seconds,
        "max_attempts": st.none() | st.integers(1, 100),
        "description": st.none() | texts,
        "tags": st.none() | st.lists(texts, max_size=3).map(tuple),
        "start": st.none() | st.floats(0, 2e9),
        "end": st.none() | st.floats(2.1e9, 3e9),
        "spread": seconds,
        "max_runs": st.none() | st.integers(1, 9),
        "exclude": st.sampled_from([(), None, ("holidays",), ["holidays", "holidays"]]),
        "overlap": st.sampled_from(["wait", "skip"]),
        "pause_after": st.none() | st.integers(1, 9),
        "retry_wait": st.none() | st.integers(0, 900) | st.sampled_from([{"first": 1, "limit": 9}, Backoff(5, 2, 60)]),
        "timeout": st.none() | st.floats(0.1, 10_000),
        "on_failure": st.none() | texts,
    },
)
crons = st.sampled_from(
    ["0 3 * * *", "*/5 * * * *", "@every 90s", "@at 2020-01-01T09:00", "@at 2100-01-01T09:00", "0 0 13 * 5"]
)
some_schedules = st.dictionaries(texts, st.tuples(crons, options), max_size=4).map(
    lambda found: [NewSchedule(key, "report", cron, **given) for key, (cron, given) in found.items()]
)


@settings(max_examples=6, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(before=some_schedules, after=some_schedules)
def test_a_plan_after_an_apply_is_empty(
    store: ScheduleStore, before: Sequence[NewSchedule], after: Sequence[NewSchedule]
) -> None:
    schedules = collection(store)
    schedules.calendars.set("holidays", ["2027-12-25", "sun"])
    for wanted in (before, after):
        apply(schedules, *wanted)
        assert plan(schedules, declared(*wanted), prune=True).changes == ()
    exported = "\n".join(schedules_text("billing", [definition_of(row) for row in store.list()]))
    assert plan(schedules, [parse_schedules(exported, "exported.yml")], prune=True).changes == ()
    apply(schedules)
    assert not rows_of(store)


def test_schedules_go_back_to_what_they_were(store: ScheduleStore) -> None:
    schedules = collection(store)
    apply(schedules, daily("a", data={"n": 1}), daily("b", tags=("x",)), daily("c"))
    schedules.add("theirs", "report", cron="0 1 * * *", owner="shop")
    schedules.add("adopted", "report", cron="0 1 * * *")
    time.sleep(0.005)
    then = store.now()
    time.sleep(0.005)
    apply(schedules, daily("a", 4, data={"n": 2}), daily("c"), daily("d"), daily("adopted"), adopt=True)
    schedules["c"].pause()
    schedules["theirs"].modify(cron="0 2 * * *")
    found = rollback_to_time(schedules, "billing", then)
    assert [f"{each.action} {each.key}" for each in found.changes] == [
        "modify a",
        "modify adopted",
        "add b",
        "delete d",
    ]
    apply_plan(schedules, found)
    assert rows_of(store).keys() == {"a", "adopted", "b", "c", "theirs"}
    assert rows_of(store)["adopted"].policy.owner is None
    wanted = declared(daily("a", data={"n": 1}), daily("b", tags=("x",)), daily("c"))
    assert plan(schedules, wanted, prune=True).changes == ()
    assert rollback_to_time(schedules, "billing", then).changes == ()
    assert rows_of(store)["c"].paused
    version = schedules.ledger.changes("a")[1].version
    apply_plan(schedules, rollback_to_version(schedules, "a", version))
    assert (rows_of(store)["a"].rule.cron, rows_of(store)["a"].data) == ("0 4 * * *", {"n": 2})


NIGHTS = [1_600_041_600 + n * 86400 for n in range(10)]
"""Occurrences in unix seconds, from 2020-09-14 00:00 UTC on. They are in the past, so they are due immediately."""
NOON = 12 * 3600


def test_the_ledger_proves_each_occurrence_across_apply_edits_rollback_and_backfill(store: ScheduleStore) -> None:
    schedules = collection(store)
    nightly = daily("a", 0, next_time=NIGHTS[0], end=NIGHTS[9] - 1, data={"n": 0})
    apply(schedules, nightly, daily("b"))
    ran = run(schedules, 2)
    schedules["a"].modify(next_time=NIGHTS[4])  # which leaves a gap
    ran += run(schedules, 1)
    version = schedules.ledger.changes("a")[-1].version
    apply(schedules, nightly._replace(cron="0 12 * * *", data={"n": 1}), daily("b"))
    ran += run(schedules, 2)
    schedules["a"].modify(delay=60)
    ran += run(schedules, 1)
    apply_plan(schedules, rollback_to_version(schedules, "a", version))
    ran += run(schedules)
    noons = [NIGHTS[day] + NOON for day in (5, 6, 7)]
    assert ran == [*NIGHTS[:2], *NIGHTS[4:6], *noons, NIGHTS[8]]
    assert proved(schedules, "a") == (len(ran), 0, 2)

    assert schedules.backfills.start("a", NIGHTS[0], NIGHTS[9], max_running=2) is not None
    filled = run(schedules)
    assert sorted(filled) == [*NIGHTS[2:4], *NIGHTS[6:8]]
    assert schedules.backfills.start("a", NIGHTS[0], NIGHTS[9]) is None
    assert proved(schedules, "a") == (len(ran + filled), len(filled), 0)
    apply(schedules)
    assert proved(schedules, "a") == (len(ran + filled), len(filled), 0)
    assert sorted(row.scheduled_time for row in schedules.history("a")) == sorted(ran + filled)
    assert proved(schedules, "b") == (0, 0, 0)


def proved(schedules: ScheduleCollection, key: str) -> tuple[int, int, int]:
    """Return how many occurrences ran, ran in a backfill, and never ran because a `modify` moved the schedule."""
    [verdict] = schedules.audit(NIGHTS[0], int(schedules.store.now()), keys=[key])
    assert (verdict.violations, verdict.pending, verdict.running) == ([], 0, 0)
    assert verdict.reasons <= {"moved"}
    return verdict.ran, verdict.backfilled, verdict.skipped


def run(schedules: ScheduleCollection, most: int = 100) -> list[int]:
    """Finish what is due now or within a second. Return the occurrences."""
    times: list[int] = []
    while len(times) < most:
        if (task := schedules.poll()) is not None:
            times.append(task.scheduled_time)
            task.finish()
        elif (wait := schedules.store.next_due()) is None or wait > 1:
            break
        else:
            time.sleep(wait)
    return times


@pytest.mark.parametrize("kind", ["apply", "rollback"])
def test_of_two_changes_at_the_same_moment_one_wins_as_a_whole(
    store: ScheduleStore, other: ScheduleStore, kind: str
) -> None:
    """The second change begins when the first has locked its rows but has not written them yet."""
    first, second = collection(store), collection(other)
    apply(first, daily("a"), daily("b"))
    time.sleep(0.005)
    apply(first, daily("a", 4), daily("b", 4))
    one = plan(first, declared(daily("a", 5), daily("b", 5), daily("c", 5)))
    two = plan(second, declared(daily("a", 6), daily("b", 6), daily("c", 6)))
    if kind == "rollback":
        two = rollback_to_time(second, "billing", first.ledger.changes("a")[-1].at)
        assert [each.action for each in two.changes] == ["modify", "modify"]
    begun = threading.Event()
    conflicts: dict[int, PlanConflictError] = {}

    def change(number: int, schedules: ScheduleCollection, found: Plan) -> None:
        try:
            apply_plan(schedules, found)
        except PlanConflictError as error:
            conflicts[number] = error

    thread = threading.Thread(target=change, args=(2, second, two))

    def interleave(statement: str) -> None:
        is_second = threading.current_thread() is thread
        if is_second and statement.startswith(("SELECT", "BEGIN IMMEDIATE", "EVAL")):
            begun.set()
        elif not is_second and statement.startswith(("UPDATE", "WITH", "EVAL")) and thread.ident is None:
            thread.start()
            assert begun.wait(30)

    with before_each(interleave):
        change(1, first, one)
        thread.join()
    [loser] = conflicts
    won = {1: {"a": 5, "b": 5, "c": 5}, 2: {"a": 3, "b": 3} if kind == "rollback" else {"a": 6, "b": 6, "c": 6}}
    rows = rows_of(store)
    assert {key: row.rule.cron for key, row in rows.items()} == {
        key: f"0 {hour} * * *" for key, hour in won[3 - loser].items()
    }
    assert {key: len(first.ledger.changes(key)) for key in rows} == {key: 1 if key == "c" else 3 for key in rows}


def test_an_apply_that_is_killed_changes_nothing_before_its_commit(bench: Bench, store: ScheduleStore) -> None:
    """A process is killed before each statement in turn, until it comes to its end. On Redis there is one script."""
    apply(collection(store), daily("a"), daily("b"))
    rows = rows_of(store)

    def work(begin: Callable[[], None]) -> None:
        settings = StoreSettings(bench.url, "host/2/x", schedules=bench.table)
        schedules = collection(open_stores(bench.type, settings).schedules)
        found = plan(schedules, declared(daily("a", 4), daily("c")), prune=True)
        begin()
        apply_plan(schedules, found)

    statements = 0
    while is_killed_before(statements, work):
        assert rows_of(store) == rows
        statements += 1
    assert rows_of(store).keys() == {"a", "c"}
    assert statements >= 4 or bench.type == "redis"


def test_rdb_compat_refuses_a_plan_as_it_keeps_no_owners(databases: SharedDatabases, tmp_path: Any) -> None:
    bench = databases.bench("rdb_compat", "sqlite", tmp_path)
    try:
        bench.make()
        with pytest.raises(NotSupportedError, match="owner: the tables of rdb_compat keep no owners"):
            plan(collection(bench.open()), declared(daily("a")))
    finally:
        bench.close()
