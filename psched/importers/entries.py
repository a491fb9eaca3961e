"""The result of an importer: the entries of another scheduler, each with the schedules of psched that replace it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from psched.schedules_file.writer import duration

Definition = dict[str, Any]
"""A schedule as the file of schedules has it: type, cron, every or at, and options."""
Following = Callable[[int], int | None]
"""Returns the first run after an instant, or None. Both are unix seconds."""


@dataclass(frozen=True, kw_only=True)
class ImportedEntry:
    """One entry of another scheduler.

    `origin`: where it stands, such as `crontab:12`. `rule`: its rule as written there. `name`: what its key is made of.
    `definitions`: the schedules that stand for it, none if there is a `problem`. `following`: when the other scheduler
    runs it; None where that is no question of time. `remarks`: what differs beside the times.
    """

    origin: str
    rule: str
    name: str
    definitions: tuple[Definition, ...] = ()
    following: Following | None = None
    remarks: tuple[str, ...] = ()
    problem: str | None = None


@dataclass(frozen=True, kw_only=True)
class Imported:
    """The entries of one import.

    `timezone`: of the definitions that have none. `notes` are about all entries. `defaults` are of the file.
    `calendars`: the weekdays of those that definitions exclude.
    """

    scheduler: str
    timezone: str
    entries: list[ImportedEntry]
    defaults: Definition = field(default_factory=dict)
    calendars: dict[str, list[str]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def merged(parts: Sequence[Imported]) -> Imported:
    """Return several imports from one scheduler as one; each note once."""
    return Imported(
        scheduler=parts[0].scheduler,
        timezone=parts[0].timezone,
        entries=[entry for part in parts for entry in part.entries],
        defaults=parts[0].defaults,
        calendars={name: days for part in parts for name, days in part.calendars.items()},
        notes=list(dict.fromkeys(note for part in parts for note in part.notes)),
    )


def calendar_commands(imported: Imported) -> list[str]:
    """Return the commands that define the calendars, which must exist before the file is applied."""
    return [f"psched calendar set {name} {' '.join(days)}" for name, days in sorted(imported.calendars.items())]


def distinct_keys(entries: Iterable[ImportedEntry], prefix: str) -> list[dict[str, Definition]]:
    """Return the definitions of each entry by key: its name, with a number where the name is taken."""
    taken: set[str] = set()
    return [
        {_free(f"{prefix}{entry.name}", taken): definition for definition in entry.definitions} for entry in entries
    ]


def _free(name: str, taken: set[str]) -> str:
    key, number = name, 1
    while key in taken:
        number += 1
        key = f"{name}-{number}"
    taken.add(key)
    return key


def duration_text(seconds: float) -> str:
    """Return whole seconds as a duration such as `90s`, `5m` or `2d`."""
    text = str(duration(seconds))
    return text if text[-1].isalpha() else f"{text}s"
