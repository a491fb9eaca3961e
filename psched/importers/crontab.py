"""Reads crontabs: of users (`crontab -l`), /etc/crontab and /etc/cron.d.

The rules are those of Debian's cron, as in psched's own expressions. CRON_TZ, RANDOM_DELAY and `0~59` are features of
cronie, the cron of Fedora, Red Hat, Arch and SUSE.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from psched.importers.entries import Definition, Imported, ImportedEntry
from psched.importers.host_users import home_of, own_user
from psched.importers.program_names import name_of_shell_command
from psched.importers.run_time_comparison import following_of, problem_of

_SYSTEM = (Path("/etc/crontab"), Path("/etc/cron.d"))
_SPOOLS = tuple(map(Path, ("/var/spool/cron/crontabs", "/var/spool/cron/tabs", "/var/spool/cron")))
"""Folders of crontabs on Debian, SUSE and Red Hat. The name of each file is the name of its user."""
_ASSIGNMENT = re.compile(r"""\s*(?:(?P<q>["'])(?P<quoted>.*?)(?P=q)|(?P<name>[^\s=]+))\s*=\s*(?P<value>.*?)\s*""")
_NUMBER = r"(?:[0-9]{1,2}|[A-Za-z]{3})"
_TERM = re.compile(rf"(?:\*|{_NUMBER}-{_NUMBER})(?:/[0-9]+)?|{_NUMBER}")
_STEP_OF_ONE = re.compile(rf"(?:^|,){_NUMBER}/")
_RANDOM = re.compile(r"(?P<low>[0-9]{0,9})~(?P<high>[0-9]{0,9})")
_MACROS = ("@yearly", "@annually", "@monthly", "@weekly", "@daily", "@midnight", "@hourly")
_END_OF_INPUT = "END_OF_INPUT"

DEFAULTS: Definition = {"catch_up": "none", "max_attempts": 1}
"""The behaviour of cron: it does not make up for missed runs, and does not retry."""
NOTES = (
    "cron starts a job while its last run is still in progress; psched runs one at a time, and the next one waits",
    "cron mails the output of a job (MAILTO); psched logs it, and keeps it with `keep_output: true` (docs/commands.md)",
)


@dataclass(frozen=True)
class Job:
    """A line that runs a command. `when`: its five fields, or a word such as `@daily`."""

    number: int
    when: str
    user: str | None
    command: str
    environment: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Unreadable:
    """A line that cron would refuse."""

    number: int
    line: str
    reason: str


def has_user_column(name: str) -> bool:
    """Return whether a file of this name is a system crontab, whose lines have a user before the command."""
    path = Path(name)
    return path in _SYSTEM or path.parent in _SYSTEM or path.parent.name == "cron.d"


def read_crontab(name: str, text: str, user_column: bool, timezone: str) -> Imported:
    """Return the jobs of a crontab. `timezone`: the zone of its host."""
    user = Path(name).name if Path(name).parent in _SPOOLS else None
    lines = list(parse(text, user_column))
    entries = [_entry(name, line, user, timezone) for line in lines]
    notes = list(NOTES) if lines else []
    users = sorted({line.user for line in lines if isinstance(line, Job) and line.user} | ({user} if user else set()))
    if users and lines:
        types = ", ".join(f"command.{each}" for each in users)
        notes.append(
            f"psched runs a program as the user of its daemon: run these types in daemons of their own users ({types})"
        )
    return Imported(scheduler="cron", timezone=timezone, entries=entries, defaults=dict(DEFAULTS), notes=notes)


def parse(text: str, user_column: bool) -> Iterator[Job | Unreadable]:
    """Yield each line except empty lines, comments and assignments."""
    environment: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), 1):
        stripped = line.strip(" \t")
        if not stripped or stripped.startswith("#"):
            continue
        assignment = _ASSIGNMENT.fullmatch(line)
        if assignment is not None and not _starts_like_a_job(stripped):
            variable = assignment["name"] if assignment["q"] is None else assignment["quoted"]
            environment = environment | {variable: _unquoted(assignment["value"])}
            continue
        yield _job(number, stripped, user_column, environment)


def _starts_like_a_job(line: str) -> bool:
    return line[0] in "@*-~" or line[0].isdigit()


def _unquoted(value: str) -> str:
    return value[1:-1] if len(value) > 1 and value[0] == value[-1] and value[0] in "\"'" else value


def _job(number: int, line: str, user_column: bool, environment: dict[str, str]) -> Job | Unreadable:
    count = 1 if line.startswith("@") else 5
    words = line.split(None, count + user_column)
    if len(words) <= count + user_column:
        missing = "a user and a command" if user_column else "a command"
        expected = f"{'a word such as @daily' if count == 1 else 'five fields'} and {missing}"
        return Unreadable(number, line, f"expected {expected}")
    when = " ".join(words[:count]).removeprefix("-")  # SUSE: a leading - means that the run is not logged
    user = words[count] if user_column else None
    if user is not None:
        user = user.partition(":")[0]  # FreeBSD: a group or login class follows the user
    return Job(number, when, user, words[-1], environment)


def _entry(file: str, line: Job | Unreadable, spool_user: str | None, timezone: str) -> ImportedEntry:
    origin = f"{file}:{line.number}"
    if isinstance(line, Unreadable):
        return ImportedEntry(origin=origin, rule=line.line, name="unreadable", problem=line.reason)
    name = name_of_shell_command(line.command)
    entry = ImportedEntry(origin=origin, rule=line.when, name=name)
    remarks: list[str] = []
    zone = line.environment.get("CRON_TZ", timezone)
    if zone != timezone:
        remarks.append(f"CRON_TZ={zone} is applied, as cronie does; Debian's cron ignores it")
    spread, expression = _without_random(line, remarks)
    problem = _refusal(expression)
    user = line.user or spool_user
    definition: Definition = {"type": "command" if user is None else f"command.{user}", "cron": expression}
    if zone != timezone:
        definition["timezone"] = zone
    if spread:
        definition["spread"] = spread
    problem = problem or problem_of(definition, timezone, {})
    if problem is not None:
        return replace(entry, problem=problem)
    definition["data"] = data_of(line, user, remarks)
    return replace(
        entry,
        definitions=(definition,),
        following=following_of([definition], timezone),  # psched's expressions have the rules of Debian's cron
        remarks=tuple(remarks),
    )


def _refusal(when: str) -> str | None:
    """Return why cron refuses this rule, or why psched cannot run it; None if both can run it."""
    if when.startswith("@"):
        if when.lower() == "@reboot":
            return "runs when the host starts, which psched cannot do; start it with systemd"
        return None if when.lower() in _MACROS else f"expected one of @reboot {' '.join(_MACROS)}"
    for text in when.split():
        if _STEP_OF_ONE.search(text):
            return f"{text!r}: Debian's cron refuses a step without a range, and other crons ignore it; write a range"
        if not all(map(_TERM.fullmatch, text.split(","))):
            return f"{text!r}: cron refuses it"
    return None


def _without_random(line: Job, remarks: list[str]) -> tuple[str | None, str]:
    """Return the spread that replaces cronie's random minutes (`0~59`, RANDOM_DELAY), and the rule without them.

    The spread is None if the rule has no random minutes.
    """
    fields = line.when.split()
    match = _RANDOM.fullmatch(fields[0])
    if match is not None:
        low, high = int(match["low"] or 0), int(match["high"] or 59)
        if low < high <= 59:
            remarks.append(
                f"cronie draws a random minute of {fields[0]} at each start; psched derives a fixed minute from the key"
            )
            return f"{high - low + 1}m", " ".join((str(low), *fields[1:]))
    delay = line.environment.get("RANDOM_DELAY", "0")
    if re.fullmatch(r"[0-9]{1,5}", delay) and int(delay):
        remarks.append(
            f"cronie draws a random delay of up to {delay} minutes at each start; psched derives a fixed delay from "
            "the key"
        )
        return f"{int(delay)}m", line.when
    return None, line.when


def data_of(job: Job, user: str | None, remarks: list[str]) -> Definition:
    """Return the data with which `psched.handlers.command` runs the job in the same way as cron."""
    shell = job.environment.get("SHELL", "/bin/sh")
    command, given = _split_input(job.command)
    if given is not None:
        end = _END_OF_INPUT
        while end in given:
            end += "_"
        text = given if given.endswith("\n") else f"{given}\n"
        command = f"{{ {command}\n}} <<'{end}'\n{text}{end}\n"
    data: Definition = {"shell": True, "command": command} if shell == "/bin/sh" else {"argv": [shell, "-c", command]}
    login = user or own_user()
    home = job.environment.get("HOME") or home_of(login)
    if home is None:
        remarks.append(
            f"{login} is not a user of this host: set `cwd` and HOME to their home folder, where cron runs the job"
        )
    else:
        data["cwd"] = home
    cron_variables = ("CRON_TZ", "RANDOM_DELAY", "MAILTO", "MAILFROM")
    data["env"] = {
        "SHELL": shell,
        "PATH": "/usr/bin:/bin",
        **({} if home is None else {"HOME": home}),
        **{name: value for name, value in job.environment.items() if name not in cron_variables},
        "LOGNAME": login,
    }
    return data


def _split_input(command: str) -> tuple[str, str | None]:
    r"""Return the command and its standard input.

    The first `%` ends the command, each further `%` ends a line; `\%` is `%`.
    """
    first, *rest = (part.replace("\\%", "%") for part in re.split(r"(?<!\\)%", command))
    return first, "\n".join(rest) if rest else None
