"""Reads the periodic tasks of Celery: `beat_schedule` of an application, and the tables of django-celery-beat.

Celery's own schedules compute when beat would send a task. This module calls these schedules as beat does: at least
every five minutes, each time with the time of the last run.
"""

from __future__ import annotations

import copy
import importlib
import json
import math
import sys
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

from psched.cron.zones import load_zone
from psched.error_messages import on_one_line, shown
from psched.errors import ConfigError
from psched.importers.arguments import data_of_call
from psched.importers.cron_from_fields import MatchingFields, definitions_of
from psched.importers.entries import Definition, Following, Imported, ImportedEntry, duration_text
from psched.importers.host_timezone import zone_name
from psched.importers.run_time_comparison import following_of, next_clock_change, problem_of

DEFAULTS: Definition = {"catch_up": "latest", "max_attempts": 1}
"""The behaviour of beat: it sends a missed task once, and does not retry a failed task."""
_LONGEST_SLEEP = 300
"""The maximum number of seconds from one check by beat to the next."""
_AROUND_CHANGE = 4 * 3600
"""Seconds before and after a clock change. In this time the next run depends on when beat checks the schedule."""
_LONGEST_SEARCH = 9 * 366 * 86400
"""The longest search, in seconds: from one 29th of February to the next across the year 2100."""
_NOTES = (
    "Celery's workers may run several runs of a task at a time; psched runs one occurrence of a schedule at a time",
    "the type of each schedule is the name of its task; the application (`app:`) needs a function for each type",
)
_FIELDS = {
    "minutes": "_orig_minute",
    "hours": "_orig_hour",
    "days": "_orig_day_of_month",
    "months": "_orig_month_of_year",
}


def read_celery(app: Any) -> Imported:
    """Return the entries of `beat_schedule`, and those in the tables of django-celery-beat if Django has this app.

    Raises ConfigError if `app` is not an application of Celery.
    """
    if not (hasattr(app, "conf") and hasattr(app, "finalize") and hasattr(app, "timezone")):
        raise ConfigError(f"expected an application of Celery, got {shown(app)}; name it as module:NAME")
    app.loader.import_default_modules()
    app.finalize()
    timezone = zone_name(app.timezone)
    calendars: dict[str, list[str]] = {}
    configured, stored = app.conf.beat_schedule or {}, _stored()
    entries = [
        _entry(app, f"beat_schedule[{name!r}]", str(name), found, timezone, calendars)
        for name, found in configured.items()
        if name not in stored  # the tables override `beat_schedule`
    ]
    entries += [
        _entry(app, f"PeriodicTask {name!r}", name, found, timezone, calendars) for name, found in stored.items()
    ]
    return Imported(
        scheduler="Celery",
        entries=entries,
        timezone=timezone,
        defaults=dict(DEFAULTS),
        calendars=calendars,
        notes=list(_NOTES) if entries else [],
    )


def _stored() -> dict[str, dict[str, Any]]:
    """Return the enabled tasks of django-celery-beat in the form of `beat_schedule`.

    Each task has one more entry, `definition`: psched's options for its schedule.
    """
    registry = sys.modules.get("django.apps")
    if registry is None or not registry.apps.ready or not registry.apps.is_installed("django_celery_beat"):
        return {}
    tasks = importlib.import_module("django_celery_beat.models").PeriodicTask.objects
    return {task.name: _of_model(task) for task in tasks.filter(enabled=True).order_by("name")}


def _of_model(task: Any) -> dict[str, Any]:
    definition: Definition = {}
    if task.one_off:
        definition["max_runs"] = 1
    if task.start_time is not None:
        definition["start"] = task.start_time.isoformat()
    if task.description:
        definition["description"] = task.description
    names = ("queue", "exchange", "routing_key", "priority")
    options = {name: value for name in names if (value := getattr(task, name)) is not None}
    return {
        "task": task.task,
        "schedule": task.schedule,
        "args": json.loads(task.args or "[]"),
        "kwargs": json.loads(task.kwargs or "{}"),
        "options": options | ({"expires": task.expires_} if task.expires_ else {}),
        "definition": definition,
    }


def _entry(
    app: Any, origin: str, name: str, found: Mapping[str, Any], timezone: str, calendars: dict[str, list[str]]
) -> ImportedEntry:
    given = found.get("schedule")
    entry = ImportedEntry(origin=origin, rule=on_one_line(str(given)), name=name)
    schedules = importlib.import_module("celery.schedules")
    schedule = schedules.maybe_schedule(given, bool(found.get("relative")), app=app)
    remarks: list[str] = []
    task = found.get("task")
    if not isinstance(task, str) or not task:
        return replace(entry, problem=f"`task` must be the name of a task, got {shown(task)}")
    if isinstance(schedule, schedules.solar):
        return replace(
            entry, problem="runs by the position of the sun, which psched does not support", following=_solar(schedule)
        )
    try:
        rules, following = _rules(schedules, schedule, timezone, calendars, remarks)
    except _ScheduleClassError as error:
        return replace(entry, problem=str(error))
    nowfun = getattr(schedule, "nowfun", None)
    # the nowfun of TzAwareCrontab is just the clock
    if nowfun is not None and getattr(nowfun, "__self__", None) is not schedule:
        remarks.append("`nowfun` is ignored: psched uses the clock of the database, in the zone of the schedule")
    registered = app.tasks.get(task)
    common = {
        **found.get("definition", {}),
        **_options(found.get("options") or {}, remarks),
        **data_of_call(getattr(registered, "run", None), found.get("args") or (), found.get("kwargs") or {}, remarks),
    }
    definitions = tuple({"type": task, **rule, **common} for rule in rules)
    problem = next(filter(None, (problem_of(definition, timezone, calendars) for definition in definitions)), None)
    if problem is not None:
        return replace(entry, problem=problem, following=following)
    if following is None:
        following = following_of(definitions, timezone, calendars)
    return replace(entry, definitions=definitions, following=following, remarks=tuple(remarks))


class _ScheduleClassError(Exception):
    """psched has no rule for the schedule. The message says why."""


def _rules(
    schedules: Any, schedule: Any, timezone: str, calendars: dict[str, list[str]], remarks: list[str]
) -> tuple[list[Definition], Following | None]:
    """Return the rules that replace a schedule of Celery, and a function for the times at which Celery runs the entry.

    The function is None if these times depend on when beat started.
    """
    if isinstance(schedule, schedules.crontab):
        zone = zone_name(schedule.tz)
        rules, needed = definitions_of(_matching(schedule))
        calendars |= needed
        own = {} if zone == timezone else {"timezone": zone}
        return [{**rule, **own} for rule in rules], _following(schedule, zone)
    if isinstance(schedule, schedules.schedule):
        seconds = schedule.seconds
        if seconds < 1 or seconds != int(seconds):
            raise _ScheduleClassError(f"an interval of {seconds:g} s: psched supports whole seconds only")
        if schedule.relative:
            if seconds == 86400:
                return [{"cron": "0 0 * * *"}], _following(schedule, timezone)
            return [{"every": duration_text(seconds)}], _following(schedule, timezone)
        remarks.append(
            "beat counts the interval from its start, then from the last run; psched counts from 1970-01-01 00:00 UTC"
        )
        return [{"every": duration_text(seconds)}], None
    if type(schedule).__name__ == "clocked":
        moment = schedule.clocked_time
        at = {"at": moment.replace(tzinfo=None, microsecond=0).isoformat(), "timezone": zone_name(moment.tzinfo)}
        return [at], None
    raise _ScheduleClassError(f"psched does not know schedules of the class {type(schedule).__name__}")


def _matching(schedule: Any) -> MatchingFields:
    stars = [name for name, field in _FIELDS.items() if str(getattr(schedule, field)).startswith("*")]
    return MatchingFields(
        minutes=schedule.minute,
        hours=schedule.hour,
        days=schedule.day_of_month,
        months=schedule.month_of_year,
        weekdays=schedule.day_of_week,
        stars=stars,
    )


def _following(schedule: Any, timezone: str) -> Following:
    """Return a function that takes the time when beat last sent the task, and returns when beat sends it next."""
    own, zone = copy.copy(schedule), load_zone(timezone)
    own.app = schedule.app  # a copy has no `app`

    def following(after: int) -> int | None:
        last = datetime.fromtimestamp(after, UTC).astimezone(zone)
        now = after
        while now < after + _LONGEST_SEARCH:
            own.nowfun = partial(datetime.fromtimestamp, now, zone)
            remaining: int = math.ceil(own.remaining_estimate(last).total_seconds())
            if remaining <= 0 and now > after:
                return now
            now = _next_look(now, now + max(remaining, 1), timezone)
        return None

    return following


def _next_look(now: int, then: int, timezone: str) -> int:
    """Return when beat checks the schedule next.

    The result is the time of a later check if all checks before it find nothing new.
    """
    change = next_clock_change(now - _AROUND_CHANGE, timezone)
    if change is None or then < change - _AROUND_CHANGE:
        return then
    return min(then, max(now + _LONGEST_SLEEP, change - _AROUND_CHANGE))


def _solar(schedule: Any) -> Following:
    own = copy.copy(schedule)

    def following(after: int) -> int | None:
        moment = datetime.fromtimestamp(after, UTC)
        own.nowfun = lambda: moment
        try:
            remaining: int = math.ceil(own.remaining_estimate(moment).total_seconds())
            return after + max(1, remaining)
        except Exception as error:  # noqa: BLE001 – `ephem` raises it where the sun does not rise
            del error
            return None

    return following


def _options(options: Mapping[str, Any], remarks: list[str]) -> Definition:
    """Return psched's options that replace options of `apply_async`."""
    found: Definition = {}
    for name, value in options.items():
        if name == "expires" and isinstance(value, int | float | timedelta):
            found["max_lateness"] = _seconds(value)
        elif name == "expires" and isinstance(value, datetime):
            found["end"] = (value if value.tzinfo else value.replace(tzinfo=UTC)).isoformat()
        elif name == "countdown" and isinstance(value, int | float):
            found["delay"] = value
        elif name in ("queue", "routing_key", "exchange"):
            remarks.append(f"{name}={value!r}: configure which workers run this type (docs/routing.md)")
        else:
            remarks.append(f"the option {name}={shown(value)} is not written")
    return found


def _seconds(value: float | timedelta) -> float:
    seconds = value.total_seconds() if isinstance(value, timedelta) else value
    return int(seconds) if seconds == int(seconds) else seconds
