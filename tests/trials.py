"""`in_suite_on("postgresql-rdb", ...)` names the parameters with which the suite runs a test; the others are trials.

Such a test keeps a promise on each of its parameters, but each run takes seconds of processor time. The suite runs it
where most can go wrong, and scripts/test --trials runs it on the others.

`take_turns` does the same for a folder, where each test may run on any of several databases: the suite runs some tests
on the one, some on the other.
"""

from __future__ import annotations

import zlib
from collections import defaultdict
from collections.abc import Iterable, Sequence

import pytest


def in_suite_on(chosen: Sequence[str], parameters: Sequence[str]) -> list[object]:
    """Return a fixture's parameters, those that are not chosen marked as trials."""
    return [each if each in chosen else pytest.param(each, marks=pytest.mark.trial) for each in parameters]


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests whose parameters are not among those that the test names."""
    for item in items:
        marker = item.get_closest_marker("in_suite_on")
        parameters = getattr(item, "callspec", None)
        if marker is None or parameters is None:
            continue
        if not any(_has(parameters.id, words) for words in marker.args):
            item.add_marker("trial")


def tests_below(conftest: str, items: Iterable[pytest.Item]) -> list[pytest.Item]:
    """Return the items in the folder of this conftest.py. pytest gives it the items of all folders, on each worker."""
    folder = conftest.removesuffix("conftest.py")
    return [item for item in items if str(item.path).startswith(folder)]


def take_turns(items: Iterable[pytest.Item], *groups: Sequence[str]) -> None:
    """Of tests that differ only by their databases, leave those on the databases of one group to the suite.

    A checksum of the test's name chooses the group, so each gets its share. The other tests become trials. Tests on
    other databases stay, and so do those that are on databases of one group only. Trials do not count.
    """
    alike = defaultdict[str, dict[int, list[pytest.Item]]](lambda: defaultdict(list))
    words = sorted(
        ((word, number) for number, group in enumerate(groups) for word in group), key=lambda pair: -len(pair[0])
    )
    for item in items:
        parameters = getattr(item, "callspec", None)
        if parameters is None or item.get_closest_marker("trial") is not None:
            continue
        for word, number in words:
            if _has(parameters.id, word):
                alike[item.nodeid.replace(word, "*", 1)][number].append(item)
                break
    for name, by_group in alike.items():
        chosen = sorted(by_group)[zlib.crc32(name.encode()) % len(by_group)]
        for number, tests in by_group.items():
            for test in tests:
                if number != chosen:
                    test.add_marker("trial")


def _has(parameters: str, words: str) -> bool:
    return f"-{words}-" in f"-{parameters}-"
