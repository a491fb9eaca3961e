"""psched history: how occurrences were settled, from the ledger."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import click

from psched.cli.moments import Moment
from psched.cli.options import Chosen, common_options
from psched.cli.rows import Shown, json_lines, local_iso, write, write_table
from psched.cli.session import opened
from psched.ledger import LedgerRow

_COLUMNS = ("key", "scheduled_time", "outcome", "attempts", "started", "ended", "node", "detail")
_WIDTHS = (30, 28, 9, 8, 28, 28, 30)
_UNCUT = (1, 2, 3, 4, 5)

When = Callable[[float], float]


@click.command()
@click.argument("key", required=False)
@click.option("--failed", is_flag=True, help="Only where an attempt failed or was lost, or what came too late.")
@click.option("--since", type=Moment(), metavar="WHEN", help="From then on: unix seconds, a date, or 2d (ago).")
@click.option("--until", type=Moment(), metavar="WHEN", help="Up to then (default: now).")
@common_options()
def history(chosen: Chosen, key: str | None, failed: bool, since: When | None, until: When | None) -> None:
    """Show how occurrences were settled.

    With KEY those of one schedule, in their order; --since and --until are about the occurrences. Without it those of
    all schedules, in the order in which they were settled; --since and --until are about that.

    --json prints one array of objects with key, scheduled_time, outcome (finished, enqueued, skipped or failed),
    detail (why it was skipped, or the task's key), last and count (where one entry stands for several that were
    skipped: the last one, and how many; null when more than were counted), attempts, node, fence, started, ended,
    error, previous (the occurrence before), reckoning (cron dialect and tz database) and extra (whether run-now added
    it besides the regular occurrences). Times are unix seconds, and again as *_local.
    """
    with opened(chosen) as schedules:
        now = schedules.store.now() if since or until else 0.0
        found = schedules.history(
            key, failed=failed, since=None if since is None else since(now), until=None if until is None else until(now)
        )
        if chosen.json:
            write(json_lines(entry_object(row) for row in found))
        else:
            write_table(_COLUMNS, found, _cells, _WIDTHS, _UNCUT)


def entry_object(row: LedgerRow) -> dict[str, Any]:
    """Return what `--json` shows of an entry. Names and meanings stay as they are in later versions."""
    times = {"scheduled_time": row.scheduled_time, "started": row.started, "ended": row.ended}
    return {
        "key": row.key,
        **times,
        **{f"{name}_local": None if time is None else local_iso(time) for name, time in times.items()},
        "outcome": row.outcome,
        "detail": row.detail,
        "last": row.last,
        "count": row.count,
        "attempts": row.attempts,
        "node": row.node,
        "fence": row.fence,
        "previous": row.previous,
        "error": row.error,
        "reckoning": row.reckoning,
        "extra": row.extra,
    }


def _cells(row: LedgerRow, shown: Shown) -> tuple[str, ...]:
    return (
        row.key,
        shown(row.scheduled_time),
        row.outcome,
        str(row.attempts),
        "" if row.started is None else shown(int(row.started)),
        shown(int(row.ended)),
        row.node or "",
        "; ".join(_details(row, shown)),
    )


def _details(row: LedgerRow, shown: Shown) -> Iterator[str]:
    if row.detail is not None:
        yield row.detail
    if row.last is not None:
        yield f"{row.count or 'many'} up to {shown(row.last)}"
    if row.error is not None:
        yield row.error.strip().rpartition("\n")[2]
