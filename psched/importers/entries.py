"""The result of an importer: the entries of another scheduler, each with the schedules that replace it in psched."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from psched.keys import check_key, is_backfill_key, reserved_for_backfills
from psched.schedules_file.writer import duration

Definition = dict[str, Any]
"""A schedule in the form of the file of schedules: type, cron, every or at, and options."""
Following = Callable[[int], int | None]
"""Takes a time and returns the first run after it, or None. Both are unix seconds."""


@dataclass(frozen=True, kw_only=True)
class ImportedEntry:
    """One entry of another scheduler.

    `origin`: its place, such as `crontab:12`. `rule`: its rule in the original words. `name`: the base of its key.
    `definitions`: the schedules that replace it; none if there is a `problem`. `following`: when the other scheduler
    runs it; None if that is unknown. `remarks`: differences in behaviour, except in the times of runs.
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

    `timezone`: the zone of definitions without a zone. `notes`: remarks about all entries. `defaults`: the defaults of
    the file. `calendars`: the weekdays of the calendars that definitions exclude.
    """

    scheduler: str
    timezone: str
    entries: list[ImportedEntry]
    defaults: Definition = field(default_factory=dict)
    calendars: dict[str, list[str]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def merged(parts: Sequence[Imported]) -> Imported:
    """Return several imports from one scheduler as one. Removes duplicate notes."""
    return Imported(
        scheduler=parts[0].scheduler,
        timezone=parts[0].timezone,
        entries=[entry for part in parts for entry in part.entries],
        defaults=parts[0].defaults,
        calendars={name: days for part in parts for name, days in part.calendars.items()},
        notes=list(dict.fromkeys(note for part in parts for note in part.notes)),
    )


def calendar_commands(imported: Imported) -> list[str]:
    """Return the commands that create the calendars. They must be executed before the file is applied."""
    return [f"psched calendar set {name} {' '.join(days)}" for name, days in sorted(imported.calendars.items())]


def distinct_keys(entries: Sequence[ImportedEntry], prefix: str) -> list[dict[str, Definition]]:
    """Return the definitions of each entry by key. The key is the entry's name, with a number if the name is taken.

    Raises ValueError for a key that psched cannot store.
    """
    taken: set[str] = set()
    keyed = [
        {_free(f"{prefix}{entry.name}", taken): definition for definition in entry.definitions} for entry in entries
    ]
    for entry, definitions in zip(entries, keyed, strict=True):
        for key in definitions:
            name = f"{'--prefix: ' if prefix else ''}the key of {entry.origin}"
            if is_backfill_key(check_key(key, name)):
                raise reserved_for_backfills(key, name)
    return keyed


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
