"""`in_suite_on("postgresql-rdb", ...)` names the parameters with which the suite runs a test. Others become trials.

Such a test would have to pass with each parameter, but each run takes seconds of processor time. The suite runs it
where most can go wrong, and scripts/test --trials runs it with the other parameters.

`take_turns` does the same for a folder whose tests run on several databases: the suite runs some of the tests on one
database, and some on another.
"""

from __future__ import annotations

import zlib
from collections import defaultdict
from collections.abc import Iterable, Sequence

import pytest


def in_suite_on(chosen: Sequence[str], parameters: Sequence[str]) -> list[object]:
    """Return the parameters of a fixture. Parameters that are not chosen are marked as trials."""
    return [each if each in chosen else pytest.param(each, marks=pytest.mark.trial) for each in parameters]


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark tests as trials if their parameters are not among those that `in_suite_on` names."""
    for item in items:
        marker = item.get_closest_marker("in_suite_on")
        parameters = getattr(item, "callspec", None)
        if marker is None or parameters is None:
            continue
        if not any(_has(parameters.id, words) for words in marker.args):
            item.add_marker("trial")


def tests_below(conftest: str, items: Iterable[pytest.Item]) -> list[pytest.Item]:
    """Return the items in the folder of this conftest.py, to which pytest passes the items of all folders."""
    folder = conftest.removesuffix("conftest.py")
    return [item for item in items if str(item.path).startswith(folder)]


def take_turns(items: Iterable[pytest.Item], *groups: Sequence[str]) -> None:
    """Of tests that differ only by their databases, let the suite run those on one group of databases.

    The others become trials. A checksum of the test's name chooses the group, so each group gets a share of the tests.
    The suite also runs tests on other databases, and tests that exist on the databases of one group only. Tests that
    are already trials are ignored.
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
