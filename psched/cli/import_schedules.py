"""psched import: reads the schedules of other schedulers, writes a file of schedules, and reports differences."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any, TypeVar

import click

from psched.application.loader import find, import_file, import_module
from psched.cli.formatting import fields_of, json_lines, local_iso, printable, write, write_file, write_object
from psched.cli.import_from_json import import_json
from psched.cli.json_input import read_source
from psched.cli.opened_sections import opened
from psched.cli.option_types import WHOLE_TIME, count
from psched.cli.options import INCLUDE, Chosen, common_options
from psched.cli.options_before_command import CommandGroup
from psched.config.validators import is_file
from psched.cron.zones import check_timezone
from psched.errors import ConfigError
from psched.importers.apscheduler_jobs import read_apscheduler
from psched.importers.celery_beat import read_celery
from psched.importers.crontab import has_user_column, read_crontab
from psched.importers.difference_report import Reported, lines, report
from psched.importers.entries import Imported, distinct_keys, merged
from psched.importers.host_timezone import host_timezone
from psched.importers.kubernetes_cronjobs import read_cronjobs
from psched.importers.schedules_yaml import schedules_yaml
from psched.importers.systemd_timers import read_timers
from psched.keys import check_owner

F = TypeVar("F", bound=Callable[..., Any])


@click.group("import", cls=CommandGroup)
def import_() -> None:
    """Read schedules from other schedulers or from a JSON file, or read a calendar.

    `json` adds schedules to the database, and `calendar` sets a calendar in the database. The other commands use no
    database: they write a file of schedules, and report each difference in behaviour, with the first time at which runs
    differ.
    """


import_.add_command(import_json)

_OPTIONS = (
    click.option(
        "--owner", required=True, metavar="NAME", help="Owner of the schedules; written as `owner:` into the file."
    ),
    click.option(
        "-o",
        "--output",
        default="schedules.yml",
        show_default=True,
        metavar="FILE",
        help="File to write; - for stdout.",
    ),
    click.option("--force", is_flag=True, help="Replace FILE if it exists."),
    click.option("--prefix", default="", metavar="TEXT", help="Put TEXT before each key."),
    click.option("--at", type=WHOLE_TIME, help="Compare runs from this time on (default: now)."),
)


def _file_options(function: F) -> F:
    for option in reversed(_OPTIONS):
        function = option(function)
    return function


_TIMEZONE = click.option("-t", "--timezone", metavar="ZONE", help="Zone of the schedules (default: this host's).")


@import_.command("crontab")
@click.argument("files", nargs=-1, required=True, metavar="FILE…")
@click.option(
    "--user-column/--no-user-column",
    default=None,
    help="Whether lines have a user before the command (default: only in /etc/crontab, and in folders named cron.d).",
)
@_TIMEZONE
@_file_options
@common_options()
def crontab(
    chosen: Chosen, /, files: tuple[str, ...], user_column: bool | None, timezone: str | None, **options: Any
) -> None:
    """Read crontabs.

    FILE is a crontab, or - for standard input: crontab -l | psched import crontab - --owner NAME.

    The handler psched.handlers.command:Command runs the commands of these schedules. Jobs of a system crontab get the
    type command.USER.
    """
    zone = _zone(timezone)
    found = []
    for file in files:
        name, text = read_source(file)
        found.append(read_crontab(name, text, has_user_column(name) if user_column is None else user_column, zone))
    _finish(chosen, merged(found), **options)


_APP = click.option("--app", required=True, metavar="MODULE:NAME", help="The application. MODULE may be a file.")


@import_.command("celery")
@_APP
@INCLUDE
@_file_options
@common_options()
def celery(chosen: Chosen, /, app: str, **options: Any) -> None:
    """Read the periodic tasks of Celery.

    Reads the application's beat_schedule, in the application's time zone, and the tables of django-celery-beat. Each
    periodic task becomes a schedule whose type is the name of the task.
    """
    _finish(chosen, read_celery(_named(app)), **options)


@import_.command("apscheduler")
@_APP
@_TIMEZONE
@INCLUDE
@_file_options
@common_options()
def apscheduler(chosen: Chosen, /, app: str, timezone: str | None, at: int | None, **options: Any) -> None:
    """Read the jobs of a scheduler of APScheduler 3.

    Reads the jobs that were added to the scheduler, and those in its job stores. Each job becomes a schedule whose type
    is the name of the function.
    """
    begin = int(time.time()) if at is None else at
    _finish(chosen, read_apscheduler(_named(app), _zone(timezone), begin), at=begin, **options)


@import_.command("systemd")
@click.argument("paths", nargs=-1, required=True, metavar="PATH…", type=click.Path(exists=True, path_type=Path))
@_TIMEZONE
@_file_options
@common_options()
def systemd(chosen: Chosen, /, paths: tuple[Path, ...], timezone: str | None, at: int | None, **options: Any) -> None:
    """Read timers of systemd.

    PATH is a unit file, or a folder of unit files such as /etc/systemd/system. The service of a timer is read from the
    same folder, or is one of the named files. The handler psched.handlers.command:Command runs the commands of the
    service.
    """
    begin = int(time.time()) if at is None else at
    _finish(chosen, read_timers(paths, _zone(timezone), begin), at=begin, **options)


@import_.command("kubernetes")
@click.argument("files", nargs=-1, required=True, metavar="FILE…")
@click.option(
    "-t",
    "--timezone",
    default="UTC",
    show_default=True,
    metavar="ZONE",
    help="Time zone of kube-controller-manager, for CronJobs without timeZone.",
)
@_file_options
@common_options()
def kubernetes(chosen: Chosen, /, files: tuple[str, ...], timezone: str, **options: Any) -> None:
    """Read CronJobs of Kubernetes.

    FILE is a YAML file of manifests, or - for standard input: kubectl get cronjobs -A -o yaml | psched import
    kubernetes - --owner NAME.

    The schedules create Jobs with kubectl, and wait until the Jobs end.
    """
    zone = _zone(timezone)
    _finish(chosen, merged([read_cronjobs(*read_source(file), zone) for file in files]), **options)


@import_.command("calendar")
@click.argument("file")
@click.option("--name", help="Name of the calendar (default: the file's name without its suffix).")
@click.option(
    "--years",
    type=count(1, 50),
    default=5,
    show_default=True,
    help="Number of years to read, beginning with this year.",
)
@common_options()
def calendar(chosen: Chosen, file: str, name: str | None, years: int) -> None:
    """Read a calendar file into a named calendar in the database.

    FILE is an iCalendar file (.ics), such as one of public holidays, or - for standard input. The all-day events in the
    file replace the dates of the calendar. Events with a time of day are ignored. Needs psched[ics].

    --json prints an object with name, version, dates and weekdays, as `psched calendar set` does.
    """
    try:
        from psched.importers.calendar_file import read_days  # noqa: PLC0415 – the library is optional
    except ModuleNotFoundError as error:
        if error.name not in ("icalendar", "recurring_ical_events"):
            raise
        message = f"psched import calendar needs {error.name}, which is not installed: pip install 'psched[ics]'"
        raise ConfigError(message) from None
    source, text = read_source(file)
    if name is None and file == "-":
        raise click.UsageError("with standard input, --name NAME is required")
    with opened(chosen) as schedules:
        this_year = datetime.fromtimestamp(schedules.store.now(), UTC).year
        found = read_days(source, text, date(this_year, 1, 1), date(this_year + years - 1, 12, 31))
        if not found.days:
            raise ValueError(f"{source}: no all-day event from {this_year} to {this_year + years - 1}")
        stored = schedules.calendars.set(Path(file).stem if name is None else name, found.days)
    if chosen.json:
        write_object(fields_of(stored), ())
        return
    left_out = f"; events with a time of day, left out: {found.timed}" if found.timed else ""
    write(
        [f"{printable(stored.name)}: {len(stored.dates)} dates from {stored.dates[0]} to {stored.dates[-1]}{left_out}"]
    )


def _named(name: str) -> Any:
    """Return the object that `module:NAME` names. Raises ConfigError if the name or the module cannot be used."""
    module, _, attribute = name.rpartition(":")
    if not module or not attribute:
        raise ConfigError(f"--app {name!r}: expected MODULE:NAME, such as shop.celery:app")
    return find(import_file(module) if is_file(module) else import_module(module), attribute)


def _zone(timezone: str | None) -> str:
    zone = host_timezone() if timezone is None else timezone
    check_timezone(zone)
    return zone


def _finish(
    chosen: Chosen, imported: Imported, owner: str, output: str, force: bool, prefix: str, at: int | None
) -> None:
    """Write the imported schedules to the file `output`, then print the report.

    Raises ValueError for an owner or a key that cannot be stored. Without `force`, also raises it for a file that
    exists.
    """
    check_owner(owner)
    keyed = distinct_keys(imported.entries, prefix)
    text = schedules_yaml(imported, keyed, owner)
    reported = report(imported, keyed, int(time.time()) if at is None else at)
    if output == "-":
        click.echo(text, nl=False)
    else:
        write_file(Path(output), [text], force)
    if chosen.json:
        if output != "-":
            write(json_lines(map(_as_json, reported)))
        return
    differing = sum(not each.is_the_same for each in reported)
    missing = sum(not each.keys for each in reported)
    target = "" if output == "-" else f" to {output}"
    written = f"{imported.scheduler}: {len(reported)} entries read, {sum(map(len, keyed))} schedules written{target}"
    for line in (
        f"{written}; {differing} differ, {missing} of them not written",
        *lines(imported, reported),
    ):
        click.echo(line, err=output == "-")


def _as_json(each: Reported) -> dict[str, Any]:
    difference = each.difference
    return {
        "origin": each.entry.origin,
        "rule": each.entry.rule,
        "keys": list(each.keys),
        "problem": each.entry.problem,
        "differs_from": each.differs_from,
        "differs_from_local": local_iso(each.differs_from),
        "runs_differ": difference is not None,
        "psched_runs": None if difference is None else difference.psched_runs,
        "remarks": list(each.entry.remarks),
        "unsupported": list(each.unsupported),
    }
