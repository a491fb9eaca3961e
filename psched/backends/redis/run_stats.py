"""Statistics of runs on Redis: a hash for each minute and each hour. Redis expires these hashes."""

from __future__ import annotations

import json
import math
import secrets
from collections.abc import Callable, Sequence
from typing import Any

from psched.backends.redis.client import Argument
from psched.store.run_stats import (
    HOUR,
    MINUTE,
    MINUTES_KEPT,
    RunKind,
    RunSums,
    RunTotals,
    StatsWindow,
    hours_of,
)

_SPANS = 60
"""The maximum number of minutes or hours that one script reads."""


class RedisRunStats:
    """`RunStats` of one table. `run`: runs a script that is safe to run twice."""

    def __init__(self, run: Callable[..., Any]) -> None:
        self._run = run

    def add(self, node: str, counted: Sequence[tuple[RunKind, Sequence[int]]], retention: float) -> None:
        if not counted:
            return
        kept = {MINUTE: math.ceil(min(MINUTES_KEPT, retention)), HOUR: math.ceil(retention)}
        rows = [(MINUTE, kind, numbers) for kind, numbers in counted]
        rows += [(HOUR, kind, numbers) for kind, numbers in hours_of(counted)]
        given: list[Argument] = [secrets.randbits(62)]
        for span, kind, numbers in rows:
            field = json.dumps([node, kind.type, kind.outcome], ensure_ascii=False)
            given += [span, kind.minute, kept[span], field, " ".join(map(str, numbers))]
        self._run("add_stats", *given)

    def totals(self, window: StatsWindow, by_time: bool = False, durations: bool = True) -> list[RunTotals]:
        found: dict[tuple[int, str, str], RunSums] = {}  # keys: time or 0, type or "", and outcome
        times = range(window.begin, window.end, window.span)
        for first in range(0, len(times), _SPANS):
            for time, fields in self._run("read_stats", window.span, *times[first : first + _SPANS]):
                for field, value in zip(fields[::2], fields[1::2], strict=True):
                    _, type_, outcome = json.loads(field)
                    if window.type in (None, type_):
                        place = (int(time), "", outcome) if by_time else (0, type_, outcome)
                        found.setdefault(place, RunSums()).add([int(number) for number in value.split()[1:]])
        return [
            RunTotals(time if by_time else None, None if by_time else type_, outcome, sums)
            for (time, type_, outcome), sums in sorted(found.items())
        ]

    def purge(self, retention: float, limit: int) -> bool:
        return False  # the hashes expire by themselves
