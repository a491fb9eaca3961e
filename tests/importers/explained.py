"""Checks that a report tells of each difference: from the first instant on at which only one of two schedulers runs."""

from __future__ import annotations

from collections.abc import Mapping

from psched.importers.comparison import following_of
from psched.importers.entries import Imported, ImportedEntry, distinct_keys
from psched.importers.report import Reported, report
from tests.importers.enumeration import BEGIN, IS_WHOLE, runs


def reports(imported: Imported) -> dict[str, Reported]:
    """Return what is reported of each entry, by its name."""
    keyed = distinct_keys(imported.entries, "")
    return {each.entry.name: each for each in report(imported, keyed, BEGIN)}


def assert_explained(
    imported: Imported, expected: Mapping[str, list[int]], begin: int, end: int, reported: Mapping[str, Reported]
) -> int:
    """Compare the runs of psched with those expected from `begin` to `end`; return how many there were."""
    compared = 0
    for name, each in reported.items():
        ours = runs(following_of(each.entry.definitions, imported.timezone, imported.calendars), begin, end)
        theirs = expected.get(name, [])
        compared += len(theirs)
        differing = set(ours) ^ set(theirs)
        found = min(differing, default=None)
        told = None if each.difference is None else each.difference.instant
        if told is None or told > end:
            assert found is None, f"{each.entry.rule}: differs at {found}, and the report says nothing"
        elif found is not None:
            assert found >= told, f"{each.entry.rule}: differs at {found}, and the report says {told}"
        assert not IS_WHOLE or found == told, f"{each.entry.rule}: differs at {found}, and the report says {told}"
    return compared


def definitions(entry: ImportedEntry) -> list[dict[str, object]]:
    """Return the definitions of an entry without what all have."""
    return [{name: value for name, value in each.items() if name != "type"} for each in entry.definitions]
