"""psched history: shows from the ledger how occurrences were settled."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from heapq import nlargest
from itertools import chain
from operator import attrgetter

import click

from psched.cli.completion import completed_keys
from psched.cli.formatting import (
    KEPT,
    Fields,
    ListColumns,
    fields_of,
    json_lines,
    printable,
    with_local_times,
    write,
    write_rows,
)
from psched.cli.opened_sections import listed_schedules
from psched.cli.option_types import MOMENT, When, count, seconds
from psched.cli.options import WIDE, Chosen, common_options
from psched.model import ScheduleRow
from psched.schedules.derived_state import FAILING, RUNNING
from psched.store.ledger import BACKFILL, KeptOutput, LedgerRow
from psched.stored_error_summary import error_summary
from psched.time_text import local_time

_TABLE = ListColumns(
    brief={"key": 3, "scheduled_time": 2, "outcome": KEPT, "attempts": KEPT, "detail": 0},
    wide=("key", "scheduled_time", "outcome", "attempts", "started", "ended", "node", "detail"),
)
_DEFAULT_LIMIT = 1000
_TIMES = ("scheduled_time", "started", "ended")


@click.command()
@click.argument("key", required=False, shell_complete=completed_keys("schedules"))
@click.option(
    "--failed",
    is_flag=True,
    help="Only occurrences that had a failed or lost attempt, or were skipped for another reason than a pause.",
)
@click.option(
    "--late",
    type=seconds(),
    metavar="SEC",
    is_flag=False,
    flag_value="1m",
    help="Like --failed, and also occurrences that started more than SEC (seconds, or 5m, 2h) late. Without SEC: 1m.",
)
@click.option("--since", type=MOMENT, help="Entries from this time on: unix seconds, a date, or 2d (two days ago).")
@click.option("--until", type=MOMENT, help="Entries up to this time (default: now).")
@click.option("--output", is_flag=True, help="Show the output of the last runs, if it was kept.")
@click.option(
    "--limit", type=count(), help=f"Only the last N entries (default: all with --since, else {_DEFAULT_LIMIT})."
)
@WIDE
@common_options()
def history(
    chosen: Chosen,
    key: str | None,
    failed: bool,
    late: float | None,
    since: When | None,
    until: When | None,
    output: bool,
    limit: int | None,
    wide: bool,
) -> None:
    """Show how occurrences ended.

    With KEY: the occurrences of one schedule, sorted by their times. Without KEY: the occurrences of all schedules,
    sorted by the times when they ended. --since and --until limit the times by which the occurrences are sorted.

    --failed shows only occurrences that had a failed or lost attempt, or were skipped for another reason than a pause.
    --late shows these occurrences, and those that started late. With either option, occurrences that are failing now,
    and have not ended, come last. Their outcome is `failing`, or `running` during another attempt. `type: rdb_compat`
    does not record failing occurrences. To find late starts, --late reads each entry from --since to --until.

    With --output: the attempts whose output was kept, by key and then by time, with their results and outputs. With
    --output and --failed: only failed attempts. With --output and --json: objects with key, scheduled_time, attempt,
    failed, result (how the attempt ended), text (the output) and ended.

    Without --output, --json prints one array of objects with key, scheduled_time, outcome (finished, enqueued, skipped
    or failed; failing or running if not ended), detail (why the occurrence was skipped, or the key of the task that was
    enqueued), last and count (if one entry covers several skipped occurrences: the last of them, and their number, or
    null if they are too many to count), attempts, node, fence, started, ended, error, previous (the occurrence before),
    reckoning (cron dialect and tz database), extra (whether the run was an extra run by run-now) and backfill (the
    number of the backfill that ran the occurrence, or null). Times are unix seconds, and again as *_local. An
    occurrence that has not ended has no fence, started, ended or reckoning.
    """
    if output and late is not None:
        raise click.UsageError("--output cannot be combined with --late; remove one of them")
    with listed_schedules(chosen) as insight:
        now = insight.now()
        first, last = None if since is None else since(now), None if until is None else until(now)
        most = _DEFAULT_LIMIT if limit is None and since is None else limit
        settled = insight.history(key, failed=failed, late=late, since=first, until=last, last=most)
        if output:
            kept: Iterable[KeptOutput] = (
                row
                for row in insight.outputs(key)
                if (row.failed or not failed)
                and _is_within(row.ended if key is None else row.scheduled_time, first, last)
            )
            if limit is not None:
                latest = nlargest(limit, kept, key=attrgetter("ended"))
                kept = sorted(latest, key=attrgetter("key", "ended"))
            _write_outputs(kept, as_json=chosen.json)
            return
        failing = (
            row
            for row in (insight.failing(key) if failed or late is not None else ())
            if _is_within(now if key is None else row.next_time, first, last)
        )
        entries = _counted(chain(map(_settled, settled), map(_unsettled, failing)), most if limit is None else None)
        write_rows(entries, _TIMES, _TABLE, listed=_listed, as_json=chosen.json, wide=wide)


def _counted(entries: Iterable[Fields], limit: int | None) -> Iterator[Fields]:
    """Yield the entries. If their number reaches `limit`, then print how to get more."""
    count = 0
    for count, entry in enumerate(entries, 1):  # noqa: B007 - read below
        yield entry
    if limit is not None and count >= limit:
        click.echo(f"only the last {limit} entries are shown; use --limit or --since for more", err=True)


def _is_within(time: float, first: float | None, last: float | None) -> bool:
    return (first is None or time >= first) and (last is None or time <= last)


def _write_outputs(outputs: Iterable[KeptOutput], as_json: bool) -> None:
    if as_json:
        objects = (
            {"key": row.key, "scheduled_time": row.scheduled_time, "attempt": row.attempt} | fields_of(row)
            for row in outputs
        )
        write(json_lines(with_local_times(row, ("scheduled_time", "ended")) for row in objects))
        return
    count = 0
    for count, row in enumerate(outputs, 1):  # noqa: B007 - read below
        run = f"{local_time(row.scheduled_time)} attempt {row.attempt}, until {local_time(row.ended)}"
        write([f"{printable(row.key)} {run}: {printable(row.result)}"])
        write(f"  | {printable(line)}" for line in row.text.splitlines())
    write([f"{count} output{'s' if count != 1 else ''}."])


def _settled(row: LedgerRow) -> Fields:
    """Return the `--json` object of a ledger entry. Later versions must keep the names and meanings of its fields."""
    fields = {"key": row.key, "scheduled_time": row.scheduled_time} | fields_of(row)
    del fields["version"]
    return fields


def _unsettled(row: ScheduleRow) -> Fields:
    """Return the `--json` object of a failing occurrence, with the same fields as the object of a ledger entry."""
    fields: Fields = {"key": row.key, "scheduled_time": row.next_time, "backfill": None}
    fields |= dict.fromkeys(("started", "ended", "detail", "last", "fence", "reckoning"))
    fields |= {"attempts": row.attempts, "node": row.node, "previous": row.previous, "error": row.last_error}
    fields |= {"extra": row.is_extra, "count": 1}
    fields["outcome"] = RUNNING if row.status == RUNNING else FAILING
    return fields


def _listed(entry: Fields) -> Fields:
    details = [] if entry["detail"] is None else [entry["detail"]]
    if entry["backfill"] is not None and entry["detail"] == BACKFILL:
        details = [f"{BACKFILL} {entry['backfill']}"]
    if entry["last"] is not None:
        details.append(f"{entry['count'] or 'many'} up to {local_time(entry['last'])}")
    if entry["error"] is not None:
        details.append(error_summary(entry["error"]))
    return entry | {"detail": "; ".join(details)}
