"""`in_suite_on("postgresql-rdb", ...)` names the parameters with which the suite runs a test; the others are trials.

Such a test keeps a promise on each of its parameters, but each run takes seconds of processor time. The suite runs it
where most can go wrong, and scripts/test --trials runs it on the others.
"""

from __future__ import annotations

from collections.abc import Sequence

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
        if not any(f"-{words}-" in f"-{parameters.id}-" for words in marker.args):
            item.add_marker("trial")
