"""Says what of an import is not the same in psched, and from which instant on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from psched.clock import local_time
from psched.error_text import shown
from psched.importers.comparison import Difference, first_difference, following_of
from psched.importers.entries import Definition, Entry, Imported
from psched.schedules_file.reader import FORMS, options


@dataclass(frozen=True)
class Reported:
    """An entry with its keys. `difference`: of its times. `first_run`: by the other scheduler, if that is known.

    `unsupported`: options of its schedules that this version of psched lacks.
    """

    entry: Entry
    keys: tuple[str, ...]
    difference: Difference | None
    first_run: int | None
    unsupported: tuple[str, ...] = ()

    @property
    def is_the_same(self) -> bool:
        """Whether psched does what the other scheduler does."""
        return not (self.difference or self.entry.remarks or self.entry.problem or self.unsupported)

    @property
    def differs_from(self) -> int | None:
        """The first instant that is not the same, if that is known."""
        if self.difference is not None:
            return self.difference.instant
        return None if self.is_the_same else self.first_run


def report(imported: Imported, keyed: Sequence[dict[str, Definition]], begin: int, timezone: str) -> list[Reported]:
    """Compare each entry with its schedules, for 400 days from `begin` on."""
    found = []
    for entry, definitions in zip(imported.entries, keyed, strict=True):
        first = None if entry.following is None else entry.following(begin - 1)
        difference = None
        if entry.following is not None and definitions:
            zone = next(iter(definitions.values())).get("timezone", timezone)
            ours = following_of(list(definitions.values()), timezone)
            difference = first_difference(entry.following, ours, begin, zone)
        elif first is not None:
            difference = Difference(first, psched_runs=False)
        known = {*FORMS, *options()}
        unsupported = {name for definition in definitions.values() for name in definition if name not in known}
        found.append(Reported(entry, tuple(definitions), difference, first, tuple(sorted(unsupported))))
    return found


def lines(scheduler: str, notes: Sequence[str], reported: Sequence[Reported]) -> Iterator[str]:
    """Yield the report as text."""
    for each in reported:
        yield from _of_entry(scheduler, each)
    for note in notes:
        yield f"all: {note}"


def _of_entry(scheduler: str, each: Reported) -> Iterator[str]:
    if each.is_the_same:
        return
    entry = each.entry
    head = f"{entry.origin}: {', '.join(each.keys) or 'NOT WRITTEN'} ({shown(entry.rule)[1:-1]})"
    yield head if entry.problem is None else f"{head}: {entry.problem}"
    if each.difference is not None:
        runs, idle = ("psched", scheduler) if each.difference.psched_runs else (scheduler, "psched")
        yield f"  from {local_time(each.difference.instant)}: {runs} runs it then, {idle} does not"
    elif each.first_run is not None:
        yield f"  from {local_time(each.first_run)}, its first run:"
    yield from (f"  {remark}" for remark in entry.remarks)
    for name in each.unsupported:
        yield f"  this version of psched does not know the option `{name}`: remove it from the file, or upgrade"
