"""Pytest workers report each test once, when it has ended.

pytest-xdist sends five messages for each test. They take the worker and the controller a millisecond and a half each.
"""

from __future__ import annotations

import pytest
from _pytest.runner import runtestprotocol


@pytest.hookimpl
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
    """Run a test in a pytest worker. Leave out the reports of a setup and of a teardown that have passed."""
    config = item.config
    if not hasattr(config, "workerinput") or config.option.durations or config.option.xmlpath:
        return None  # pytest's own
    for report in runtestprotocol(item, nextitem=nextitem, log=False):
        if report.when == "call" or not report.passed:
            item.ihook.pytest_runtest_logreport(report=report)
    return True
