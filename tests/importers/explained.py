"""Checks that a report names each difference, by the first time at which only one of the two schedulers runs."""

from __future__ import annotations

from collections.abc import Mapping

from psched.importers.difference_report import Reported, report
from psched.importers.entries import Imported, ImportedEntry, distinct_keys
from psched.importers.run_time_comparison import following_of
from tests.importers.enumeration import BEGIN, IS_WHOLE, runs


def reports(imported: Imported) -> dict[str, Reported]:
    """Return the report of each entry, by the entry's name."""
    keyed = distinct_keys(imported.entries, "")
    return {each.entry.name: each for each in report(imported, keyed, BEGIN)}


def assert_explained(
    imported: Imported, expected: Mapping[str, list[int]], begin: int, end: int, reported: Mapping[str, Reported]
) -> int:
    """Check that psched's runs differ from the expected runs only where a report says so.

    Return how many runs were expected.
    """
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
    """Return the definitions of an entry, without the type, which all have."""
    return [{name: value for name, value in each.items() if name != "type"} for each in entry.definitions]
