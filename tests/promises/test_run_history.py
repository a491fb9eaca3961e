"""The checker of run histories names each kind of violation, and finds none in correct histories."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from tests.promises.run_history import Run, judge, read_runs

FIRST = Run("a", 100, pid=1, begin=1000.0, end=1001.0, outcome="finished", fence=7)
SECOND = Run("a", 160, pid=2, begin=1002.0, end=1003.0, outcome="finished", fence=8)
AGAIN = replace(FIRST, pid=2, begin=1004.0, end=1005.0, fence=8)
CUT = replace(FIRST, end=None, outcome=None)
REQUIRED = {"a": [100, 160]}


def test_a_good_history_has_no_fault() -> None:
    assert judge([FIRST, SECOND], REQUIRED) == []


@pytest.mark.parametrize(
    ("runs", "fault"),
    [
        ([], "nothing was run"),
        ([FIRST], "160 was lost"),
        ([FIRST, replace(SECOND, end=None)], "160 was lost"),
        ([FIRST, replace(SECOND, key="b")], "b: nobody asked"),
        ([FIRST, replace(FIRST, occurrence=130, begin=1001.5, end=1001.6, fence=8), SECOND], "130 is no occurrence"),
        ([FIRST, replace(SECOND, begin=1000.9)], "before it was over in 1"),
        ([replace(FIRST, end=1009.0), SECOND, replace(SECOND, occurrence=220, begin=1008.0)], "before it was over"),
        ([replace(SECOND, begin=999, end=999.5), FIRST], "100 was run after 160"),
        ([FIRST, replace(SECOND, fence=7)], "the fence 7 came after 7"),
        ([FIRST, AGAIN], "run again after it was finished in 1"),
        ([replace(FIRST, outcome="PreemptedError"), AGAIN], "run again after it was PreemptedError"),
        ([CUT, AGAIN], "run again after it was not settled"),
        ([CUT, AGAIN], "before it was over"),
        ([FIRST, replace(SECOND, occurrence=9_999_999_999)], "s early"),
    ],
)
def test_a_bad_history_has_this_fault(runs: Sequence[Run], fault: str) -> None:
    assert fault in "\n".join(judge(runs, REQUIRED))


def test_nothing_to_be_run_is_no_good_history() -> None:
    assert judge([], {"a": []})


def test_a_declared_death_excuses_what_it_cut_off() -> None:
    assert judge([CUT, AGAIN], {"a": [100]}, {1: 1003.0}) == []


def test_a_declared_death_excuses_no_run_before_it() -> None:
    assert "before it was over" in "\n".join(judge([CUT, AGAIN], {"a": [100]}, {1: 1004.5}))


def test_a_declared_death_excuses_nobody_else() -> None:
    assert judge([CUT, AGAIN], {"a": [100]}, {2: 1003.0})


def test_nothing_excuses_a_second_run_after_the_first_was_finished() -> None:
    assert judge([FIRST, AGAIN], {"a": [100]}, {1: 1003.0})


def test_the_records_of_interleaved_runs_are_distinguished(tmp_path: Path) -> None:
    records = tmp_path / "records"
    begin = '{"run": "%s", "event": "begin", "key": "%s", "occurrence": 5, "pid": 1, "master": 2, "fence": 3, "at": %d}'
    lines = [
        begin % ("x", "a", 11),
        begin % ("y", "b", 10),
        '{"run": "x", "event": "end", "at": 12}',
        '{"run": "x", "event": "settled", "outcome": "finished", "at": 13}',
    ]
    records.write_text("\n".join(lines) + "\n")
    assert read_runs(records) == [
        Run("b", 5, 1, 10, master=2, fence=3),
        Run("a", 5, 1, 11, end=12, outcome="finished", master=2, fence=3),
    ]
