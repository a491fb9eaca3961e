"""psched audit: proves from the ledger that every occurrence ran."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import click

from psched.cli.formatting import Fields, json_lines, printable, with_local_times, write
from psched.cli.opened_sections import opened
from psched.cli.option_types import MOMENT, When, seconds
from psched.cli.options import Chosen, common_options
from psched.cli.progress_bar import with_progress
from psched.errors import NotFoundError
from psched.schedules.audit_result import Verdict, Why, as_object
from psched.time_text import local_time


@click.command()
@click.argument("keys", nargs=-1, metavar="[KEY]...")
@click.option("--from", "since", type=MOMENT, required=True, help="Audit occurrences from this time on.")
@click.option("--to", "until", type=MOMENT, help="Audit occurrences up to this time (default: now).")
@click.option("--late", type=seconds(), help="Also report runs that start more than SEC seconds after their time.")
@common_options()
def audit(chosen: Chosen, keys: tuple[str, ...], since: When, until: When | None, late: float | None) -> int:
    """Prove from the ledger that every occurrence ran.

    An occurrence is expected at each time that the rule in force at that time defines. It must be finished, running
    now, or skipped for a reason that the schedule's options or a pause permit. Violations are occurrences that are
    missing, failed (given up), doubled (ended twice), early, extra (expected by no rule), unpermitted (skipped for a
    reason that is not permitted), late (with --late), overlapping, or unknown (the ledger no longer covers them).

    An occurrence is also missing while it waits for another run of its schedule to end. The line about such an
    occurrence names that run, and the run's failed attempts, last error and next attempt. An occurrence that neither
    runs nor has ended is pending for 10 s after its time, or for twice poll_interval if that is longer. With --late, it
    is pending for SEC seconds after its time. A pending occurrence is no violation.

    Without KEY, all schedules are audited, including deleted schedules. WHEN is unix seconds, a date, or a span such as
    2d (ago). Without violations, the command prints a line of proof for each schedule, and the exit code is 0. With a
    violation the exit code is 1.

    --json prints one array of objects with key, proved, numbers of occurrences (expected, ran, extra_runs by run-now,
    backfilled, skipped, running, pending, failed and missing), first and last (unix seconds or null), reasons (of
    skipped occurrences), violations, unlisted (the number of further violations) and notes (time and what). Each
    violation has kind, time, time_local, last, count, what, behind (the time of the run that the occurrence waits for)
    and next_attempt (when that run, or else the occurrence itself, is retried; both unix seconds or null).
    """
    proved = []
    with opened(chosen) as schedules:
        now = schedules.store.now()
        first, last = since(now), now if until is None else until(now)
        if last < first:
            raise click.UsageError(f"--to{' (now)' if until is None else ''} is before --from")
        span = int(-(-first // 1)), int(last // 1)
        verdicts = schedules.audit(*span, late=late, keys=keys or None)

        def judged() -> Iterator[Verdict]:
            for verdict in with_progress(verdicts, "schedules audited", len(keys) or None):
                if not verdict.known and verdict.key in keys:
                    raise NotFoundError(f"no schedule has or had the key {verdict.key!r}")
                proved.append(not verdict.violations)
                yield verdict

        if chosen.json:
            write(json_lines(map(_object, judged())))
        else:
            for verdict in judged():
                write(_lines(verdict))
                sys.stdout.flush()
        if not proved:
            raise NotFoundError("the ledger has no schedules, so nothing is proved")
    return 0 if all(proved) else 1


def _object(verdict: Verdict) -> Fields:
    fields = as_object(verdict)
    return fields | {"violations": [with_local_times(found, ("time",)) for found in fields["violations"]]}


def _lines(verdict: Verdict) -> Iterator[str]:
    key = printable(verdict.key)
    for found in verdict.violations:
        several = "" if found.last is None else f" … {local_time(found.last)}"
        count = f" ({found.count})" if found.count > 1 else ""
        why = f"{printable(found.what)}{_waiting_for(found.why)}"
        yield f"{key}: {found.kind} {local_time(found.time)}{several}{count}: {why}"
    if verdict.unlisted:
        yield f"{key}: and {verdict.unlisted} more"
    yield f"{key}: {_summary(verdict)}"
    for what, time in verdict.notes:
        yield f"{key}: note: {what} {local_time(int(time))}"


def _waiting_for(why: Why) -> str:
    parts = [] if why.behind is None else [f"the run of {local_time(why.behind)}"]
    parts += [] if why.next_attempt is None else [f"the next attempt is due {local_time(int(why.next_attempt))}"]
    return f" ({'; '.join(parts)})" if parts else ""


def _summary(verdict: Verdict) -> str:
    if not verdict.expected and not verdict.violations:
        return "no occurrence was expected"
    by = {"run-now": verdict.extra_runs, "backfills": verdict.backfilled}
    whose = " and ".join(f"{count} of them by {name}" for name, count in by.items() if count)
    parts = [f"{verdict.ran} of {verdict.expected} occurrences ran" + (f" ({whose})" if whose else "")]
    if verdict.skipped:
        parts.append(f"{verdict.skipped} skipped ({', '.join(sorted(verdict.reasons))})")
    if verdict.running:
        parts.append(f"{verdict.running} is running")
    if verdict.pending:
        parts.append(f"{verdict.pending} pending")
    if verdict.first is not None and verdict.last is not None:
        parts.append(f"{local_time(verdict.first)} … {local_time(verdict.last)}")
    if verdict.violations:
        kinds = ", ".join(f"{count} {kind}" for kind, count in verdict.counts.items() if count)
        parts.append(f"NOT PROVED: {kinds}" if kinds else "NOT PROVED")
    return ", ".join(parts)
