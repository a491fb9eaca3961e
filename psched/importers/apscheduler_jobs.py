"""Reads the jobs of a scheduler of APScheduler 3.

The times of their runs are computed by APScheduler's own triggers.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from psched.error_messages import shown
from psched.errors import ConfigError
from psched.importers.arguments import data_of_call
from psched.importers.cron_from_fields import MatchingFields, definitions_of, stretches_of_years
from psched.importers.entries import Definition, Following, Imported, ImportedEntry, duration_text
from psched.importers.host_timezone import zone_name
from psched.importers.program_names import plain_name
from psched.importers.run_time_comparison import problem_of

DEFAULTS: Definition = {"catch_up": "none", "overlap": "skip", "max_attempts": 1}
"""The behaviour of a job without options: it runs neither late nor beside its previous run, and is not retried."""
_NOTES = (
    "the type of each schedule is the name of its function; the application (`app:`) needs a function for each type",
)
_LIMITS = {
    "month": (1, 12),
    "day": (1, 31),
    "day_of_week": (0, 6),
    "hour": (0, 23),
    "minute": (0, 59),
    "second": (0, 59),
}
_MOST_STEPS = 2000
"""How many runs of one trigger are searched for a run that all triggers have in common."""
_LAST_YEAR = 9999
_MOST_YEARS = 10
"""The maximum number of spans of consecutive years in one trigger."""
_LAST_POSITION = 5
_SHORTEST_GRACE = 60
"""Seconds. A job with a shorter misfire_grace_time gets `catch_up: none`: runs more than a minute late are skipped."""
_GENERATED_ID = re.compile(r"[0-9a-f]{32}")


class _TriggerError(Exception):
    """psched has no rule for the trigger. The message says why."""


def read_apscheduler(scheduler: Any, timezone: str, begin: int) -> Imported:
    """Return the jobs that were added to the scheduler, and those in its job stores.

    `timezone`: the zone of the file of schedules. `begin`: rules that end before this time are left out. Raises
    ConfigError if `scheduler` is not a scheduler of APScheduler 3.
    """
    if not (hasattr(scheduler, "get_jobs") and hasattr(scheduler, "add_jobstore")):
        raise ConfigError(f"expected a scheduler of APScheduler 3, got {shown(scheduler)}; name it as module:NAME")
    defaults = getattr(scheduler, "_job_defaults", {})
    calendars: dict[str, list[str]] = {}
    entries = [_entry(job, defaults, timezone, begin, calendars) for job in _jobs(scheduler)]
    notes = list(_NOTES) if entries else []
    return Imported(
        scheduler="APScheduler",
        timezone=timezone,
        entries=entries,
        defaults=dict(DEFAULTS),
        calendars=calendars,
        notes=notes,
    )


def _jobs(scheduler: Any) -> Iterator[Any]:
    """Yield the jobs of the scheduler and of its job stores.

    The stores are read separately, because a scheduler that was not started returns only the jobs added to it.
    """
    found = scheduler.get_jobs()
    yield from found
    if not scheduler.running:
        known = {job.id for job in found}
        for alias, store in scheduler._jobstores.items():
            store.start(scheduler, alias)
            yield from (job for job in store.get_all_jobs() if job.id not in known)


def _entry(
    job: Any, defaults: Mapping[str, Any], timezone: str, begin: int, calendars: dict[str, list[str]]
) -> ImportedEntry:
    trigger = job.trigger
    function = job.func_ref or getattr(job, "name", "job")
    type_ = function.replace(":", ".")
    key = type_.rpartition(".")[2] if _GENERATED_ID.fullmatch(job.id) else job.id
    entry = ImportedEntry(origin=f"job {job.id}", rule=str(trigger), name=key if key.isprintable() else plain_name(key))
    if getattr(job, "next_run_time", trigger) is None:
        return replace(entry, problem="the job is paused; resume it before the import")
    remarks: list[str] = []
    following = following_of_trigger(trigger)
    try:
        rules = [rule for rule in _rules(trigger, timezone, begin, calendars, remarks) if not _has_ended(rule, begin)]
    except _TriggerError as error:
        return replace(entry, problem=str(error), following=following)
    common = _options(job, defaults, remarks)
    common |= data_of_call(job.func, job.args, job.kwargs, remarks)
    definitions = tuple({"type": type_, **rule, **common} for rule in rules)
    problem = next(filter(None, (problem_of(definition, timezone, calendars) for definition in definitions)), None)
    if not definitions:
        problem = "the job has no more runs"
    if problem is not None:
        return replace(entry, problem=problem, following=following)
    return replace(entry, definitions=definitions, following=following, remarks=tuple(remarks))


def _has_ended(rule: Definition, begin: int) -> bool:
    return "end" in rule and datetime.fromisoformat(rule["end"]).timestamp() < begin


def _kind(trigger: Any) -> str:
    return type(trigger).__name__


def _without_jitter(trigger: Any) -> Any:
    own = copy.copy(trigger)
    if hasattr(own, "jitter"):
        own.jitter = None
    if hasattr(own, "triggers"):
        own.triggers = [_without_jitter(part) for part in own.triggers]
    return own


def following_of_trigger(trigger: Any) -> Following:
    """Return a function that finds the next time when a trigger fires, without the trigger's jitter."""
    if _kind(trigger) == "DateTrigger":
        date = int(trigger.run_date.timestamp())
        return lambda after: date if date > after else None
    if _kind(trigger) == "AndTrigger":
        return _all_of([following_of_trigger(part) for part in trigger.triggers])
    own = _without_jitter(trigger)
    counts_from_last_run = _kind(trigger) == "OrTrigger" and any(
        _kind(part) == "IntervalTrigger" for part in trigger.triggers
    )

    def following(after: int) -> int | None:
        moment = datetime.fromtimestamp(after, UTC)
        if counts_from_last_run:
            found = own.get_next_fire_time(moment, moment)
        else:  # given a last run, a CronTrigger ignores its own `start_date`
            found = own.get_next_fire_time(None, moment + timedelta(seconds=1))
        return None if found is None else int(found.timestamp())

    return following


def _all_of(parts: Sequence[Following]) -> Following:
    """Return a function that finds the next run that all `parts` have in common.

    Without a common run, APScheduler's own search would end only in the year 9999.
    """

    def following(after: int) -> int | None:
        for _ in range(_MOST_STEPS):
            found = [part(after) for part in parts]
            if None in found:
                return None
            times = [time for time in found if time is not None]
            if min(times) == max(times):
                return times[0]
            after = max(times) - 1
        return None

    return following


def _rules(
    trigger: Any, timezone: str, begin: int, calendars: dict[str, list[str]], remarks: list[str]
) -> Iterator[Definition]:
    """Yield the rules that replace a trigger. Raises _TriggerError."""
    kind = _kind(trigger)
    jitter = getattr(trigger, "jitter", None)
    spread: Definition = {}
    if jitter:
        spread = {"spread": jitter}
        remarks.append(
            f"APScheduler draws a random jitter of up to {jitter} s for each run; psched derives it from the key"
        )
    if kind == "CronTrigger":
        for rule in _of_fields(trigger, begin, calendars):
            yield rule | spread | _zone(trigger.timezone, timezone)
    elif kind == "IntervalTrigger":
        yield _of_interval(trigger, begin) | spread
    elif kind == "DateTrigger":
        if trigger.run_date.timestamp() >= begin:
            yield _of_date(trigger.run_date, timezone)
    elif kind == "OrTrigger":
        for part in trigger.triggers:
            for rule in _rules(part, timezone, begin, calendars, remarks):
                yield spread | rule
    elif kind == "AndTrigger":
        raise _TriggerError("psched cannot require several triggers at once; replace AndTrigger with one trigger")
    else:
        raise _TriggerError(f"psched does not know triggers of the class {kind}")


def _zone(zone: Any, timezone: str) -> Definition:
    name = zone_name(zone)
    return {} if name == timezone else {"timezone": name}


def _of_date(moment: datetime, timezone: str) -> Definition:
    return {"at": moment.replace(tzinfo=None, microsecond=0).isoformat(), **_zone(moment.tzinfo, timezone)}


def _of_interval(trigger: Any, begin: int) -> Definition:
    seconds = trigger.interval_length
    if seconds != int(seconds) or seconds < 1:
        raise _TriggerError(f"an interval of {seconds:g} s: psched supports whole seconds only")
    phase = int(trigger.start_date.timestamp()) % int(seconds)
    every = duration_text(seconds) + (f" phase {duration_text(phase)}" if phase else "")
    return {"every": every, **_bounds(trigger.start_date, trigger.end_date, begin)}


def _bounds(start: datetime | None, end: datetime | None, begin: int) -> Definition:
    bounds: Definition = {}
    if start is not None and start.timestamp() > begin:
        bounds["start"] = start.replace(microsecond=0).isoformat()
    if end is not None:
        bounds["end"] = end.replace(microsecond=0).isoformat()
    return bounds


def _of_fields(trigger: Any, begin: int, calendars: dict[str, list[str]]) -> Iterator[Definition]:
    fields = {field.name: field for field in trigger.fields}
    if str(fields["week"]) != "*":
        raise _TriggerError(
            "`week` restricts the trigger to weeks of the year, which psched's expressions do not support"
        )
    values = {name: _values(fields[name], *limits) for name, limits in _LIMITS.items()}
    days = [type(expression).__name__ for expression in fields["day"].expressions]
    matching = MatchingFields(
        seconds=values["second"],
        minutes=values["minute"],
        hours=values["hour"],
        days=values["day"],
        last_day="LastDayOfMonthExpression" in days,
        nth_weekdays=_positions(fields["day"]),
        months=values["month"],
        weekdays=[(weekday + 1) % 7 for weekday in values["day_of_week"]],
        stars=[f"{name}s" for name, field in fields.items() if str(field).startswith("*")],
    )
    rules, needed = definitions_of(matching)
    calendars |= needed
    for start, end in _years(fields["year"], trigger, begin):
        for rule in rules:
            yield rule | _bounds(start, end, begin)


def _values(field: Any, low: int, high: int) -> set[int]:
    """Return the numbers that a field allows. Ignores nth weekdays and the last day of the month."""
    found: set[int] = set()
    for each in field.expressions:
        kind = type(each).__name__
        if kind == "AllExpression":
            found |= set(range(low, high + 1, each.step or 1))
        elif kind.endswith("RangeExpression"):
            last = each.last if each.last is not None else (each.first if each.step is None else high)
            found |= set(range(each.first, last + 1, each.step or 1))
    return found


def _positions(field: Any) -> list[tuple[int, int]]:
    return [
        ((each.weekday + 1) % 7, -1 if each.option_num == _LAST_POSITION else each.option_num + 1)
        for each in field.expressions
        if type(each).__name__ == "WeekdayPositionExpression"
    ]


def _years(field: Any, trigger: Any, begin: int) -> Iterator[tuple[datetime | None, datetime | None]]:
    """Yield the first and the last time of each span of consecutive years. None: no limit. Raises _TriggerError."""
    start, end = trigger.start_date, trigger.end_date
    if str(field) == "*":
        yield start, end
        return
    this_year = datetime.fromtimestamp(begin, UTC).year - 1
    stretches = stretches_of_years(_values(field, 1970, _LAST_YEAR), this_year, _LAST_YEAR)
    if len(stretches) > _MOST_YEARS:
        raise _TriggerError(f"year={str(field)!r} has too many gaps for psched's expressions")
    for from_year, to_year in stretches:
        first, last = start, end
        if from_year is not None:
            first = datetime(from_year, 1, 1, tzinfo=trigger.timezone)
            first = max(first, start or first)
        if to_year is not None:
            last = datetime(to_year, 12, 31, 23, 59, 59, tzinfo=trigger.timezone)
            last = min(last, end or last)
        yield first, last


def _options(job: Any, defaults: Mapping[str, Any], remarks: list[str]) -> Definition:
    def option(name: str, default: Any) -> Any:
        return getattr(job, name, defaults.get(name, default))

    found: Definition = {}
    grace, instances = option("misfire_grace_time", 1), option("max_instances", 1)
    if grace is None or grace >= _SHORTEST_GRACE:
        found["catch_up"] = "latest" if option("coalesce", True) else "all"
        if grace is not None:
            found["max_lateness"] = grace
    if instances != 1:
        found["overlap"] = "wait"
        remarks.append(f"max_instances={instances}: psched runs only one occurrence of a schedule at a time")
    executor = option("executor", "default")
    if executor != "default":
        remarks.append(f"executor={executor!r}: configure which workers run this type (docs/routing.md)")
    return found
