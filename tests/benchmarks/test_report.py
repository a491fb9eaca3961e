"""Reports of the benchmark: what they say of its figures."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from benchmarks import markdown
from benchmarks.__main__ import WORKLOADS, main
from benchmarks.databases import Grounds, Place
from benchmarks.goals import GOALS, Goal
from benchmarks.pauses import pauses
from benchmarks.peers.contenders import PEERS
from benchmarks.process_usage import processor_time
from benchmarks.report import BenchmarkRecord
from benchmarks.runner import Measurement, in_groups, measure
from benchmarks.shared_counter import Tally, read_samples, read_tally
from benchmarks.workload import Contender, Scale, Workload
from faultlab.laboratory import Lab

KEY = ("functions", "sqlite")
MEASURED = {
    (workload.name, store, contender.name)
    for workload in WORKLOADS
    for contender in (*workload.contenders, *PEERS.get(workload.name, ()))
    for store in contender.stores
}


@pytest.mark.parametrize("goal", GOALS, ids=lambda goal: f"{goal.workload}-{goal.store}-{goal.metric}")
def test_each_goal_is_about_what_is_measured(goal: Goal) -> None:
    assert (goal.workload, goal.store, "psched") in MEASURED
    for each in (goal, *goal.ratios()):
        assert each.compared is None or each.compared[:3] in MEASURED
        assert (each.at_least is None) != (each.at_most is None)


@pytest.mark.parametrize(("mine", "reached"), [(8.0, True), (7.9, False)])
def test_a_goal_is_judged_by_the_ratio_in_the_same_run(mine: float, reached: bool) -> None:
    goal = Goal(*KEY, "tasks/s", at_least=8, against="huey")
    rounds = {(*KEY, "psched", "tasks/s"): [mine * 100], (*KEY, "huey", "tasks/s"): [100.0]}
    assert goal.reached(rounds) == (mine, reached)


def test_rounds_are_compared_one_by_one_since_the_machine_may_have_been_slow_in_one() -> None:
    goal = Goal(*KEY, "tasks/s", at_least=3, against="huey")
    mine, theirs = (*KEY, "psched", "tasks/s"), (*KEY, "huey", "tasks/s")
    assert goal.reached({mine: [200.0, 20.0, 230.0], theirs: [100.0, 10.0, 60.0]}) == (2.0, False)
    assert goal.reached({mine: [200.0, 400.0, 300.0], theirs: [100.0]}) == (3.0, True)


@pytest.mark.parametrize(("mine", "reached"), [(100.0, True), (100.1, False)])
def test_a_bound_is_not_to_be_exceeded(mine: float, reached: bool) -> None:
    goal = Goal(*KEY, "last ms", at_most=100)
    assert goal.reached({(*KEY, "psched", "last ms"): [mine]}) == (mine, reached)


def test_a_goal_against_an_unmeasured_peer_is_neither_reached_nor_missed() -> None:
    goal = Goal(*KEY, "tasks/s", at_least=8, against="huey")
    assert goal.reached({(*KEY, "psched", "tasks/s"): [1.0]}) is None


def test_a_goal_may_be_about_what_another_workload_found() -> None:
    goal = Goal("stored", "sqlite", "alone p50 ms", at_most=1.25, against="psched", of=("due-alone", "p50 ms"))
    rounds = {
        ("stored", "sqlite", "psched", "alone p50 ms"): [3.0],
        ("due-alone", "sqlite", "psched", "p50 ms"): [2.0],
    }
    assert goal.reached(rounds) == (1.5, False)
    assert goal.words == "≤ 1.25 × psched in due-alone"


def test_a_bound_is_shown_beside_the_ratio_that_it_was_where_it_was_set(monkeypatch: pytest.MonkeyPatch) -> None:
    goal = Goal(*KEY, "tasks/s", at_least=100_000, meant=((0.92, "floor 1/1"), (17, "huey")))
    monkeypatch.setattr(markdown, "GOALS", [goal])
    record = BenchmarkRecord()
    for contender, rate in (("psched", 40_000.0), ("floor 1/1", 40_000.0), ("huey", 4_000.0)):
        record.add(*KEY, contender, {"tasks/s": rate})
    lines = list(markdown.tables(record, WORKLOADS))
    assert lines[-1] == (
        "| functions, tasks/s | SQLite | ≥ 100,000 | 40,000 | **no**"
        " | ≥ 0.92 × floor 1/1; ≥ 17 × huey | 1; 10 | yes; **no** |"
    )
    assert [replace(each, against=None) for each in goal.ratios()] == [
        Goal(*KEY, "tasks/s", at_least=0.92),
        Goal(*KEY, "tasks/s", at_least=17),
    ]


def test_the_report_shows_median_and_range() -> None:
    record = BenchmarkRecord()
    for value in (3.0, 1.0, 2.0):
        record.add(*KEY, "psched", {"tasks/s": value})
    assert "| psched, tasks/s | 2 (1 – 3) |" in markdown.tables(record, WORKLOADS)


def test_results_of_several_runs_are_one_report(tmp_path: Path) -> None:
    files = []
    for value in (1.0, 3.0, 5.0):
        record = BenchmarkRecord()
        record.add(*KEY, "psched", {"tasks/s": value}, seconds=10)
        files.append(tmp_path / f"{value}.json")
        files[-1].write_text(json.dumps(record.as_json()))
    both, shown = tmp_path / "both.json", tmp_path / "both.md"
    assert main([*(f"--read={file}" for file in files), f"--json={both}", f"--markdown={shown}"]) == 0
    found = json.loads(both.read_text())
    assert found["results"][0]["values"] == [1.0, 3.0, 5.0]
    assert found["seconds"] == {"functions": 30}
    assert "| psched, tasks/s | 3 (1 – 5) |" in shown.read_text()


def test_what_several_processes_count_and_measure_is_read_while_they_live(tmp_path: Path) -> None:
    mine = Tally(tmp_path)
    mine.count()
    mine.sample(0.25)
    mine.sample(0.5)
    program = (
        "import pathlib, sys; from benchmarks.shared_counter import Tally; tally = Tally(pathlib.Path(sys.argv[1]));"
        "tally.sample(0.75); tally.count(); tally.count()"
    )
    subprocess.run([sys.executable, "-c", program, tmp_path], check=True, cwd=Path(__file__).parents[2])
    assert sorted(read_samples(tmp_path)) == [0.25, 0.5, 0.75]
    counted = read_tally(tmp_path)
    assert counted.done == 3
    assert counted.first < counted.last


def test_only_its_like_is_measured_beside_psched_and_only_where_all_wait() -> None:
    stores = ("sqlite", "redis")
    contenders = (
        Contender("psched", lambda *_: {}, stores),
        Contender("floor", lambda *_: {}, ("redis",)),
        Contender("huey", lambda *_: {}, stores, peer=True),
        Contender("Celery", lambda *_: {}, ("redis",), peer=True),
    )
    waiting, busy = (Workload(name, "", contenders, side_by_side=name == "waiting") for name in ("waiting", "busy"))
    wanted = [
        Measurement(workload, store, contender)
        for workload in (waiting, busy)
        for store in stores
        for contender in contenders
        if store in contender.stores
    ]
    groups = [[each.contender.name for each in group] for group in in_groups(wanted, apart=False)]
    assert groups[:3] == [["psched", "psched"], ["huey", "huey", "Celery"], ["floor"]]
    assert [len(group) for group in groups[3:]] == [1] * 6
    assert [len(group) for group in in_groups(wanted, apart=True)] == [1] * 12


def test_what_fails_is_reported_and_does_not_stop_the_rest(tmp_path: Path) -> None:
    def fail(place: Place, scale: Scale) -> dict[str, float]:
        raise RuntimeError("no such luck")

    contenders = (Contender("psched", fail, ("sqlite",)), Contender("floor", lambda *_: {"tasks/s": 1.0}, ("sqlite",)))
    workload = Workload("functions", "", contenders)
    record = BenchmarkRecord()
    with Lab() as lab:
        for contender in contenders:
            group = [Measurement(workload, "sqlite", contender)]
            measure(Grounds(lab, tmp_path), record, group, Scale(quick=True))
    assert record.failures == ["functions, sqlite, psched: RuntimeError: no such luck"]
    assert record.rounds() == {(*KEY, "floor", "tasks/s"): [1.0]}


def test_pauses_cover_an_interval_of_polling_evenly() -> None:
    places = sorted(pause - 0.5 for pause in pauses(13))
    gaps = [after - before for before, after in zip([0.0, *places], [*places, 1.0], strict=True)]
    assert max(gaps) < 2 / 13


def test_processor_time_is_what_the_system_tells_and_finer_and_has_that_of_ended_threads() -> None:
    this = psutil.Process(os.getpid())
    before = processor_time([this])
    assert sys.platform != "linux" or 0 < processor_time([this]) - before < 0.01
    thread = threading.Thread(target=_use_a_tenth_of_a_second)
    thread.start()
    thread.join()
    assert processor_time([this]) - before >= 0.1
    assert processor_time([this]) == pytest.approx(sum(this.cpu_times()[:2]), abs=0.03)


def _use_a_tenth_of_a_second() -> None:
    while time.thread_time() < 0.12:
        pass
