"""Reports what psched does differently from the other scheduler, and from when on."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from psched.error_messages import shown
from psched.importers.entries import Definition, Imported, ImportedEntry, calendar_commands
from psched.importers.run_time_comparison import Difference, clock_changes, first_difference, following_of
from psched.schedules_file.declared import FORMS
from psched.schedules_file.reader import options
from psched.time_text import local_time

_UNKNOWN = "this version of psched does not know the option `{}`, and refuses a file with it"
_BEFORE_CHANGE = 2 * 3600
_AFTER_CHANGE = 48 * 3600
"""Seconds before and after a clock change. A difference within this time is reported as an effect of the change."""


@dataclass(frozen=True)
class Reported:
    """An imported entry, the keys of its schedules, and what psched does differently.

    - `difference`: the first difference between the times of the two schedulers.
    - `first_run`: the first run of the other scheduler after the start of the comparison; None if unknown.
    - `unsupported`: options of the schedules that this version of psched lacks.
    - `timezone`: the zone of the schedules.
    """

    entry: ImportedEntry
    keys: tuple[str, ...]
    difference: Difference | None
    first_run: int | None
    unsupported: tuple[str, ...]
    timezone: str

    @property
    def is_the_same(self) -> bool:
        return not (self.difference or self.entry.remarks or self.entry.problem or self.unsupported)

    @property
    def differs_from(self) -> int | None:
        """The first time at which the two schedulers differ, if it is known."""
        if self.difference is not None:
            return self.difference.instant
        return None if self.is_the_same else self.first_run


def report(imported: Imported, keyed: Sequence[dict[str, Definition]], begin: int) -> list[Reported]:
    """Compare each entry with its schedules, for 400 days from `begin` on."""
    found = []
    for entry, definitions in zip(imported.entries, keyed, strict=True):
        first = None if entry.following is None else entry.following(begin - 1)
        difference = None
        zone = next((definition["timezone"] for definition in definitions.values() if "timezone" in definition), None)
        zone = imported.timezone if zone is None else zone
        if entry.following is not None and definitions:
            ours = following_of(list(definitions.values()), imported.timezone, imported.calendars)
            difference = first_difference(entry.following, ours, begin, zone)
        elif first is not None:
            difference = Difference(first, psched_runs=False)
        unsupported = unknown_options(name for definition in definitions.values() for name in definition)
        found.append(Reported(entry, tuple(definitions), difference, first, unsupported, zone))
    return found


def unknown_options(names: Iterable[str]) -> tuple[str, ...]:
    """Return those of `names` that are not options of this version of psched."""
    return tuple(sorted(set(names) - {*FORMS, *options()}))


def lines(imported: Imported, reported: Sequence[Reported]) -> Iterator[str]:
    for each in reported:
        yield from _of_entry(imported, each)
    yield from (f"all: {note}" for note in imported.notes)
    yield from (f"all: before the file is applied, run {command}" for command in calendar_commands(imported))
    yield from (f"all: {_UNKNOWN.format(name)}" for name in unknown_options(imported.defaults))


def _of_entry(imported: Imported, each: Reported) -> Iterator[str]:
    if each.is_the_same:
        return
    entry = each.entry
    head = f"{entry.origin}: {', '.join(each.keys) or 'NOT WRITTEN'} ({shown(entry.rule)[1:-1]})"
    yield head if entry.problem is None else f"{head}: {entry.problem}"
    if each.difference is not None:
        instant, names = each.difference.instant, (imported.scheduler, "psched")
        runs, idle = reversed(names) if each.difference.psched_runs else names
        change = next(clock_changes(instant - _AFTER_CHANGE, instant + _BEFORE_CHANGE, each.timezone), None)
        reason = "" if change is None else f" (the clock in {each.timezone} changes at {local_time(change)})"
        yield f"  first difference at {local_time(instant)}: {runs} runs it, {idle} does not{reason}"
    elif each.first_run is not None:
        yield f"  from {local_time(each.first_run)}, its first run:"
    yield from (f"  {remark}" for remark in entry.remarks)
    yield from (f"  {_UNKNOWN.format(name)}" for name in each.unsupported)
