"""Reads systemd timers, and the services that they start."""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Iterable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

from psched.cron.zones import load_zone
from psched.error_messages import shown
from psched.errors import ConfigError
from psched.importers.cron_from_fields import ALL_DAYS, MatchingFields, definitions_of, stretches_of_years
from psched.importers.entries import Definition, Imported, ImportedEntry, duration_text
from psched.importers.host_users import home_of
from psched.importers.run_time_comparison import problem_of
from psched.importers.systemd_calendar_event import ALL_YEARS, CalendarEvent, NotACalendarEventError, parse

DEFAULTS: Definition = {"catch_up": "none", "max_attempts": 1}
"""The behaviour of a timer without `Persistent=`: it does not make up for missed runs. A failed service is not retried.
"""
_NOTES = ("of a service, only commands, user, folder, environment and timeout are imported, but no other settings",)
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_MONOTONIC = ("OnActiveSec", "OnBootSec", "OnStartupSec", "OnUnitActiveSec", "OnUnitInactiveSec")
_SPAN = re.compile(r"(\d+(?:\.\d+)?)\s*([a-zA-Zµ]*)")
_UNITS = {
    **dict.fromkeys(("", "s", "sec", "second", "seconds"), 1.0),
    **dict.fromkeys(("m", "min", "minute", "minutes"), 60.0),
    **dict.fromkeys(("h", "hr", "hour", "hours"), 3600.0),
    **dict.fromkeys(("d", "day", "days"), 86400.0),
    **dict.fromkeys(("w", "week", "weeks"), 604800.0),
    **dict.fromkeys(("M", "month", "months"), 2629800.0),
    **dict.fromkeys(("y", "year", "years"), 31557600.0),
    **dict.fromkeys(("ms", "msec"), 0.001),
    **dict.fromkeys(("us", "usec", "µs"), 0.000001),
}
_MOST_STRETCHES = 10
"""The maximum number of spans of consecutive years in one calendar event."""
_LAST_DAYS = frozenset(range(1, 8))
_MONTHS_BY_LENGTH = {31: {1, 3, 5, 7, 8, 10, 12}, 30: {4, 6, 9, 11}, 28: {2}}

Settings = dict[str, list[str]]
"""The values of a unit by `Section.Name`, in order."""


class _UnreadableLineError(Exception):
    """A line of a service is not valid. The message says why."""


def read_timers(paths: Iterable[Path], timezone: str, begin: int) -> Imported:
    """Return the timers in these unit files and folders. Raises ConfigError.

    `timezone`: the zone of the host. `begin`: unix seconds; earlier years are left out.
    """
    units = {path.name: path for path in _unit_files(paths)}
    timers = [path for name, path in units.items() if name.endswith(".timer")]
    if not timers:
        raise ConfigError(
            f"no unit named *.timer in {', '.join(map(str, paths))}; name unit files, or folders of unit files"
        )
    calendars: dict[str, list[str]] = {}
    entries = [entry for timer in timers for entry in _entries(timer, units, timezone, begin, calendars)]
    return Imported(
        scheduler="systemd",
        timezone=timezone,
        entries=entries,
        defaults=dict(DEFAULTS),
        calendars=calendars,
        notes=list(_NOTES),
    )


def _unit_files(paths: Iterable[Path]) -> Iterator[Path]:
    for path in paths:
        if path.is_dir():
            yield from sorted(each for each in path.iterdir() if each.suffix in (".timer", ".service"))
        else:
            yield path
            service = path.with_suffix(".service")
            if path.suffix == ".timer" and service.exists():
                yield service


def read_unit(path: Path) -> Settings:
    """Return the settings of a unit and of the files in its folder `<unit>.d`. Raises ConfigError."""
    settings: Settings = {}
    folder = path.with_name(f"{path.name}.d")
    for file in (path, *sorted(folder.glob("*.conf"))):
        try:
            text = file.read_text(encoding="utf-8")
        except OSError as error:
            raise ConfigError(f"{file}: {error.strerror}; name a readable unit file") from error
        except UnicodeDecodeError as error:
            raise ConfigError(f"{file}: not UTF-8 (byte {error.start + 1})") from error
        section = ""
        for line in re.sub(r"\\\n[ \t]*", " ", text).splitlines():
            stripped = line.strip()
            if stripped.startswith("["):
                section = stripped.strip("[]")
            elif "=" in stripped and stripped[0] not in "#;":
                name, _, value = stripped.partition("=")
                values = settings.setdefault(f"{section}.{name.strip()}", [])
                values.append(value.strip())
                if not value.strip():  # an empty value removes the values before it
                    values.clear()
    return settings


def _entries(
    timer: Path, units: dict[str, Path], timezone: str, begin: int, calendars: dict[str, list[str]]
) -> Iterator[ImportedEntry]:
    settings = read_unit(timer)
    service = _last(settings, "Timer.Unit") or f"{timer.stem}.service"
    for name in _MONOTONIC:
        for value in settings.get(f"Timer.{name}", []):
            yield ImportedEntry(
                origin=timer.name,
                rule=f"{name}={value}",
                name=timer.stem,
                problem="counts from the start of the host, systemd or the unit, which psched cannot do; "
                "write a schedule with `every:` instead",
            )
    for value in settings.get("Timer.OnCalendar", []):
        entry = ImportedEntry(origin=timer.name, rule=f"OnCalendar={value}", name=timer.stem)
        remarks: list[str] = []
        try:
            common = _policy(settings, remarks) | _command(service, units, remarks)
            event = parse(value)
            rules = _rules(event, timezone, begin, calendars, remarks)
        except (NotACalendarEventError, _UnreadableLineError) as error:
            yield replace(entry, problem=str(error))
            continue
        definitions = tuple({"type": common["type"], **rule, **common} for rule in rules)
        problem = next(filter(None, (problem_of(definition, timezone, calendars) for definition in definitions)), None)
        if timer.stem.endswith("@"):
            problem = "the timer is a template; give its instances instead: links to it, such as backup@home.timer"
        if not definitions:
            problem = "the timer has no more runs"
        following = event.following(timezone)
        if problem is not None:
            yield replace(entry, problem=problem, following=following)
        else:
            yield replace(entry, definitions=definitions, following=following, remarks=tuple(remarks))


def _last(settings: Settings, name: str) -> str | None:
    values = settings.get(name)
    return values[-1] if values else None


def _rules(
    event: CalendarEvent, timezone: str, begin: int, calendars: dict[str, list[str]], remarks: list[str]
) -> list[Definition]:
    zone = {} if event.timezone in (None, timezone) else {"timezone": event.timezone}
    rules: list[Definition] = []
    for fields in _matching(event, remarks):
        found, needed = definitions_of(fields)
        rules += found
        calendars |= needed
    name = event.timezone or timezone
    stretches = stretches_of_years(event.years, datetime.fromtimestamp(begin, UTC).year - 1, max(ALL_YEARS))
    if len(stretches) > _MOST_STRETCHES:
        raise NotACalendarEventError("the list of years has too many gaps for psched's expressions")
    bounds: list[Definition] = [
        ({} if first is None else {"start": _new_year(first, name).isoformat()})
        | ({} if last is None else {"end": (_new_year(last + 1, name) - timedelta(seconds=1)).isoformat()})
        for first, last in stretches
    ]
    return [rule | bound | zone for bound in bounds for rule in rules]


def _new_year(year: int, timezone: str) -> datetime:
    return datetime(year, 1, 1, tzinfo=load_zone(timezone))


def _matching(event: CalendarEvent, remarks: list[str]) -> Iterator[MatchingFields]:
    base = MatchingFields(
        seconds=event.seconds,
        minutes=event.minutes,
        hours=event.hours,
        months=event.months,
        days=event.days,
        weekdays=event.weekdays,
        stars=event.stars,
    )
    if not event.from_end:
        yield base
    elif set(event.days) == {1}:
        yield replace(base, days=(), last_day=True)
    elif set(event.days) == _LAST_DAYS:
        yield replace(base, days=(), nth_weekdays=[(weekday, -1) for weekday in event.weekdays])
    else:
        for length, months in _MONTHS_BY_LENGTH.items():
            those = months & set(event.months)
            days = {length + 1 - day for day in event.days} & ALL_DAYS
            if those and days:
                yield replace(base, months=those, days=days)
                if length == 28:
                    remarks.append(
                        "in February of leap years systemd counts the days from the 29th, but psched from the 28th"
                    )


def _policy(settings: Settings, remarks: list[str]) -> Definition:
    found: Definition = {}
    if _is_true(_last(settings, "Timer.Persistent")):
        found["catch_up"] = "latest"
    spread = _span(_last(settings, "Timer.RandomizedDelaySec"))
    if spread:
        found["spread"] = duration_text(int(spread) or 1)
        if not _is_true(_last(settings, "Timer.FixedRandomDelay")):
            remarks.append(
                "systemd draws a random delay of up to RandomizedDelaySec= for each run; psched derives a fixed delay "
                "from the key"
            )
    return found


def _is_true(value: str | None) -> bool:
    return (value or "").lower() in ("1", "yes", "y", "true", "t", "on")


def _span(text: str | None) -> float | None:
    """Return a time span in seconds; None for an empty string and for infinity."""
    if not text or text.strip() == "infinity":
        return None
    parts = _SPAN.findall(text)
    seconds = sum(float(number) * _UNITS.get(unit, _UNITS.get(unit.lower(), 1.0)) for number, unit in parts)
    return seconds if math.isfinite(seconds) else None


def _command(service: str, units: dict[str, Path], remarks: list[str]) -> Definition:
    """Return the type and the data of a schedule that runs the commands of a service."""
    if not service.endswith(".service"):
        remarks.append(f"the timer starts {service}, which is not a service: psched runs systemctl start {service}")
    elif service not in units:
        remarks.append(
            f"{service} is not among the unit files: psched starts it with systemctl, on the host that runs the task"
        )
    if service not in units or not service.endswith(".service"):
        return {"type": "command", "data": {"argv": ["systemctl", "start", service]}}
    settings = read_unit(units[service])
    user = _last(settings, "Service.User")
    environment = {"PATH": _PATH, **_environment(settings)}
    data = _program(settings, environment, service, remarks)
    home = None if user is None else home_of(user)
    folder = _last(settings, "Service.WorkingDirectory")
    if folder:
        folder = folder.removeprefix("-")
        data["cwd"] = folder if folder != "~" else home or "/"
    else:
        data["cwd"] = "/"
    if user is not None:
        environment |= {"USER": user, "LOGNAME": user, **({} if home is None else {"HOME": home})}
        remarks.append(f"the service runs as {user}: run the type command.{user} in a daemon of this user")
    if settings.get("Service.EnvironmentFile"):
        remarks.append(
            f"EnvironmentFile={' '.join(settings['Service.EnvironmentFile'])} is not read: add its variables to `env`"
        )
    data["env"] = environment
    timeout = _span(_last(settings, "Service.TimeoutStartSec")) or _span(_last(settings, "Service.RuntimeMaxSec"))
    if timeout:
        data["timeout"] = duration_text(int(timeout))
    known = (_last(settings, "Service.SuccessExitStatus") or "").split()
    statuses = [int(each) for each in known if re.fullmatch(r"\d{1,3}", each)]
    if statuses:
        data["ok_exit_codes"] = [0, *statuses]
    return {"type": "command" if user is None else f"command.{user}", "data": data}


def _words(line: str) -> list[str]:
    try:
        return shlex.split(line)
    except ValueError as error:
        raise _UnreadableLineError(f"the service has a line that cannot be read: {error}: {shown(line)}") from error


def _environment(settings: Settings) -> dict[str, str]:
    assignments = (each for line in settings.get("Service.Environment", []) for each in _words(line))
    return {name: value for name, _, value in (each.partition("=") for each in assignments)}


def _program(settings: Settings, environment: dict[str, str], service: str, remarks: list[str]) -> Definition:
    lines = [*settings.get("Service.ExecStartPre", []), *settings.get("Service.ExecStart", [])]
    commands = [_arguments(line, environment, service, remarks) for line in lines]
    if not commands:
        remarks.append(f"{service} has no ExecStart=: psched starts it with systemctl")
        return {"argv": ["systemctl", "start", service]}
    if len(commands) == 1 and not commands[0][1]:
        return {"argv": commands[0][0]}
    texts = [f"{{ {shlex.join(words)} || :; }}" if may_fail else shlex.join(words) for words, may_fail in commands]
    return {"shell": True, "command": " && ".join(texts)}


def _arguments(line: str, environment: dict[str, str], service: str, remarks: list[str]) -> tuple[list[str], bool]:
    """Return the words of a command line, and whether the command may fail."""
    text = line.lstrip("@-:+!|")
    prefixes = line[: len(line) - len(text)]
    if set(prefixes) & set("@+!|"):
        remarks.append(f"the prefix {prefixes!r} of ExecStart= is ignored")
    stem = service.removesuffix(".service")
    prefix, _, instance = stem.partition("@")
    specifiers = {"%n": service, "%N": stem, "%p": prefix, "%i": instance, "%I": instance, "%%": "%"}
    words = [re.sub("%.", lambda match: specifiers.get(match[0], match[0]), word) for word in _words(text)]
    if ":" in prefixes:
        return words, "-" in prefixes
    expanded = [part for word in words for part in _expanded(word, environment, remarks)]
    return expanded, "-" in prefixes


def _expanded(word: str, environment: dict[str, str], remarks: list[str]) -> list[str]:
    """Replace variables as systemd does. `$NAME` becomes several words, `${NAME}` a part of a word."""
    if re.fullmatch(r"\$\w+", word):
        if word[1:] in environment:
            return environment[word[1:]].split()
        remarks.append(f"the variable {shown(word)} is unknown")
        return []

    def value(match: re.Match[str]) -> str:
        if match[0] == "$$":
            return "$"
        if match[1] not in environment:
            remarks.append(f"the variable {shown(match[0])} is unknown")
        return environment.get(match[1], "")

    return [re.sub(r"\$\$|\$\{(\w+)\}", value, word)]
