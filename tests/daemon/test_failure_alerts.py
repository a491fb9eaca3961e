"""The hook gets each run that has failed for good once, even if the hook itself fails."""

from __future__ import annotations

import json
import logging
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from psched.backends import open_stores
from psched.config.alert_hooks import Hook
from psched.execution.alerts import FailureReporter, failure_facts
from psched.model import NewTask
from psched.store import StoreSettings, TaskStore
from psched.store.alert_store import UnreportedFailure, UnreportedFailures
from tests.daemon.harness import Daemon

TELL = (
    "import json, os, sys; names = ('KEY', 'TYPE', 'SECTION', 'ATTEMPTS', 'ERROR');"
    "print(json.dumps([os.environ['PSCHED_' + name] for name in names]), file=open(sys.argv[1], 'a'))"
)


def hook(path: Path) -> list[str]:
    return [sys.executable, "-c", TELL, str(path)]


@pytest.fixture
def store() -> Iterator[TaskStore]:
    """A store with one failed task, whose key is `$(touch x)`."""
    settings = StoreSettings("sqlite://", "h/1/1", queue="q", keeps_failures=True)
    store = open_stores("rdb", settings).queue
    assert store is not None
    assert store.failures is not None
    store.create_tables()
    store.submit([NewTask("$(touch x)", "t", run_at=1_600_000_000)])
    [claim] = store.acquire(1, 60)
    store.retire(claim, "failed", "it\nbroke", None, 1e12)
    yield store
    store.close()


@pytest.fixture
def failures(store: TaskStore) -> UnreportedFailures:
    assert store.failures is not None
    return store.failures


def test_the_hook_is_run_once_and_no_shell(failures: UnreportedFailures, tmp_path: Path) -> None:
    told = tmp_path / "told"
    nodes = [FailureReporter("queue", failures, Hook(command=tuple(hook(told))), 10, time.time) for _ in range(3)]
    assert [node.check() for node in nodes * 2] == [True, *[False] * 5]
    assert json.loads(told.read_text()) == ["$(touch x)", "t", "queue", "1", "it\nbroke"]


def test_a_hook_that_fails_is_run_again_when_its_claim_ends(
    failures: UnreportedFailures, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("psched.execution.alerts._CLAIM", -30.0)  # no longer than the timeout
    broken = (sys.executable, "-c", "print('no pager'); raise SystemExit(3)")
    with caplog.at_level(logging.ERROR):
        assert not FailureReporter("queue", failures, Hook(command=broken), 10, time.time).check()
    assert "on_failure failed: exit status 3 no pager" in caplog.text
    told = tmp_path / "told"
    assert FailureReporter("queue", failures, Hook(command=tuple(hook(told))), 10, time.time).check()
    assert told.read_text().count("\n") == 1


def test_an_event_is_put_into_the_outbox_once_however_often_the_hook_fails(
    store: TaskStore, failures: UnreportedFailures, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("psched.execution.alerts._CLAIM", -30.0)  # no longer than the timeout
    monkeypatch.setattr("psched.execution.alerts._PAUSES", (0.0, 0.0))
    broken = (sys.executable, "-c", "raise SystemExit(3)")
    node = FailureReporter("queue", failures, Hook(command=broken), 10, time.time, outbox=store.outbox)
    assert not node.check()
    assert not node.check()
    assert store.outbox is not None
    [event] = store.outbox.page(10)
    assert event.facts == {**event.facts, "event": "failed", "key": "$(touch x)", "section": "queue", "attempts": 1}


def test_the_message_has_a_date_and_the_summary_of_the_error() -> None:
    failure = UnreportedFailure(
        "k", "t", 1_600_000_000, 1, 3, "ValueError('x')\nTraceback\nValueError: x\nand more", "h/1/1", 1.0
    )
    assert failure_facts(failure, "schedules")["message"] == (
        "'k': the run of 2020-09-13 12:26:40+00:00 failed for good after 3 attempts: ValueError: x"
    )


def test_a_daemon_reports_schedules_and_tasks_that_have_failed_for_good(
    make_daemon: Callable[..., Daemon], tmp_path: Path
) -> None:
    told = tmp_path / "told"
    daemon = make_daemon(on_failure=hook(told), alert_interval=0.2, processors=2, retry_wait=0.1)
    with daemon.schedules() as schedules:
        schedules.add("s1", "raise", cron="0 0 1 1 *", next_time=1_600_000_000, next_run_time=0, max_attempts=2)
    daemon.start()
    daemon.wait_for(lambda: told.exists() and told.read_text().count("\n") >= 1)
    daemon.wait_for_log("on_failure was run for the occurrence")
    daemon.stop()
    found = [json.loads(line) for line in told.read_text().splitlines()]
    assert found[0][:4] == ["s1", "raise", "schedules", "2"]
