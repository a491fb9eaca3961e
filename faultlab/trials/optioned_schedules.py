"""Schedules whose options a seed draws, and the checker of their ledger. Runs in the test process.

The checker implements the rules of the options itself, and uses none of psched's code for them.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

WEEKDAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
CALENDAR = "trial-today"
"""The name of a calendar that contains today and tomorrow."""
OTHER_CALENDAR = "trial-another-day"
_ROUNDED = 0.05
"""Seconds by which the clocks of two processes may seem to differ, because their times are rounded."""


@dataclass(frozen=True)
class Optioned:
    """A drawn schedule: an occurrence every `seconds`, from `first` (unix seconds) on.

    `offset`: how many seconds after its occurrence a run begins.
    """

    options: Mapping[str, Any]
    data: Mapping[str, Any]
    seconds: int
    first: int = 0
    offset: float = 0.0


@dataclass(frozen=True)
class Settled:
    """One entry of the ledger. All times are unix seconds."""

    key: str
    occurrence: int
    last: int
    outcome: str
    detail: str | None
    started: float | None
    ended: float


@dataclass(frozen=True)
class Changed:
    """One recorded change of a definition. `at`: unix seconds."""

    key: str
    at: float
    action: str


def draw(seed: int | str, number: int = 8) -> dict[str, Optioned]:
    """Return `number` schedules by key. Their runs are so short that they catch up after the last fault."""
    return {f"drawn-{each}": _draw(random.Random(f"{seed}/options/{each}")) for each in range(number)}


def _draw(dice: random.Random) -> Optioned:
    seconds = dice.choice([1, 2, 3, 5])
    options: dict[str, Any] = {
        "overlap": dice.choice(["wait", "skip", "skip"]),
        "catch_up": dice.choice(["all", "all", "latest", "none"]),
        "max_lateness": dice.choice([None, None, 4.0]),
        "max_attempts": dice.choice([1, 2]),
        "retry_wait": dice.choice([0.3, {"first": 0.2, "limit": 1.0}]),
        "pause_after": dice.choice([None, 1, 2, 3]),
        "spread": dice.choice([0, 0, 2.5]),
        "max_runs": dice.choice([None, None, None, 40]),
        "timeout": dice.choice([None, None, 1.0]),
        "exclude": dice.choice([[], [], [OTHER_CALENDAR], [OTHER_CALENDAR, CALENDAR]]),
    }
    is_long = options["overlap"] == "skip" and dice.random() < 0.5
    work = seconds * (dice.uniform(0.4, 1.5) if is_long else 0.05)
    return Optioned(options, {"seconds": round(work, 2), "fails": dice.choice([0, 3, 6])}, seconds)


def calendars(now: float) -> dict[str, list[str]]:
    """Return the days of each calendar that schedules may exclude."""
    today = datetime.fromtimestamp(now, UTC)
    days = [(today + timedelta(days=after)).date().isoformat() for after in (0, 1)]
    return {CALENDAR: days, OTHER_CALENDAR: [WEEKDAYS[(today.weekday() + 3) % 7], "2020-01-01"]}


def faults_of(
    schedules: Mapping[str, Optioned], entries: Sequence[Settled], changes: Sequence[Changed]
) -> Iterator[tuple[str, str]]:
    """Yield the key and the evidence of each broken rule."""
    for key, schedule in schedules.items():
        own = sorted((entry for entry in entries if entry.key == key), key=lambda entry: entry.occurrence)
        options = schedule.options
        if CALENDAR in options["exclude"]:
            yield from ((key, f"{entry.occurrence} is on a day that is excluded") for entry in own)
            continue
        found = [
            *_gaps(schedule, own),
            *_early(schedule, own),
            *_skips(schedule, own),
            *_runs(schedule, own),
            *_pauses(schedule, own, [change for change in changes if change.key == key]),
        ]
        yield from ((key, what) for what in found)


def _ran(entries: Sequence[Settled]) -> list[Settled]:
    return [entry for entry in entries if entry.outcome != "skipped"]


def _gaps(schedule: Optioned, entries: Sequence[Settled]) -> Iterator[str]:
    if entries and entries[0].occurrence != schedule.first:
        yield f"it began with {entries[0].occurrence} instead of {schedule.first}"
    for before, entry in pairwise(entries):
        if entry.occurrence != before.last + schedule.seconds:
            yield f"{entry.occurrence} follows {before.last} in the ledger"
    yield from (
        f"{entry.last} is no occurrence" for entry in entries if (entry.last - schedule.first) % schedule.seconds
    )


def _early(schedule: Optioned, entries: Sequence[Settled]) -> Iterator[str]:
    if not 0 <= schedule.offset <= schedule.options["spread"]:
        yield f"its offset is {schedule.offset}"
    for entry in entries:
        if entry.started is not None and entry.started < entry.occurrence + schedule.offset - _ROUNDED:
            yield f"{entry.occurrence} began before its offset of {schedule.offset} s, at {entry.started:.3f}"


def _skips(schedule: Optioned, entries: Sequence[Settled]) -> Iterator[str]:
    options = schedule.options
    before: Settled | None = None
    for entry in entries:
        why = entry.detail if entry.outcome == "skipped" else None
        ended = None if before is None else before.ended
        if why == "overlap" and (options["overlap"] == "wait" or ended is None or entry.last + schedule.offset > ended):
            yield f"{entry.occurrence} to {entry.last} are skipped, but the previous run ended at {ended}"
        if entry.outcome != "skipped":
            comes_due = entry.occurrence + schedule.offset
            if options["overlap"] == "skip" and ended is not None and comes_due < ended - _ROUNDED:
                yield f"{entry.occurrence} ran, but the previous run ended only at {ended:.3f}"
            before = entry
        if why == "superseded" and options["catch_up"] == "all":
            yield f"{entry.occurrence} is superseded with catch_up: all"
        if why == "late":
            bound = options["max_lateness"] or (60 if options["catch_up"] == "none" else None)
            if bound is None or entry.ended - entry.last - schedule.offset < bound:
                yield f"{entry.last} is skipped as late at {entry.ended:.3f}"
        if why not in (None, "overlap", "superseded", "late", "paused"):
            yield f"{entry.occurrence} is skipped: {why}"


def _runs(schedule: Optioned, entries: Sequence[Settled]) -> Iterator[str]:
    most, ran = schedule.options["max_runs"], _ran(entries)
    if most is not None and (len(ran) > most or (len(ran) == most and entries[-1] is not ran[-1])):
        yield f"{len(ran)} runs and {len(entries)} entries, but max_runs is {most}"


def _pauses(schedule: Optioned, entries: Sequence[Settled], changes: Sequence[Changed]) -> Iterator[str]:
    """Find runs after `pause_after` failures in a row without a `resume`, and pauses without so many failures.

    Entries after `modify` are ignored, because at the end of a trial it removes `pause_after`.
    """
    most, row, reached = schedule.options["pause_after"], 0, 0
    freed = [change.at for change in changes if change.action == "resume"]
    end = min((change.at for change in changes if change.action == "modify"), default=math.inf)
    last = 0.0
    for entry in _ran(entries):
        started = entry.ended if entry.started is None else entry.started
        if started > end - _ROUNDED:
            break
        if any(last - _ROUNDED <= at <= started + _ROUNDED for at in freed):
            row = 0
        elif most is not None and row >= most:
            yield f"{entry.occurrence} began at {started:.3f}, after {row} failures in a row"
        row = row + 1 if entry.outcome == "failed" else 0
        reached += most is not None and row >= most
        last = entry.ended
    times = sum(change.action == "pause-after" for change in changes)
    if times > reached:
        yield f"it was paused {times} times, but reached its limit of failures only {reached} times"
