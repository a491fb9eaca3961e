"""psched explain: describes a cron expression in words, and says why it is due or not due on a date."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, date, datetime
from typing import Any

import click

from psched import cron as crons
from psched.cli.completion import completed_keys
from psched.cli.formatting import json_lines, printable, with_local_times, write
from psched.cli.opened_sections import opened
from psched.cli.option_types import WALL_DATE
from psched.cli.options import Chosen, check_cron_or_key, common_options, dialect_and_zone
from psched.cron.explanation import DateVerdict, day_in, in_words, why
from psched.cron.zones import load_zone
from psched.errors import NotFoundError
from psched.model import Policy, Rule, ScheduleRow
from psched.schedules import rule_occurrences
from psched.schedules.collection import ScheduleCollection
from psched.schedules.skip_policy import overlap_note
from psched.store.ledger import Change, LedgerRow

_MOST = 10
"""The maximum number of occurrences that are shown for one date."""


@click.command()
@click.argument("cron", required=False)
@click.option(
    "-k",
    "--key",
    shell_complete=completed_keys("schedules"),
    help="Explain the rule of this schedule. With --at, also show how its occurrences ended.",
)
@click.option("-t", "--timezone", metavar="ZONE", help="Zone of the expression (default: the configuration's, or UTC).")
@click.option(
    "--at",
    type=WALL_DATE,
    help="Date or time to explain, in the zone of the schedule or expression: 2027-03-29 or 2027-03-29T02:30.",
)
@common_options()
def explain(chosen: Chosen, cron: str | None, key: str | None, timezone: str | None, at: date | None) -> None:
    """Describe in words when a cron expression is due.

    With --at, also say whether the expression is due on that date (or at that time) and why, and list its occurrences
    on that date. Without --key no configuration is needed. With --key and --at, the command explains the rule that was
    in force on that date.

    --json prints an object with cron, timezone and words; with --at also matches, reasons and occurrences (time, local,
    utc, note); with --key and --at also runs (scheduled_time, outcome, detail, started, ended).
    """
    check_cron_or_key(cron, key, timezone)
    if cron is not None:
        dialect, zone = dialect_and_zone(chosen, timezone)
        _show(chosen, Rule(cron, zone), dialect, at)
        return
    with opened(chosen) as schedules:
        rule, policy, runs = _definition_and_runs(schedules, str(key), at)
        _show(chosen, rule, schedules.cron_dialect, at, policy, runs)


def _definition_and_runs(
    schedules: ScheduleCollection, key: str, at: date | None
) -> tuple[Rule, Policy, Sequence[LedgerRow] | None]:
    """Return the rule and the policy of a schedule that were in force on the date `at`, and the date's ledger entries.

    Without `at`, returns the last rule and policy, and None instead of the entries.
    """
    row = schedules.store.get(key)
    changes = [] if at is None and row is not None else schedules.ledger.changes(key)
    if row is None and not changes:
        raise NotFoundError(f"no schedule has or had the key {key!r}")
    last: ScheduleRow | Change = changes[-1] if row is None else row
    if at is None:
        return last.rule, last.policy, None
    until = day_in(last.rule.timezone, at)[1]
    in_force = [change for change in changes if change.first <= until]
    if in_force:
        last = in_force[-1]
    elif changes:
        first = _local(changes[0].first, last.rule)
        click.echo(f"the schedule was added after that date; its first occurrence is {first}", err=True)
    since, until = day_in(last.rule.timezone, at)
    return last.rule, last.policy, list(schedules.history(key, since=since, until=until))


def _show(
    chosen: Chosen,
    rule: Rule,
    dialect: crons.CronDialect,
    at: date | None,
    policy: Policy = Policy(),  # noqa: B008 - frozen
    runs: Sequence[LedgerRow] | None = None,
) -> None:
    load_zone(rule.timezone)  # raises an error for an unknown zone
    parts = (in_words(rule.cron, dialect), *rule_occurrences.restrictions(rule), overlap_note(policy))
    words = ", ".join(part for part in parts if part is not None)
    found: dict[str, Any] = {"cron": rule.cron, "timezone": rule.timezone, "words": words}
    verdict = None if at is None else _restricted(rule, why(rule.cron, rule.timezone, at, dialect))
    if chosen.json:
        if verdict is not None:
            found |= {
                "matches": verdict.matches,
                "reasons": verdict.reasons,
                "occurrences": _occurrences(verdict, rule),
            }
        if runs is not None:
            names = ("scheduled_time", "outcome", "detail", "started", "ended")
            times = ("scheduled_time", "started", "ended")
            found["runs"] = [with_local_times({name: getattr(run, name) for name in names}, times) for run in runs]
        write(json_lines([found]))
        return
    write([f"{rule.cron}  {rule.timezone}: {words}"])
    if at is None or verdict is None:
        return
    asked = at.isoformat(" ", "minutes") if isinstance(at, datetime) else at.isoformat()
    write([f"{at:%a} {asked}: {'due' if verdict.matches else 'not due'}"])
    write(f"  because {reason}" if not verdict.matches else f"  {reason}" for reason in verdict.reasons)
    for each in verdict.occurrences[:_MOST]:
        write([f"  {_local(each.time, rule)}{f'  {each.note}' if each.note else ''}"])
    if (more := len(verdict.occurrences) - _MOST) > 0:
        write([f"  and {more} more on that date"])
    for run in runs or ():
        detail = f" ({printable(run.detail)})" if run.detail else ""
        write([f"  outcome of {_local(run.scheduled_time, rule)}: {run.outcome}{detail}"])
    if runs is not None and not runs and verdict.occurrences:
        write(["  the ledger has no entry of that date; `psched audit` shows which occurrences are missing"])


def _restricted(rule: Rule, verdict: DateVerdict) -> DateVerdict:
    """Return the verdict for the rule, and not only for its cron expression.

    Times on excluded days, for example, are no occurrences. The verdict leaves them out, and gives the reason.
    """
    found = {each: rule_occurrences.why_not(rule, each.time) for each in verdict.occurrences}
    reasons = tuple(dict.fromkeys(reason for reason in found.values() if reason is not None))
    left = tuple(each for each, reason in found.items() if reason is None)
    return DateVerdict(verdict.matches and bool(left), (*verdict.reasons, *reasons), left)


def _occurrences(verdict: DateVerdict, rule: Rule) -> list[dict[str, Any]]:
    zone = load_zone(rule.timezone)
    return [
        asdict(each)
        | {
            "local": datetime.fromtimestamp(each.time, zone).isoformat(),
            "utc": datetime.fromtimestamp(each.time, UTC).isoformat(),
        }
        for each in verdict.occurrences
    ]


def _local(seconds: float, rule: Rule) -> str:
    return f"{datetime.fromtimestamp(seconds, load_zone(rule.timezone)):%a %Y-%m-%d %H:%M:%S %Z}"
