"""psched stats. psched queue stats also uses this module, to print the rates and percentiles of recent runs."""

from __future__ import annotations

import click

from psched.cli.formatting import (
    KEPT,
    Fields,
    ListColumns,
    fields_of,
    json_line,
    with_local_times,
    write,
    write_fields,
    write_rows,
)
from psched.cli.opened_sections import opened_section
from psched.cli.option_types import seconds
from psched.cli.options import Chosen, common_options
from psched.insight import Percentiles, RunRates, RunReport, ScheduleInsight, TaskInsight
from psched.time_text import span

LAST = click.option(
    "--last",
    type=seconds(60, 366 * 86400),
    metavar="SEC",
    default="1h",
    show_default=True,
    help="Runs that ended in the last SEC seconds (or 90s, 5m, 2h, 7d).",
)
_RATES = ListColumns(
    brief={
        "type": 0,
        **dict.fromkeys(("runs", "per_min", "failed", "p50", "p95", "p99", "wait_p50", "wait_p95"), KEPT),
    },
    wide=(
        "type",
        *("runs", "per_min", "finished", "retried", "released", "failed", "cancelled", "lost"),
        *("mean", "p50", "p95", "p99", "wait_mean", "wait_p50", "wait_p95", "wait_p99"),
    ),
)


@click.command("stats")
@LAST
@common_options()
def stats(chosen: Chosen, last: float) -> None:
    """Count the schedules by state, and the runs of the last hour by type.

    Prints the number of schedules in each state (at most 10,000, then `10,000+`). Then, for each type of runs that
    ended: their number, their rate per minute, and how many failed for good; the median, 95th and 99th percentile of
    their durations in seconds; and the same percentiles of how late they started. Workers write these numbers after
    each minute. Up to 3 hours are counted by minute, and longer times by full hours. With `type: rdb_compat` there are
    no such numbers.

    --json prints one object with states (for each state an object with count, and with more: true if there may be more
    schedules than count), and runs: null on rdb_compat, else an object with begin and end (unix seconds, and as
    begin_local and end_local) and types: an array of objects with type, runs, per_minute, outcomes (numbers by outcome:
    finished, retried, released, failed, cancelled, lost), duration and wait (objects with mean, p50, p95 and p99 in
    seconds, or null).
    """
    with opened_section(chosen, "schedules", read_only=True) as schedules:
        insight = ScheduleInsight(schedules)
        counts, report = insight.counts(), report_of(insight, schedules.store.stats is not None, last)
    if chosen.json:
        states = {name: fields_of(number) for name, number in counts.items()}
        write([json_line({"states": states, "runs": report_fields(report)})])
        return
    write_fields({name: str(number) for name, number in counts.items()}, ())
    write_report(report)


def report_of(insight: ScheduleInsight | TaskInsight, is_kept: bool, last: float) -> RunReport | None:
    """Return the report about the runs of the last `last` seconds.

    `is_kept`: whether the store keeps statistics. Without statistics the result is None.
    """
    return insight.run_report(last) if is_kept else None


def report_fields(report: RunReport | None) -> Fields | None:
    if report is None:
        return None
    types = [
        fields_of(each) | {"duration": fields_of(each.duration), "wait": fields_of(each.wait)} for each in report.types
    ]
    return with_local_times({"begin": report.begin, "end": report.end, "types": types}, ("begin", "end"))


def write_report(report: RunReport | None) -> None:
    """Print a table of the types that ran, or a line if the store keeps no statistics."""
    if report is None:
        write(
            [
                "",
                "rdb_compat keeps no statistics of runs, because its tables are those of PerfectSched and PerfectQueue",
            ]
        )
        return
    if not report.types:
        return
    write(["", f"runs that ended in the last {span(report.end - report.begin)}:"])
    write_rows(map(_row, report.types), (), _RATES, listed=dict, as_json=False)


def _row(rates: RunRates) -> Fields:
    outcomes = {name: str(rates.outcomes.get(name, 0)) for name in _RATES.wide[3:9]}
    waits = {f"wait_{name}": text for name, text in _seconds(rates.wait).items()}
    shown = {"type": rates.type, "runs": str(rates.runs), "per_min": f"{rates.per_minute:.1f}"}
    return shown | outcomes | _seconds(rates.duration) | waits


def _seconds(percentiles: Percentiles) -> Fields:
    return {name: None if value is None else _short(value) for name, value in fields_of(percentiles).items()}


def _short(value: float) -> str:
    """Return seconds with about two digits: `0.0023`, `1.7`, `340`."""
    return f"{value:.2g}" if value < 10 else f"{value:.0f}"
