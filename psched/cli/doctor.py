"""psched doctor: checks everything that a worker needs, and prints each finding with its remedy."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import click

from psched.application import load
from psched.cli.errors import DatabaseError
from psched.cli.formatting import Fields, json_lines, printable, write
from psched.cli.opened_sections import opened_section
from psched.cli.options import Chosen, common_options
from psched.cli.rows_left_to_ruby import LeftToRuby
from psched.config import Section, SectionName, Settings
from psched.errors import ConfigError
from psched.insight.doctor import (
    broken_findings,
    configuration_findings,
    hook_findings,
    section_findings,
    tz_database_finding,
)
from psched.queue.queue import Queue
from psched.schedules.collection import ScheduleCollection
from psched.store import Finding
from psched.store.type_filter import mismatch
from psched.supervisor.loaded_config import configured_application


@click.command()
@common_options(loading=True)
def doctor(chosen: Chosen) -> int:
    """Check everything that a worker needs.

    Checks the configuration, the application, the database, encryption, the pooler, the tables and writing to them,
    indexes, collations, clocks, the tz database, the hooks that schedules name, and broken, overdue and failing
    schedules. Each line begins with ok, warning or FAILED, and names the remedy. Lines about the queue begin with
    `queue`. The exit code is 1 if anything is FAILED. --json prints one array of objects with subject, ok, message
    (which includes the remedy), warning, level (ok, warning or failed) and remedy (the remedy alone; null if psched has
    no separate text for it, or if there is nothing to do).
    """
    findings = []
    for finding in _findings(chosen):
        findings.append(finding)
        if not chosen.json:
            click.echo(_line(finding))
    if chosen.json:
        write(json_lines(map(_as_json, findings)))
    return 0 if all(finding.ok for finding in findings) else 1


def _findings(chosen: Chosen) -> Iterator[Finding]:
    try:
        settings = chosen.settings()
    except ConfigError as error:
        yield from (Finding("config", False, line) for line in str(error).splitlines())
        return
    yield from configuration_findings(settings)
    yield application_finding(settings)
    yield tz_database_finding()
    for name, section in settings.named_sections:
        yield from _section_findings(chosen, name, section)


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
            yield from section_findings(name, section, collection, True, partial(_row_findings, chosen, name, section))
    except (ConfigError, DatabaseError) as error:
        yield Finding("queue database" if name == "queue" else "database", False, str(error))


def _row_findings(
    chosen: Chosen, name: SectionName, section: Section, collection: ScheduleCollection | Queue
) -> Iterator[Finding]:
    """Yield the findings of the checks that read many rows."""
    yield from LeftToRuby(chosen, name).findings(collection)
    if isinstance(collection, ScheduleCollection) and collection.store.keeps_policies:
        yield from hook_findings(section, collection)
        yield from broken_findings(collection)


def _as_json(finding: Finding) -> Fields:
    """Return the fields of `--json`. Later versions must keep the names and meanings of the fields."""
    return finding._asdict() | {"message": finding.text, "level": finding.level}


def _line(finding: Finding) -> str:
    ok = ("warning", "yellow") if finding.warning else ("ok", "green")
    word, colour = ok if finding.ok else ("FAILED", "red")
    return f"{click.style(f'{word:<7}', fg=colour)} {finding.subject:<14} {printable(finding.text)}"
