"""psched doctor: looks at everything a worker needs, and says for each thing that it is well or what to do."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator

import click

from psched import cron
from psched.alarm import Alarms
from psched.application import load
from psched.cli.faults import DatabaseError, database_errors
from psched.cli.options import Chosen, common_options
from psched.cli.routing import routing_findings
from psched.cli.rows import json_lines, printable, write
from psched.config import Section, Settings
from psched.daemon.plan import configured_application
from psched.errors import ConfigError, PoolerError
from psched.holder import holder_name
from psched.queue import Queue, open_queue
from psched.schedules import ScheduleCollection, open_schedules
from psched.store import Finding, LeaseStore

_TOLERABLE_SKEW = 2.0
"""Seconds two clocks may differ without anybody noticing."""

_LATE = 20
"""How many overdue occurrences are listed."""


@click.command()
@common_options(loading=True)
def doctor(chosen: Chosen) -> int:
    """Check everything a worker needs.

    Configuration, application, database, tables and whether they can be written, indexes, collations, clocks, the tz
    database and overdue schedules: each is `ok`, or told with what to do; exit code 1 when anything is not. What is
    said of the queue's section begins with `queue`. --json prints one array of objects with subject, ok and message.
    """
    findings = []
    for finding in findings_of(chosen):
        findings.append(finding)
        if not chosen.json:
            write([_line(finding)])
            sys.stdout.flush()
    if chosen.json:
        write(json_lines(finding._asdict() for finding in findings))
    return 0 if all(finding.ok for finding in findings) else 1


def findings_of(chosen: Chosen) -> Iterator[Finding]:
    """Yield the findings in the order in which things are needed."""
    try:
        settings = chosen.settings().with_application((), chosen.include, chosen.require, chosen.types)
    except ConfigError as error:
        yield from (Finding("config", False, line) for line in str(error).splitlines())
        return
    yield Finding("config", True, f"{settings.path}:{settings.environment}")
    yield application_finding(settings)
    yield Finding("tz database", True, f"{cron.tz_database()} (tzdata); the same on every node, or times differ")
    if settings.schedules is not None:
        yield from _database_findings(settings.schedules, open_schedules)
    if settings.queue is not None:
        for finding in _database_findings(settings.queue, open_queue):
            yield finding._replace(subject=f"queue {finding.subject}")


def application_finding(settings: Settings) -> Finding:
    """Return whether the application can be loaded."""
    application = configured_application(settings)
    if not application.names:
        return Finding("application", True, "none is configured; name it in `app:` or at `psched run`")
    try:
        load(application)
    except ConfigError as error:
        return Finding("application", False, str(error))
    return Finding("application", True, ", ".join(str(name) for name in application.names))


def _database_findings(
    section: Section, open_section: Callable[[Section, str], ScheduleCollection | Queue]
) -> Iterator[Finding]:
    try:
        with open_section(section, holder_name("psched-doctor")) as collection:
            yield from _store_findings(section, collection.store)
    except (ConfigError, DatabaseError) as error:
        yield Finding("database", False, str(error))


def _store_findings(section: Section, store: LeaseStore) -> Iterator[Finding]:
    with database_errors(section, store):
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
        alarms: Alarms | None = getattr(store, "alarms", None)
        if alarms is not None:
            yield from overdue_findings(alarms)


def overdue_findings(alarms: Alarms) -> Iterator[Finding]:
    """Yield each occurrence that should be finished by now (`alert_after`), or that there is none."""
    late = alarms.overdue(_LATE)
    for overdue in late:
        yield Finding("overdue", False, f"{overdue}; is a worker running that handles the type {overdue.type!r}?")
    if not late:
        yield Finding("overdue", True, "nothing is, of what has an alert_after")


def clock_finding(store: LeaseStore) -> Finding:
    """Return whether this host's clock and the database's agree; psched goes by the database's alone."""
    before = time.time()
    there = store.now()
    after = time.time()
    skew = there - (before + after) / 2
    shown = f"{abs(skew):.1f} s {'behind' if skew > 0 else 'ahead of'} the database's"
    if abs(skew) <= _TOLERABLE_SKEW + (after - before) / 2:
        return Finding("clocks", True, f"this host's clock is {shown}")
    return Finding("clocks", False, f"this host's clock is {shown}; set both by NTP (psched goes by the database's)")


def _line(finding: Finding) -> str:
    word = f"{'ok' if finding.ok else 'FAILED':<7}"
    if sys.stdout.isatty():
        word = click.style(word, fg="green" if finding.ok else "red")
    return f"{word} {finding.subject:<14} {printable(finding.message)}"
