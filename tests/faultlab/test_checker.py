"""The checker names what is wrong with each kind of bad history, and finds nothing wrong with a good one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from faultlab.trials import checker
from faultlab.trials.checker import Bounds, HistoryChecker, recoveries
from faultlab.trials.history import (
    PAUSE,
    RESUME,
    RUN_NOW,
    Action,
    Declared,
    Every,
    History,
    Recorded,
    RecordedRun,
    RecordedSubmission,
    RecordsOfPsched,
    read_faults,
    read_runs,
    read_submissions,
    write_faults,
)
from faultlab.trials.optioned_schedules import CALENDAR, Optioned, Settled

BOUNDS = Bounds(aftermath=2, awakening=1, recovery=10, runs=3)
FIRST = 1_000_010
R1 = RecordedRun("s", FIRST, 1, 10.1, 10.4, 10.4, "finished", "a", 1)
R2 = RecordedRun("s", FIRST + 10, 2, 20.1, 20.4, 20.4, "finished", "b", 2)
R3 = RecordedRun("s", FIRST + 20, 1, 30.1, 30.4, 30.4, "finished", "a", 4)
TASK = RecordedRun("t", FIRST, 2, 12.0, 12.1, 12.1, "finished", "b", 1)
ELSEWHERE = Declared("elsewhere", 11, 12, nodes="z")
ON_A = Declared("kill", 10.2, 10.5, pids=[1])
FROZEN_A = Declared("freeze", 10.2, 25.0, nodes="a", froze=True)
CUT = replace(R1, seen=10.3, end=None, outcome=None)
AGAIN = replace(R1, pid=2, node="b", begin=11.0, seen=11.3, end=11.3, fence=2)
EXITING = replace(TASK, pid=1, node="a", begin=10.35, seen=10.35, end=None, outcome="exited", fence=0)


def history(*runs: RecordedRun, faults: Sequence[Declared] = (ELSEWHERE,), over: float = 41.0, **other: int) -> History:
    """Return a history with one schedule, which is due every ten seconds, and one task.

    Boottime 0 is unix time 1,000,000.
    """
    later = [replace(run, fence=run.fence + 5) if run.fence and run in (R2, R3) else run for run in runs]
    every = {"s": Every(FIRST, 10)}
    return History(
        [*later, TASK], every, {"t": RecordedSubmission(FIRST, 11.0)}, faults, 1_000_000.0, over - 10, over, other
    )


GOOD = history(R1, R2, R3)
ENTRIES = [Recorded(run.key, run.occurrence, run.fence) for run in GOOD.runs if run.key == "s"]


PAUSED = [Action("s", PAUSE, 17.0, 17.1, True), Action("s", RESUME, 23.0, 23.1, True)]
"""Actions of a visitor: a pause before the second occurrence, and a resume after it."""
NOW = Action("s", RUN_NOW, 25.0, 25.1, True)
EXTRA = RecordedRun("s", FIRST + 15, 1, 25.2, 25.3, 25.3, "finished", "a", 8)


def acted(trial: History, *actions: Action) -> History:
    return replace(trial, actions=actions)


def accused(trial: History) -> set[str]:
    return {found.kind for found in HistoryChecker(trial, BOUNDS).violations()}


def test_a_good_history_is_not_accused() -> None:
    assert HistoryChecker(GOOD, BOUNDS).violations() == []
    assert HistoryChecker(replace(GOOD, proof=RecordsOfPsched(ENTRIES)), BOUNDS).violations() == []


BAD = {
    "passed over": (checker.LOST, history(R1, R3)),
    "never completed": (checker.LOST, history(R1, replace(R2, end=None, outcome=None), R3)),
    "acknowledged and not done": (checker.LOST, replace(GOOD, runs=[R1, R2, R3])),
    "acknowledged and cut off": (checker.LOST, replace(GOOD, runs=[R1, R2, R3, replace(TASK, end=None, outcome=None)])),
    "cut off without a fault": (checker.DOUBLED, history(CUT, AGAIN, R2, R3)),
    "cut off by another's fault": (
        checker.DOUBLED,
        history(CUT, AGAIN, R2, R3, faults=[replace(ON_A, pids=[2], nodes="b")]),
    ),
    "cut off long after the fault": (
        checker.DOUBLED,
        history(CUT, AGAIN, R2, R3, faults=[replace(ON_A, begin=1, until=8.0)]),
    ),
    "cut off by a fault that excuses nothing": (
        checker.DOUBLED,
        history(CUT, AGAIN, R2, R3, faults=[replace(ON_A, excuses=False)]),
    ),
    "its process ended by another run only later": (
        checker.DOUBLED,
        history(CUT, AGAIN, R2, R3, replace(EXITING, begin=11.5, seen=11.5)),
    ),
    "another process ended by a run": (checker.DOUBLED, history(CUT, AGAIN, R2, R3, replace(EXITING, pid=3))),
    "finished and run again": (checker.DOUBLED, history(R1, AGAIN, R2, R3, faults=[ON_A])),
    "already finished and run again": (
        checker.DOUBLED,
        history(replace(R1, outcome="IdempotentAlreadyFinishedError"), AGAIN, R2, R3, faults=[ON_A]),
    ),
    "preempted without a fault": (
        checker.DOUBLED,
        history(replace(R1, outcome="PreemptedError"), AGAIN, R2, R3),
    ),
    "both at work": (
        checker.OVERLAPPED,
        history(replace(CUT, seen=11.1), AGAIN, R2, R3, faults=[replace(ON_A, froze=False)]),
    ),
    "at work long after it woke up": (
        checker.OVERLAPPED,
        history(replace(CUT, seen=28.0), replace(AGAIN, begin=26.5, seen=26.6, end=26.6), R3, faults=[FROZEN_A]),
    ),
    "two occurrences at a time": (checker.OVERLAPPED, history(replace(R1, seen=20.2, end=20.2), R2, R3)),
    "overlapping the one before the last": (
        checker.OVERLAPPED,
        history(replace(R1, seen=30.2, end=30.2, outcome="PreemptedError"), R2, R3, faults=[FROZEN_A]),
    ),
    "a schedule early": (checker.EARLY, history(replace(R1, begin=9.5), R2, R3)),
    "a task early": (checker.EARLY, replace(GOOD, submissions={"t": RecordedSubmission(FIRST + 3, 11.0)})),
    "backward": (checker.DISORDERED, history(R1, replace(R3, begin=20.5), replace(R2, begin=31, seen=32, end=32))),
    "a fence again": (checker.DISORDERED, history(R1, replace(R2, fence=1), R3)),
    "a fence again, out of sleep": (
        checker.DISORDERED,
        history(R1, replace(AGAIN, begin=11.1, fence=1), R2, R3, faults=[replace(FROZEN_A, nodes="ab")]),
    ),
    "a smaller fence": (checker.DISORDERED, history(replace(R1, fence=9), R2, R3)),
    "finished after a later one began": (
        checker.USURPED,
        history(replace(R1, seen=12.0, end=12.0), AGAIN, R2, R3, faults=[FROZEN_A]),
    ),
    "stored with the fence of nobody": (checker.USURPED, history(R1, R2, R3, t=7)),
    "on record and not done": (
        checker.MISRECORDED,
        replace(GOOD, proof=RecordsOfPsched([*ENTRIES, Recorded("s", FIRST + 30, 9)])),
    ),
    "on record by another's fence": (
        checker.MISRECORDED,
        replace(GOOD, proof=RecordsOfPsched([Recorded("s", FIRST, 2), *ENTRIES[1:]])),
    ),
    "on record twice": (checker.MISRECORDED, replace(GOOD, proof=RecordsOfPsched([*ENTRIES, ENTRIES[0]]))),
    "finished and not on record": (checker.MISRECORDED, replace(GOOD, proof=RecordsOfPsched(ENTRIES[1:]))),
    "not proved by the audit": (checker.MISRECORDED, replace(GOOD, proof=RecordsOfPsched(ENTRIES, [("s", "missing")]))),
    "nothing on record": (checker.VACUOUS, replace(GOOD, proof=RecordsOfPsched([]))),
    "stands still": (checker.STUCK, history(R1, R2, over=60.0)),
    "never began": (checker.STUCK, replace(GOOD, schedules={"s": Every(FIRST, 10), "x": Every(FIRST, 10)})),
    "a stranger": (checker.UNASKED, history(R1, R2, R3, replace(R1, key="x"))),
    "no occurrence": (checker.UNASKED, history(R1, replace(AGAIN, occurrence=FIRST + 5, fence=2), R2, R3)),
    "in a pause": (checker.UNASKED, acted(history(R1, R2, R3), *PAUSED)),
    "passed over before a pause": (checker.LOST, acted(history(R1, R3), Action("s", PAUSE, 22.0, 22.1, True))),
    "passed over after a pause": (
        checker.LOST,
        acted(history(R1, R3), PAUSED[0], replace(PAUSED[1], tried=18, ended=18)),
    ),
    "still standing after a pause": (checker.STUCK, acted(history(R1, over=60.0), *PAUSED)),
    "an extra run that nobody asked for": (checker.UNASKED, history(R1, R2, EXTRA, R3)),
    "an extra run before it was asked for": (
        checker.UNASKED,
        acted(history(R1, R2, EXTRA, R3), replace(NOW, tried=27.0, ended=27.1)),
    ),
    "an extra run that never came": (checker.LOST, acted(history(R1, R2, R3), NOW)),
    "on a node that does not route it": (
        checker.MISROUTED,
        replace(
            GOOD,
            runs=[*GOOD.runs, replace(TASK, key="only-a-1")],
            submissions={**GOOD.submissions, "only-a-1": RecordedSubmission(FIRST)},
        ),
    ),
    "otherwise than drawn": (
        checker.DISOBEYED,
        replace(
            GOOD,
            proof=RecordsOfPsched(ENTRIES, settled=[Settled("o", FIRST, FIRST, "finished", None, 10.1, 10.4)]),
            optioned={"o": Optioned({"exclude": [CALENDAR]}, {}, 10, FIRST)},
        ),
    ),
    "too little happened": (checker.VACUOUS, replace(GOOD, runs=[TASK])),
    "no fault": (checker.VACUOUS, history(R1, R2, R3, faults=[])),
    "a fault while nothing ran": (checker.VACUOUS, history(R1, R2, R3, faults=[replace(ON_A, begin=70, until=80)])),
    "nothing acknowledged": (checker.VACUOUS, replace(GOOD, submissions={"t": RecordedSubmission(FIRST)})),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_history_is_accused_of_what_is_wrong(name: str) -> None:
    kind, trial = BAD[name]
    assert kind in accused(trial)


def test_every_kind_of_violation_is_among_these() -> None:
    assert {kind for kind, _ in BAD.values()} == set(checker.KINDS)


EXCUSED = {
    "killed at work": history(CUT, AGAIN, R2, R3, faults=[ON_A]),
    "its process ended by another run": history(CUT, AGAIN, R2, R3, EXITING),
    "killed before it had settled": history(replace(R1, outcome=None), AGAIN, R2, R3, faults=[ON_A]),
    "frozen past its lease": history(
        replace(R1, seen=25.1, end=25.1, outcome="PreemptedError"), AGAIN, R2, R3, faults=[FROZEN_A]
    ),
    "frozen before it began": history(
        replace(CUT, begin=25.1, seen=25.2), AGAIN, replace(R2, begin=26, seen=26.5, end=26.5), R3, faults=[FROZEN_A]
    ),
    "failed by itself": history(replace(R1, outcome="raised"), AGAIN, R2, R3),
    "tried and never committed": replace(GOOD, submissions={**GOOD.submissions, "u": RecordedSubmission(FIRST)}),
    "stored with the fence of whoever did it": history(R1, R2, R3, t=1),
    "passed over in a pause": acted(history(R1, R3), *PAUSED),
    "in what may have been a pause": acted(history(R1, R2, R3), replace(PAUSED[0], done=False), PAUSED[1]),
    "paused to the end": acted(history(R1, R2, over=60.0), replace(PAUSED[0], tried=22.0, ended=22.1)),
    "run in a pause because somebody asked": acted(
        history(R1, replace(R2, begin=22.1, seen=22.2, end=22.2), R3), *PAUSED, replace(NOW, tried=22, ended=22)
    ),
    "an extra run": acted(history(R1, R2, EXTRA, R3), NOW),
    "an extra run that may not have been asked for": acted(history(R1, R2, R3), replace(NOW, done=False)),
    "on the node that routes it": replace(
        GOOD,
        runs=[*GOOD.runs, replace(TASK, key="only-b-1")],
        submissions={**GOOD.submissions, "only-b-1": RecordedSubmission(FIRST)},
    ),
    "due only after it was calm": history(R1, R2, over=39.0),
}


@pytest.mark.parametrize("name", EXCUSED)
def test_what_a_declared_fault_explains_is_no_violation(name: str) -> None:
    assert HistoryChecker(EXCUSED[name], BOUNDS).violations() == []


@st.composite
def correct_histories(draw: st.DrawFn) -> History:
    """Draw histories of a correct scheduler. One run follows another, and a run is cut off only by a declared fault."""
    runs: list[RecordedRun] = []
    faults = [replace(ELSEWHERE, until=30)]
    moment, fence = 0.0, 0
    count = draw(st.integers(4, 12))
    for occurrence in range(FIRST, FIRST + 10 * count, 10):
        for cut in [*draw(st.lists(st.sampled_from(["kill", "freeze", "raise"]), max_size=2)), None]:
            moment = max(moment, occurrence - 1_000_000.0) + draw(st.floats(0, 3))
            seen = moment + draw(st.floats(0, 4))
            fence += draw(st.integers(1, 3))
            pid = len(runs)
            run = RecordedRun("s", occurrence, pid, moment, seen, seen, "finished", "a", fence)
            if cut == "kill":
                run = replace(run, end=draw(st.sampled_from([None, seen])), outcome=None)
                faults.append(Declared("kill", seen, seen, pids=[pid]))
            elif cut == "raise":
                run = replace(run, outcome="raised")
            elif cut == "freeze":
                asleep = draw(st.floats(moment, seen))
                awake = seen + draw(st.floats(0, 20))
                run = replace(run, seen=awake + 0.5, end=None, outcome=draw(st.sampled_from([None, "PreemptedError"])))
                faults.append(Declared("freeze", asleep, awake, pids=[pid], froze=True))
            runs.append(run)
            moment = seen + 0.001
    return History(runs, {"s": Every(FIRST, 10)}, {}, faults, 1_000_000.0, moment - 10, moment)


@given(correct_histories())
def test_no_correct_history_is_accused(trial: History) -> None:
    assert HistoryChecker(trial, BOUNDS).violations() == []


@given(correct_histories(), st.data())
def test_a_correct_history_without_its_faults_or_one_of_its_runs_is_accused(
    trial: History, data: st.DataObject
) -> None:
    done = [run for run in trial.runs if run.finished][:-1]
    gone = data.draw(st.sampled_from(done))
    without = [run for run in trial.runs if run.occurrence != gone.occurrence]
    assert checker.LOST in accused(replace(trial, runs=without))
    if any(run.outcome not in ("finished", "raised") for run in trial.runs):
        assert checker.DOUBLED in accused(replace(trial, faults=[ELSEWHERE]))


@pytest.mark.parametrize(("runs", "pending"), [([R1, R2, R3], False), ([R1, R2], True), ([R1, R3], True)])
def test_all_is_done_when_nothing_is_pending_that_was_due(runs: list[RecordedRun], pending: bool) -> None:
    assert HistoryChecker(history(*runs), BOUNDS).pending() == pending


def test_a_schedule_has_before_it_what_was_due_and_is_not_done() -> None:
    every = {"s": Every(FIRST, 10, work=4.0)}
    trials = [replace(history(*runs), schedules=every) for runs in ([R1, R2, R3], [R1, R2], [R1], [])]
    assert [HistoryChecker(trial, BOUNDS).backlog() for trial in trials] == [0, 4, 8, 12]


def test_recovery_is_the_time_from_healing_to_the_last_late_start() -> None:
    late = replace(R2, begin=23.5, seen=23.6, end=23.6)
    fault, next_one = replace(ON_A, begin=15, until=21), replace(ON_A, begin=29, until=30, kind="cut")
    trial = history(R1, late, R3, faults=[fault, next_one])
    assert recoveries(trial) == {"kill": [pytest.approx(2.5)], "cut": [0.0]}
    assert recoveries(trial, idle=2)["kill"] == [0.0], "what was late long after the rest is the machine's doing"
    assert "kill" not in recoveries(replace(trial, faults=[fault, replace(next_one, begin=20)]))


def test_records_are_read_by_run_and_by_key(tmp_path: Path) -> None:
    records = tmp_path / "records"
    begin = '{"run": "x", "event": "begin", "key": "k", "occurrence": 5, "pid": 1, "node": "a", "fence": 3, "at": 10}'
    more = ['{"run": "x", "event": "sign", "at": 11}', '{"run": "x", "event": "end", "at": 12}']
    settled = '{"run": "x", "event": "settled", "outcome": "finished", "at": 13}'
    records.write_text("\n".join([begin, *more, settled]) + "\n")
    assert read_runs(records) == [RecordedRun("k", 5, 1, 10, 12, 12, "finished", "a", 3)]
    lines = [
        f'{{"event": "{event}", "key": "{key}", "run_at": 5, "at": {at}}}'
        for event, key, at in [("tried", "k", 1), ("tried", "l", 2), ("acknowledged", "k", 3), ("tried", "k", 4)]
    ]
    records.write_text("\n".join(lines) + "\n")
    assert read_submissions([records]) == {"k": RecordedSubmission(5, 3), "l": RecordedSubmission(5)}


def test_declared_faults_are_kept_beside_the_records(tmp_path: Path) -> None:
    faults = [Declared("kill", 1.5, 2.5, ["a"], [1, 2]), Declared("freeze", 3, 4, [], [7], excuses=False, froze=True)]
    write_faults(tmp_path / "faults", faults)
    assert read_faults(tmp_path / "faults") == faults


@pytest.mark.parametrize(("limit", "found"), [(None, {checker.DOUBLED}), (0.8, set()), (1.5, {checker.DOUBLED})])
def test_a_run_may_be_ended_by_the_time_limit_of_its_schedule(limit: float | None, found: set[str]) -> None:
    schedule = Optioned({"timeout": limit}, {}, 10)
    assert accused(replace(history(CUT, AGAIN, R2, R3), optioned={"s": schedule})) == found
