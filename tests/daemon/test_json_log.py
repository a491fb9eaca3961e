"""With `log_format: json` each line of the log is one JSON object: lines of the master, of runs, and of handlers."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from typing import Any

from tests.daemon.harness import Daemon

APPLICATION = """
import logging
from psched.application import App

app = App()

@app.task("tells")
def tells(task):
    logging.getLogger("team.reports").warning("made %d pages", 12, extra={"pages": 12})

@app.task("fails", max_attempts=1)
async def fails(task):
    raise ValueError("first\\nsecond")
"""

Make = Callable[..., Daemon]


def logged(daemon: Daemon) -> list[dict[str, Any]]:
    whole, _, _ = daemon.log.rpartition("\n")
    return [json.loads(line) for line in whole.splitlines()]


def wait_for_event(daemon: Daemon, event: str, **fields: Any) -> dict[str, Any]:
    def find() -> dict[str, Any] | None:
        lines = logged(daemon)
        return next((line for line in lines if {"event": event, **fields}.items() <= line.items()), None)

    return daemon.wait_for(find)


def test_every_line_of_master_children_and_handlers_is_an_object(make_daemon: Make) -> None:
    daemon = make_daemon(app="app:app", log_format="json", processors=2)
    daemon.write_app(APPLICATION)
    daemon.add("report", "tells")
    daemon.add("broken", "fails")
    daemon.start()
    told = wait_for_event(daemon, "made 12 pages")
    done = wait_for_event(daemon, "run_finished", key="report")
    error = wait_for_event(daemon, "run_error", key="broken")
    assert daemon.end(signal.SIGTERM) == 0
    names = {"section": "schedules", "key": "report", "type": "tells", "attempt": 1}
    for line in (told, done):
        assert names.items() <= line.items()
        assert isinstance(line["fence"], int) and line["scheduled_time"].endswith("Z")
    assert (told["level"], told["logger"], told["pages"]) == ("warning", "team.reports", 12)
    assert done["duration_ms"] > 0 and done["message"].startswith("key=report type=tells finished after ")
    assert error["error"] == "ValueError('first\\nsecond')"
    assert error["traceback"].endswith("ValueError: first\nsecond")
    assert {line["event"] for line in logged(daemon)} >= {"ended"}, "the master's"


def test_a_reload_changes_the_format(make_daemon: Make) -> None:
    daemon = make_daemon()
    daemon.start()
    before = len(daemon.log)
    daemon.configure(log_format="json")
    daemon.forget_ready()
    old = daemon.worker().pid
    daemon.signal(signal.SIGUSR1)
    daemon.wait_for_successor(1, old)
    daemon.add("later", "quick")
    daemon.wait_for_log('"run_finished"')
    assert before > 0 and daemon.log[:before].count("{") == 0
