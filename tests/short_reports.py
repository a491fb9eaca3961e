"""Lets pytest workers send one report for each test, when it has ended.

pytest-xdist would send five messages for each test. They take 1.5 ms each, in the worker and in the controller.
"""

from __future__ import annotations

import pytest
from _pytest.runner import runtestprotocol


@pytest.hookimpl
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
    """Run a test in a pytest worker. Do not send the reports of a setup or teardown that has passed."""
    config = item.config
    if not hasattr(config, "workerinput") or config.option.durations or config.option.xmlpath:
        return None  # pytest's own
    for report in runtestprotocol(item, nextitem=nextitem, log=False):
        if report.when == "call" or not report.passed:
            item.ihook.pytest_runtest_logreport(report=report)
    return True
