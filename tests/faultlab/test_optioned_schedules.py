"""The checker of schedules with drawn options names each broken rule, and accuses no history that keeps all rules."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from faultlab.trials.optioned_schedules import CALENDAR, Changed, Optioned, Settled, draw, faults_of

OPTIONS: Mapping[str, Any] = {
    "overlap": "skip",
    "catch_up": "all",
    "max_lateness": 10,
    "max_attempts": 1,
    "pause_after": 2,
    "spread": 3,
    "max_runs": 5,
    "exclude": [],
}


def entry(time: int, outcome: str = "finished", detail: str | None = None, last: int = 0, late: float = 1) -> Settled:
    """Return the entry of an occurrence that began 2.5 s after `time` (an offset of 2 s, and 0.5 s).

    `late`: the seconds from its beginning until it was settled.
    """
    started = time + 2.5
    return Settled("a", time, last or time, outcome, detail, None if detail else started, started + late)


def broken(entries: Sequence[Settled], *changes: Changed, **options: Any) -> list[str]:
    schedule = Optioned({**OPTIONS, **options}, {}, 5, 100, 2)
    return [what for _, what in faults_of({"a": schedule}, entries, changes)]


LONG = entry(100, late=10)
FAILED = [entry(100, "failed"), entry(105, "failed")]
PAUSE, RESUME = Changed("a", 109, "pause-after"), Changed("a", 120, "resume")


@pytest.mark.parametrize(
    ("entries", "changes", "options"),
    [
        ([entry(100), entry(105)], (), {}),
        ([LONG, entry(105, "skipped", "overlap", 110), entry(115)], (), {}),
        ([*FAILED, entry(110, "skipped", "paused", 115), entry(120)], (PAUSE, RESUME), {}),
        ([entry(time) for time in range(100, 125, 5)], (), {}),
        ([entry(100, "skipped", "late", late=11)], (), {}),
        ([], (), {"exclude": [CALENDAR]}),
    ],
)
def test_a_good_history_is_not_accused(
    entries: Sequence[Settled], changes: Sequence[Changed], options: Mapping[str, Any]
) -> None:
    assert broken(entries, *changes, **options) == []


@pytest.mark.parametrize(
    ("entries", "changes", "options", "what"),
    [
        ([entry(100), entry(110)], (), {}, "110 follows 100 in the ledger"),
        ([entry(105)], (), {}, "it began with 105 instead of 100"),
        ([entry(100), entry(105, "skipped", "overlap")], (), {}, "105 to 105 are skipped, but the previous run"),
        ([LONG, entry(105, "skipped", "overlap", 115)], (), {}, "105 to 115 are skipped, but the previous run"),
        ([LONG, entry(105)], (), {}, "105 ran, but the previous run ended only at 112.5"),
        ([LONG, entry(105, "skipped", "overlap")], (), {"overlap": "wait"}, "105 to 105 are skipped"),
        ([entry(100, "skipped", "superseded")], (), {}, "100 is superseded with catch_up: all"),
        ([entry(100, "skipped", "late")], (), {}, "100 is skipped as late at"),
        ([*FAILED, entry(110)], (), {}, "110 began at 112.500, after 2 failures in a row"),
        ([entry(100)], (PAUSE,), {}, "it was paused 1 times, but reached its limit of failures only 0 times"),
        ([entry(time) for time in range(100, 130, 5)], (), {}, "6 runs and 6 entries, but max_runs is 5"),
        ([entry(100)], (), {"spread": 1}, "its offset is 2"),
        ([entry(100)], (), {"exclude": [CALENDAR]}, "100 is on a day that is excluded"),
    ],
)
def test_each_broken_rule_is_named(
    entries: Sequence[Settled], changes: Sequence[Changed], options: Mapping[str, Any], what: str
) -> None:
    found = broken(entries, *changes, **options)
    assert any(each.startswith(what) for each in found), found


def test_the_seed_alone_decides_the_options() -> None:
    assert draw(7) == draw(7) != draw(8)
