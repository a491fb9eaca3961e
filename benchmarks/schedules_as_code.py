"""Measures `psched plan` and `psched apply` with a file of 10,000 schedules, and `psched simulate` over a year.

Each command is a process of its own. The time of a command includes the start of its process.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from benchmarks.databases import Place
from benchmarks.worker import BenchmarkWorker, CommandTimes
from benchmarks.workload import Contender, Scale, Workload
from psched.model import NewSchedule

_SCHEDULES = 10_000
_ZONES = ("Europe/Berlin", "America/New_York", "Asia/Tokyo", "Australia/Sydney", "UTC")
_CHANGES = 3
"""The exit code of a plan with changes."""
_HOURLY, _DAILY = 195, 805
"""How many schedules run every hour, and how many every day. Together they have 2 million occurrences in a year."""


def plan_and_apply(place: Place, scale: Scale) -> Mapping[str, float]:
    """Return the seconds of `plan` and `apply`: for a new file, without a change, for edits, and for an empty file.

    `apply` reads the file that `plan` has written. (`psched apply FILE` makes the plan itself.)
    """
    worker = BenchmarkWorker(place)
    file, plan = place.folder / "schedules.yml", place.folder / "plan.json"
    count = scale.count(_SCHEDULES)
    found: dict[str, float] = {}

    def plan_then_apply(what: str, *options: str) -> None:
        command = ("plan", str(file), *options, "--out", str(plan))
        found.update(_named(f"plan {what}", worker.timed(*command, code=_CHANGES)))
        changes = len(json.loads(plan.read_text())["changes"])
        if changes != count:
            raise RuntimeError(f"plan {what}: {changes} changes instead of {count}")
        found.update(_named(f"apply {what}", worker.timed("apply", "--plan", str(plan))))

    _write(file, count, shift=0)
    plan_then_apply("additions")
    found.update(_named("plan no change", worker.timed("plan", str(file))))
    _write(file, count, shift=1)
    plan_then_apply("edits")
    _write(file, 0, shift=0)
    plan_then_apply("deletions", "--prune")
    return found


def simulate_year(place: Place, scale: Scale) -> Mapping[str, float]:
    """Return the seconds of the simulation of a year with a day without workers."""
    worker = BenchmarkWorker(place)
    rules = [f"{n % 60} * * * *" if n < _HOURLY else f"{n % 60} {n % 24} * * *" for n in range(_HOURLY + _DAILY)]
    with worker.schedules() as schedules:
        schedules.add_many(NewSchedule(f"schedule-{n:04}", "report", rule) for n, rule in enumerate(rules))
    days = scale.count(365)
    options = ("--workers", "20", "--handler-time", "30", "--from", "now", "--outage", "+1d..+1d", "--to", f"+{days}d")
    return dict(_named("year", worker.timed("simulate", *options)))


def _named(what: str, times: CommandTimes) -> Mapping[str, float]:
    return {f"{what} s": times.seconds, f"{what} CPU s": times.processor}


def _write(file: Path, count: int, shift: int) -> None:
    """Write a file of schedules in five time zones.

    One in ten runs every 15 (+ `shift`) minutes, the others once a day.
    """
    lines = ["owner: bench", "schedules:" if count else "schedules: {}"]
    for n in range(count):
        daily = f"cron: '{n % 60} {(n // 60 + shift) % 24} * * *', timezone: {_ZONES[n % 5]}"
        when = f"every: {15 + shift}m" if n % 10 == 0 else daily
        lines.append(f"  schedule-{n:06}: {{type: report, {when}, data: {{account: {n}}}, tags: [nightly]}}")
    file.write_text("\n".join(lines) + "\n")


WORKLOADS = (
    Workload(
        "plan-apply",
        f"psched plan and psched apply with a file of {_SCHEDULES:,} schedules",
        (Contender("psched", plan_and_apply, setting="each command is a process"),),
    ),
    Workload(
        "simulate",
        "psched simulate: a year of 2 million occurrences, on SQLite",
        (Contender("psched", simulate_year, ("sqlite",), setting="a process"),),
    ),
)
