"""psched doctor: checks everything that a worker needs, and reports each as ok or with its remedy."""

from __future__ import annotations

import stat
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace

import click

from psched import cron
from psched.application import load
from psched.cli.errors import DatabaseError
from psched.cli.formatting import json_lines, printable, span, write
from psched.cli.options import Chosen, common_options
from psched.cli.sections import opened_section
from psched.cli.unrunnable_rows import LeftToRuby, live_workers, routing_findings
from psched.clock import local_time
from psched.config import Section, SectionName, Settings
from psched.error_text import error_summary
from psched.errors import ConfigError, NotFoundError, PoolerError
from psched.insight import worker_hint
from psched.model import ScheduleRow
from psched.queue.queue import Queue
from psched.schedules.collection import ScheduleCollection
from psched.schedules.schedule import LEASED, RUNNING, WAITING, ScheduleState, failed_attempts
from psched.store import Finding, LeaseStore
from psched.store.node_registry import Node, tz_difference, version_difference
from psched.store.type_filter import mismatch
from psched.supervisor.loaded_config import configured_application

_MAX_CLOCK_SKEW = 2.0  # seconds
_MAX_OVERDUE = 20  # occurrences that are listed


@click.command()
@common_options(loading=True)
def doctor(chosen: Chosen) -> int:
    """Check everything that a worker needs.

    Checks configuration, application, database, encryption, pooler, tables and writing to them, indexes, collations,
    clocks, tz database, overdue and failing schedules. Each line is `ok`, a `warning`, or FAILED with the remedy. Lines
    about the section `queue` begin with `queue`. The exit code is 1 if anything is FAILED. --json prints one array of
    objects with subject, ok, message and warning.
    """
    findings = []
    for finding in _findings(chosen):
        findings.append(finding)
        if not chosen.json:
            click.echo(_line(finding))
    if chosen.json:
        write(json_lines(finding._asdict() for finding in findings))
    return 0 if all(finding.ok for finding in findings) else 1


def _findings(chosen: Chosen) -> Iterator[Finding]:
    try:
        settings = chosen.settings()
    except ConfigError as error:
        yield from (Finding("config", False, line) for line in str(error).splitlines())
        return
    yield Finding("config", True, f"{settings.path}:{settings.environment}")
    if settings.env_file is not None and settings.env_file.stat().st_mode & stat.S_IROTH:
        open_to_all = f"every user of this host may read {settings.env_file}; chmod o= {settings.env_file}"
        yield Finding("env_file", True, open_to_all, warning=True)
    yield application_finding(settings)
    yield Finding("tz database", True, f"{cron.tz_database()} (tzdata); the same on every node, or times differ")
    for name, section in settings.named_sections:
        for finding in _section_findings(chosen, name, section):
            yield finding._replace(subject=f"queue {finding.subject}") if name == "queue" else finding


def application_finding(settings: Settings) -> Finding:
    application = configured_application(settings)
    if not application.names:
        return Finding("application", True, "no application is configured; name it in `app:` or `psched run APP`")
    try:
        loaded = load(application)
    except ConfigError as error:
        return Finding("application", False, str(error))
    served = [loaded.of(name).types().serving(section.types) for name, section in settings.named_sections]
    runs_something = not all(types.is_nothing for types in served)
    names = ", ".join(str(name) for name in application.names)
    wrong = mismatch(served)
    return Finding("application", runs_something, names if wrong is None else f"{names}; {wrong}")


def _section_findings(chosen: Chosen, name: SectionName, section: Section) -> Iterator[Finding]:
    try:
        with opened_section(chosen, name, check=False) as collection:
            yield from _collection_findings(collection, section, LeftToRuby(chosen, name))
    except (ConfigError, DatabaseError) as error:
        yield Finding("database", False, str(error))


def _collection_findings(
    collection: ScheduleCollection | Queue, section: Section, left: LeftToRuby
) -> Iterator[Finding]:
    store = collection.store
    try:
        store.check_tables()
    except ConfigError as error:
        yield Finding("pooler" if isinstance(error, PoolerError) else "table", False, str(error))
        return
    clocks = clock_finding(store)
    yield Finding("database", True, f"{section.masked_url} answers")
    yield from store.diagnose()
    yield clocks
    yield from routing_findings(store)
    yield from node_findings(store)
    yield from left.findings(collection)
    if isinstance(collection, ScheduleCollection):
        yield from overdue_findings(collection)
        yield from failing_findings(collection)


def failing_findings(schedules: ScheduleCollection) -> Iterator[Finding]:
    failing = list(schedules.failing())
    if not failing:
        return
    worst = max(failing, key=lambda row: (failed_attempts(row), -row.next_time))
    count = f"{len(failing)} schedules are failing" if len(failing) > 1 else "1 schedule is failing"
    attempts = failed_attempts(worst)
    times = f"{attempts} attempts" if attempts > 1 else "1 attempt"
    error = "" if worst.last_error is None else f", the last error: {error_summary(worst.last_error)}"
    what = f"{worst.key!r} (type {worst.type!r}) with {times} of its occurrence of {local_time(worst.next_time)}{error}"
    yield Finding("failing", True, f"{count}; the worst is {what} (psched history --failed lists them)", warning=True)


def overdue_findings(schedules: ScheduleCollection) -> Iterator[Finding]:
    """Yield the occurrences that are later than `overdue_after`, or than their own `alert_after`."""
    now = schedules.store.now()
    late = list(_late(schedules))
    nodes = None if schedules.store.nodes is None else live_workers(schedules.store)
    if len(late) > 1 and not nodes and all(not row.attempts and row.status == WAITING for row in late):
        what = f"no worker has started any of the {len(late)} schedules below"
        yield Finding("overdue", False, f"{what}; {worker_hint(nodes, late[0].type)}")
    for row in late:
        yield Finding("overdue", False, _overdue(row, schedules.state(row, now), nodes))
    if not late:
        bound = span(schedules.overdue_after)
        yield Finding("overdue", True, f"no occurrence is more than {bound} late, nor later than its alert_after")


def _late(schedules: ScheduleCollection) -> Iterator[ScheduleRow]:
    """Yield the late rows, oldest occurrence first, without their data, which may be large."""
    times = {row.key: row.next_time for row in schedules.overdue(_MAX_OVERDUE)}
    if schedules.store.alerts is not None:
        times |= {overdue.key: overdue.scheduled_time for overdue in schedules.store.alerts.overdue(_MAX_OVERDUE)}
    for key in sorted(times, key=times.__getitem__)[:_MAX_OVERDUE]:
        with suppress(NotFoundError):  # deleted meanwhile
            row = schedules[key].metadata()
            if times[key] in (row.next_time, row.regular_time):  # it is still the same occurrence
                yield replace(row, data={})


def _overdue(row: ScheduleRow, state: ScheduleState, nodes: Sequence[Node] | None) -> str:
    """Return the state of an overdue occurrence and the remedy. `nodes`: the live workers; None: unknown."""
    error = "" if row.last_error is None else f"; the last error: {error_summary(row.last_error)}"
    lateness = span(state.lateness)
    what = f"{row.key!r} (type {row.type!r}): its occurrence of {local_time(row.next_time)} is {lateness} late"
    node = "" if row.node is None else f" on {row.node}"
    if row.problem is not None:
        return f"{what} and cannot be run: {row.problem}"
    if state.word == RUNNING:
        return f"{what}: attempt {row.attempts} is running{node}{error}"
    if row.status == RUNNING:
        return f"{what}: attempt {row.attempts}{node} has lost its lease{error}; {worker_hint(nodes, row.type)}"
    if row.attempts:
        return (
            f"{what}: {row.attempts} attempts have failed{error}; the next one is due {local_time(row.next_run_time)}"
            f" (psched show {row.key!r} prints the whole error)"
        )
    if state.word == LEASED:
        return f"{what}: it is running, or waits for a retry"
    return f"{what} and not started; {worker_hint(nodes, row.type)}"


def node_findings(store: LeaseStore) -> Iterator[Finding]:
    """Yield how the live workers and this host differ in tz database or version of psched."""
    nodes = live_workers(store)
    difference = tz_difference(nodes, cron.tz_database())
    if difference is not None:
        yield Finding("nodes", False, difference)
    difference = version_difference(nodes)
    if difference is not None:
        yield Finding("nodes", True, difference, warning=True)


def clock_finding(store: LeaseStore) -> Finding:
    before = time.time()
    there = store.now()
    after = time.time()
    skew = there - (before + after) / 2
    shown = f"{abs(skew):.1f} s {'behind' if skew > 0 else 'ahead of'} the database's"
    if abs(skew) <= _MAX_CLOCK_SKEW + (after - before) / 2:
        return Finding("clocks", True, f"this host's clock is {shown}")
    return Finding("clocks", False, f"this host's clock is {shown}; set both by NTP (psched uses the database's)")


def _line(finding: Finding) -> str:
    ok = ("warning", "yellow") if finding.warning else ("ok", "green")
    word, colour = ok if finding.ok else ("FAILED", "red")
    return f"{click.style(f'{word:<7}', fg=colour)} {finding.subject:<14} {printable(finding.message)}"
