"""The overdue alerter logs each overdue occurrence once, and runs the hook once for it, even if the hook fails."""

from __future__ import annotations

import json
import logging
import sys
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from psched.backends import open_stores
from psched.config.alert_hooks import Hook
from psched.execution.alerts import OverdueAlerter
from psched.model import Policy, Rule
from psched.store import StoreSettings
from psched.store.alert_store import OverdueAlerts
from tests.daemon.harness import Daemon

TELL = (
    "import os, sys; print(os.environ['PSCHED_KEY'], os.environ['PSCHED_SCHEDULED_TIME'], file=open(sys.argv[1], 'a'))"
)


@pytest.fixture
def alerts() -> Iterator[OverdueAlerts]:
    """The alerts of a store with one schedule, `$(touch x)`, which has been overdue since 2020."""
    store = open_stores("rdb", StoreSettings("sqlite://", "h/1/1", schedules="s")).schedules
    assert store is not None
    assert store.alerts is not None
    store.create_tables()
    store.add("$(touch x)", "t", Rule("0 * * * *", "UTC"), 1_600_000_000, 1_600_000_000, {}, Policy(alert_after=5))
    yield store.alerts
    store.close()


def hook(path: Path) -> tuple[str, ...]:
    return (sys.executable, "-c", TELL, str(path))


def test_the_hook_is_run_once_with_the_occurrence_and_no_shell(
    alerts: OverdueAlerts, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    told = tmp_path / "told"
    nodes = [OverdueAlerter(alerts, Hook(command=hook(told)), 10) for _ in range(3)]
    with caplog.at_level(logging.ERROR):
        for node in nodes * 2:
            node.check()
    assert told.read_text() == "$(touch x) 1600000000\n"
    assert caplog.text.count("overdue: ") == 3


def test_a_hook_that_fails_is_run_again_when_its_claim_ends(
    alerts: OverdueAlerts, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("psched.execution.alerts._CLAIM", -30.0)  # no longer than the timeout
    with caplog.at_level(logging.ERROR):
        broken = (sys.executable, "-c", "print('no pager'); raise SystemExit(3)")
        OverdueAlerter(alerts, Hook(command=broken), 10).check()
        OverdueAlerter(alerts, Hook(command=("/no/such/program",)), 10).check()
    assert "on_late failed: exit status 3 no pager" in caplog.text
    assert "No such file" in caplog.text
    [unsent] = alerts.unreported(10)
    assert unsent.key == "$(touch x)"


def test_a_hook_that_hangs_is_ended(alerts: OverdueAlerts) -> None:
    begun = time.monotonic()
    hanging = Hook(command=(sys.executable, "-c", "import time; time.sleep(60)"), timeout=0.2)
    OverdueAlerter(alerts, hanging, 10).check()
    assert time.monotonic() - begun < 20


def test_closing_ends_a_hook_that_runs(alerts: OverdueAlerts, tmp_path: Path) -> None:
    begun = tmp_path / "begun"
    slow = (sys.executable, "-c", f"import time; open({str(begun)!r}, 'w'); time.sleep(60)")
    alerter = OverdueAlerter(alerts, Hook(command=slow), 0.01)
    alerter.start()
    deadline = time.monotonic() + 20
    while not begun.exists():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    alerter.close()
    alerter.join(20)
    assert not alerter.is_alive()


def test_a_url_gets_json(alerts: OverdueAlerts) -> None:
    got: list[bytes] = []

    class Pager(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            got.append(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(204)
            self.end_headers()

        def log_message(self, *arguments: object) -> None:
            """Log nothing."""

    with HTTPServer(("127.0.0.1", 0), Pager) as server:
        thread = threading.Thread(target=server.handle_request)
        thread.start()
        OverdueAlerter(alerts, Hook(f"http://127.0.0.1:{server.server_port}/page"), 10).check()
        thread.join(10)
    [body] = got
    facts = json.loads(body)
    assert (facts["key"], facts["scheduled_time"], facts["status"]) == ("$(touch x)", 1_600_000_000, "waiting")
    assert alerts.unreported(10) == []


def test_a_daemon_alerts_of_tasks_that_no_worker_can_run(make_daemon: Callable[..., Daemon], tmp_path: Path) -> None:
    told = tmp_path / "told"
    daemon = make_daemon(on_late=list(hook(told)), alert_interval=0.2, processors=2)
    with daemon.schedules() as schedules:
        late = schedules.add("s1", "unknown", cron="* * * * *", next_time=1_600_000_000, alert_after=1).metadata()
    daemon.start()
    daemon.wait_for(lambda: told.exists() and told.read_text() == f"s1 {late.next_time}\n")
    daemon.wait_for_log("on_late was run for the occurrence")
    daemon.add("other", "quick")
    daemon.wait_for_trace("ran", "other")
    daemon.stop()
    assert told.read_text().count("\n") == 1
    assert daemon.log.count("overdue: 's1'") == 1


def test_the_next_process_checks_when_its_dead_predecessor_would_have(
    alerts: OverdueAlerts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise processes that live for less than an interval would never check."""
    waits: list[float] = []
    alerter = OverdueAlerter(alerts, Hook(), 10)
    monkeypatch.setattr("psched.execution.alerts.monotonic", lambda: 1003.0)
    monkeypatch.setattr(alerter._closing, "wait", lambda seconds: waits.append(seconds) or True)
    alerter.run()
    assert waits == [7.0]
