"""psched calendar: named calendars. A schedule that excludes a calendar does not run on the calendar's days."""

from __future__ import annotations

from itertools import islice

import click

from psched.cli.formatting import Fields, fields_of, json_lines, printable, write, write_object
from psched.cli.opened_sections import opened
from psched.cli.options import Chosen, common_options
from psched.cli.options_before_command import CommandGroup
from psched.model import Calendar
from psched.schedules.calendar_collection import CalendarCollection

_MOST_USERS = 1000
"""The maximum number of keys of schedules that `show` prints."""


@click.group(cls=CommandGroup)
@common_options()
def calendar(chosen: Chosen) -> None:
    """Commands on named calendars. A calendar is a set of days without occurrences.

    `psched add --exclude NAME` and `modify --exclude NAME` make a schedule exclude the days of a calendar.
    """


@calendar.command("set")
@click.argument("name")
@click.argument("days", nargs=-1, required=True)
@common_options()
def set_(chosen: Chosen, name: str, days: tuple[str, ...]) -> None:
    """Create a calendar, or replace its days.

    DAYS are all days of the calendar: dates such as 2026-12-25, and weekdays (mon tue wed thu fri sat sun). The next
    occurrences of schedules that exclude the calendar change immediately. Occurrences that are already due do not
    change. If the command is interrupted, repeat it.

    --json prints an object with name, version, dates and weekdays.
    """
    with opened(chosen) as schedules:
        found = schedules.calendars.set(name, days)
    if chosen.json:
        write_object(fields_of(found), ())


@calendar.command("list")
@common_options()
def list_(chosen: Chosen) -> None:
    """List the calendars.

    --json prints one array of objects with name, version (which grows with each change), dates and weekdays.
    """
    with opened(chosen) as schedules:
        found = schedules.calendars.list()
    if chosen.json:
        write(json_lines(map(fields_of, found)))
    else:
        write(f"{printable(each.name)}\t{_summary(each)}" for each in found)


@calendar.command()
@click.argument("name")
@common_options()
def show(chosen: Chosen, name: str) -> None:
    """Show the days of a calendar, and the schedules that exclude it.

    --json prints one object with name, version, dates, weekdays and schedules (up to 1,000 keys).
    """
    with opened(chosen) as schedules:
        found = _found(schedules.calendars, name)
    if chosen.json:
        write_object(found, ())
        return
    write([f"{printable(name)}, version {found['version']}"])
    write(printable(f"  {day}") for day in (*found["weekdays"], *found["dates"]))
    write(printable(f"  excluded by {key}") for key in found["schedules"])


def _found(calendars: CalendarCollection, name: str) -> Fields:
    return fields_of(calendars[name]) | {"schedules": list(islice(calendars.users(name), _MOST_USERS))}


@calendar.command()
@click.argument("name")
@common_options()
def delete(chosen: Chosen, name: str) -> None:
    """Delete a calendar that no schedule excludes."""
    with opened(chosen) as schedules:
        schedules.calendars.delete(name)


def _summary(each: Calendar) -> str:
    days = f"{len(each.dates)} dates" + (f", and every {', '.join(each.weekdays)}" if each.weekdays else "")
    return f"version {each.version}: {days}"
