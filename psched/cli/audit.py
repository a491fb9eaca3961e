"""psched audit: proves from the ledger that what should have run did."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import click

from psched.audit import Verdict, Violation
from psched.cli.history import When
from psched.cli.moments import Moment
from psched.cli.options import Chosen, common_options
from psched.cli.rows import json_lines, local_iso, local_time, printable, write
from psched.cli.session import opened
from psched.errors import NotFoundError


@click.command()
@click.argument("keys", nargs=-1, metavar="[KEY]...")
@click.option("--from", "since", type=Moment(), required=True, metavar="WHEN", help="First time to judge.")
@click.option("--to", "until", type=Moment(), metavar="WHEN", help="Last time to judge (default: now).")
@click.option("--late", type=float, metavar="SEC", help="A run that begins later after its time is a violation, too.")
@common_options()
def audit(chosen: Chosen, keys: tuple[str, ...], since: When, until: When | None, late: float | None) -> int:
    """Prove that what should have run did.

    What each schedule's cron expression, zone and every change of it ask for is held against the ledger; an occurrence
    that is missing, extra or overlapping is listed, one that is not finished a minute (or --late) after its time, and
    one of which the ledger cannot tell any more. Exit code 1 on any of them; 0 with a line of proof for each schedule.
    What was skipped on purpose, by a policy or a pause, is on record with its reason and no violation. Without KEY, all
    schedules on record, also those that were deleted. WHEN is unix seconds, a date, or a span like 2d (ago).

    --json prints one array of objects with key, proved, ran, skipped, missing, first, last (unix seconds), reasons (why
    something was skipped), violations (kind, time, time_local, last, count and what), and notes (time and what).
    """
    proved = []
    with opened(chosen) as schedules:
        now = schedules.store.now()
        span = int(-(-since(now) // 1)), int((now if until is None else until(now)) // 1)
        verdicts = schedules.audit(*span, late=late, keys=keys or None)

        def judged() -> Iterator[Verdict]:
            for verdict in verdicts:
                if verdict.key in keys and not schedules.ledger.changes(verdict.key):
                    raise NotFoundError(f"no schedule has or had the key {verdict.key!r}")
                proved.append(not verdict.violations)
                yield verdict

        if chosen.json:
            write(json_lines(map(verdict_object, judged())))
        else:
            for verdict in judged():
                write(_lines(verdict))
                sys.stdout.flush()
        if not proved:
            raise NotFoundError("no schedule is on record, so nothing is proved")
    return 0 if all(proved) else 1


def verdict_object(verdict: Verdict) -> dict[str, Any]:
    """Return what `--json` shows of a verdict. Names and meanings stay as they are in later versions."""
    return {
        "key": verdict.key,
        "proved": not verdict.violations,
        "ran": verdict.ran,
        "skipped": verdict.skipped,
        "missing": verdict.missing,
        "first": verdict.first,
        "last": verdict.last,
        "reasons": sorted(verdict.reasons),
        "violations": [_violation_object(found) for found in verdict.violations],
        "notes": [{"what": what, "time": time} for what, time in verdict.notes],
    }


def _violation_object(found: Violation) -> dict[str, Any]:
    return {
        "kind": found.kind,
        "time": found.time,
        "time_local": local_iso(found.time),
        "last": found.last,
        "count": found.count,
        "what": found.what,
    }


def _lines(verdict: Verdict) -> Iterator[str]:
    key = printable(verdict.key)
    for found in verdict.violations:
        several = "" if found.last is None else f" … {local_time(found.last)}"
        count = "" if found.count == 1 or found.last is None else f" ({found.count or 'very many'})"
        yield f"{key}: {found.kind} {local_time(found.time)}{several}{count}: {printable(found.what)}"
    yield f"{key}: {_summary(verdict)}"
    for what, time in verdict.notes:
        yield f"{key}: note: {what} {local_time(int(time))}"


def _summary(verdict: Verdict) -> str:
    total = verdict.ran + verdict.skipped + verdict.missing
    if not total:
        return "NOT PROVED" if verdict.violations else "nothing was to be run"
    parts = [f"{verdict.ran} of {total} occurrences ran"]
    if verdict.skipped:
        more = "more than " if verdict.more_skipped else ""
        parts.append(f"{more}{verdict.skipped} were skipped ({', '.join(sorted(verdict.reasons))})")
    if verdict.first is not None and verdict.last is not None:
        parts.append(f"{local_time(verdict.first)} … {local_time(verdict.last)}")
    if verdict.violations:
        parts.append(f"NOT PROVED: {len(verdict.violations)} violations")
    return ", ".join(parts)
