"""Reads CronJobs of Kubernetes from manifests.

Their rules are those of robfig/cron. A match of the day of the month or of the weekday is enough, unless one of these
fields is a bare `*`. A time that a clock change skips has no run, and a repeated time has two runs.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import replace
from datetime import date, timedelta
from typing import Any

import yaml

from psched.cron.zones import check_timezone, load_zone, offset_at, offset_of_wall
from psched.error_messages import shown
from psched.errors import ConfigError
from psched.importers.cron_from_fields import field_text
from psched.importers.entries import Definition, Following, Imported, ImportedEntry, duration_text
from psched.importers.run_time_comparison import following_of, problem_of
from psched.retry_wait import MAX_SECONDS
from psched.time_text import parse_seconds

DEFAULTS: Definition = {"catch_up": "latest", "max_attempts": 1}
"""The behaviour of Kubernetes: after missed runs it starts one Job. A Job has its own retries (backoffLimit)."""
_NOTES = (
    "Kubernetes also runs the CronJobs until they are suspended: set `suspend: true` once psched runs them",
    "psched creates each Job with kubectl and waits for its end: the host needs kubectl, and `env` may need KUBECONFIG",
)
_MACROS = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_WEEKDAYS = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
_BOUNDS = ((0, 59), (0, 23), (1, 31), (1, 12), (0, 6))
_NAMES: tuple[dict[str, int], ...] = (
    {},
    {},
    {},
    {name: number for number, name in enumerate(_MONTHS, 1)},
    {name: number for number, name in enumerate(_WEEKDAYS)},
)
_TERM = re.compile(r"(?P<low>[*?]|\w{1,9})(?:-(?P<high>\w{1,9}))?(?:/(?P<step>\d{1,9}))?")
_SPAN = re.compile(r"(\d+(?:\.\d+)?)(h|m|s)")
_LONGEST_SEARCH = 9 * 366
_EPOCH = date(1970, 1, 1)
_TOO_DEEP = "nested too deeply; give manifests, as kubectl prints them"
_COMMAND = """\
job={name}-$PSCHED_SCHEDULED_TIME
kubectl{options} get job "$job" >/dev/null 2>&1 || kubectl{options} create job "$job" --from={cronjob} || exit
while :; do
  ended=$(kubectl{options} get job "$job" -o 'jsonpath={{.status.conditions[?(@.status=="True")].type}}') || exit
  case $ended in
  *Complete*) exit 0 ;;
  *Failed*) exit 1 ;;
  esac
  sleep 5
done
"""


class _CronJobError(Exception):
    """Kubernetes would refuse the schedule, or psched has no rule for it. The message says why."""


def read_cronjobs(name: str, text: str, timezone: str) -> Imported:
    """Return the CronJobs in a file of manifests. `timezone`: for CronJobs without `timeZone`. Raises ConfigError."""
    try:
        found = [each for document in yaml.safe_load_all(text) for each in _cronjobs(document)]
    except yaml.MarkedYAMLError as error:
        problem = error.problem or error.context or ""
        if "nesting depth" in problem:  # PyYAML 6.0.4 and later; before, a RecursionError
            raise ConfigError(f"{name}: {_TOO_DEEP}") from None
        line = "" if error.problem_mark is None else f":{error.problem_mark.line + 1}"
        raise ConfigError(f"{name}{line}: not valid YAML: {problem}") from error
    except (yaml.YAMLError, ValueError) as error:  # ValueError: an impossible date or number
        raise ConfigError(f"{name}: not valid YAML: {' '.join(str(error).split())}") from error
    except RecursionError:
        raise ConfigError(f"{name}: {_TOO_DEEP}") from None
    if not found:
        raise ConfigError(
            f"{name}: no CronJob in this file; give manifests, as `kubectl get cronjobs -A -o yaml` prints them"
        )
    return Imported(
        scheduler="Kubernetes",
        timezone=timezone,
        entries=[_entry(name, each, timezone) for each in found],
        defaults=dict(DEFAULTS),
        notes=list(_NOTES),
    )


def _cronjobs(document: Any) -> Iterator[dict[str, Any]]:
    if isinstance(document, dict):
        if document.get("kind") == "CronJob":
            yield document
        items = document.get("items") if str(document.get("kind", "")).endswith("List") else None
        for item in items if isinstance(items, list) else ():
            yield from _cronjobs(item)


def _entry(file: str, manifest: dict[str, Any], timezone: str) -> ImportedEntry:
    metadata, spec = (found if isinstance(found := manifest.get(key), dict) else {} for key in ("metadata", "spec"))
    name, rule = str(metadata.get("name") or "cronjob"), str(spec.get("schedule") or "")
    namespace = metadata.get("namespace")
    key = name if namespace is None else f"{namespace}.{name}"
    entry = ImportedEntry(origin=f"{file}: CronJob {key}", rule=rule, name=key)
    remarks: list[str] = []
    try:
        when, following = _rule(rule, spec.get("timeZone"), timezone, remarks)
    except (_CronJobError, ConfigError) as error:
        return replace(entry, problem=str(error))
    if spec.get("suspend") is True:
        return replace(entry, problem="the CronJob is suspended; import it before you suspend it, or remove `suspend`")
    definition = {"type": "command", **when, **_policy(spec, remarks), "data": _data(name, namespace)}
    problem = problem_of(definition, timezone, {})
    if problem is not None:
        return replace(entry, problem=problem, following=following)
    if following is None:
        following = following_of([definition], timezone)
    return replace(entry, definitions=(definition,), following=following, remarks=tuple(remarks))


def _data(name: str, namespace: Any) -> Definition:
    options = "" if namespace is None else f" --namespace {shlex.quote(str(namespace))}"
    command = _COMMAND.format(name=shlex.quote(name), options=options, cronjob=shlex.quote(f"cronjob/{name}"))
    return {"shell": True, "command": command}


def _policy(spec: dict[str, Any], remarks: list[str]) -> Definition:
    found: Definition = {}
    deadline, concurrency = spec.get("startingDeadlineSeconds"), spec.get("concurrencyPolicy", "Allow")
    if isinstance(deadline, int):
        found["max_lateness"] = deadline
    if concurrency == "Forbid":
        found["overlap"] = "skip"
    elif concurrency == "Replace":
        remarks.append("concurrencyPolicy: Replace ends the Job that still runs; in psched the next run waits")
    else:
        remarks.append("concurrencyPolicy: Allow lets Jobs run at the same time; psched runs one at a time")
    return found


def _rule(text: str, zone: Any, timezone: str, remarks: list[str]) -> tuple[Definition, Following | None]:
    """Return the rule of a definition, and a function that finds the next time when Kubernetes would run it.

    Instead of the function, returns None for an interval (`@every`).
    """
    match = re.match(r"(?:CRON_)?TZ=(\S+)\s+(.*)", text)
    if match is not None:
        zone, text = zone or match[1], match[2]
    name = str(zone or timezone)
    check_timezone(name)
    own = {} if name == timezone else {"timezone": name}
    if text.startswith("@every "):
        spans = _SPAN.findall(text)
        seconds = sum(parse_seconds(f"{number}{unit}") for number, unit in spans)
        if not 1 <= seconds <= MAX_SECONDS or seconds != int(seconds):
            raise _CronJobError(f"{shown(text)}: psched's intervals must be whole seconds")
        remarks.append("Kubernetes counts the interval from the last run; psched counts it from 1970-01-01 00:00 UTC")
        return {"every": duration_text(seconds)}, None
    fields = _MACROS.get(text.lower(), text).lower().split()
    if len(fields) != 5:
        raise _CronJobError(f"schedule {text!r}: expected five fields, or one of {' '.join(_MACROS)} @every")
    values, stars = zip(*(_values(field, place) for place, field in enumerate(fields)), strict=True)
    is_either = not stars[2] and not stars[4]
    texts = [
        field_text(each, *_BOUNDS[place], star=fields[place][0] in "*?" and not (is_either and place in (2, 4)))
        for place, each in enumerate(values)
    ]
    return {"cron": " ".join(texts), **own}, _following(values, is_either, name)


def _values(text: str, place: int) -> tuple[frozenset[int], bool]:
    """Return the values of a field, and whether one of its terms is a bare `*` (also written `?` or `*/1`)."""
    low, high = _BOUNDS[place]
    found: set[int] = set()
    star = False
    for term in text.split(","):
        match = _TERM.fullmatch(term)
        if match is None:
            raise _CronJobError(f"{shown(term)}: Kubernetes refuses it")
        step = int(match["step"] or 1)
        is_any = match["low"] in "*?"
        first = low if is_any else _number(match["low"], place)
        last = high if is_any or (match["step"] and not match["high"]) else first
        if match["high"]:
            last = _number(match["high"], place)
        if not low <= first <= last <= high or step == 0:
            raise _CronJobError(f"{term!r} is out of range ({low} to {high})")
        star = star or (is_any and step == 1)
        found |= set(range(first, last + 1, step))
    return frozenset(found), star


def _number(text: str, place: int) -> int:
    if not text.isdecimal() and text not in _NAMES[place]:
        raise _CronJobError(f"{shown(text)}: Kubernetes refuses it")
    return int(text) if text.isdecimal() else _NAMES[place][text]


def _following(values: tuple[frozenset[int], ...], is_either: bool, timezone: str) -> Following:
    """Return a function that finds the next time when the clock of the zone matches the fields.

    `is_either`: whether a match of the day of the month or of the weekday is enough.
    """
    minutes, hours, days, months, weekdays = values
    zone = load_zone(timezone)

    def is_on(day: date) -> bool:
        hits = (day.day in days, day.isoweekday() % 7 in weekdays)
        return day.month in months and (any(hits) if is_either else all(hits))

    def following(after: int) -> int | None:
        instant = after // 60 * 60 + 60
        end = instant + _LONGEST_SEARCH * 86400
        while instant < end:
            wall = instant + offset_at(zone, instant)
            second = wall % 86400
            if not is_on(_EPOCH + timedelta(days=wall // 86400)):
                midnight = (wall // 86400 + 1) * 86400
                instant = max(instant + 60, midnight - offset_of_wall(zone, midnight))
            elif second // 3600 not in hours:
                instant += 3600 - second % 3600 if offset_at(zone, instant + 3600) == wall - instant else 60
            elif second % 3600 // 60 not in minutes:
                instant += 60
            else:
                return instant
        return None

    return following
