"""A service writes its log to the journal, with priorities, or to the file that `log:` names."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.daemon.harness import wait_for
from tests.systemd.service import Service

_FAILS = """
@app.task("fails")
def fails(task):
    print("printed before")
    raise ValueError("two\\nlines")
"""
_LOG = "  log: /var/log/psched/psched.log\n"


@pytest.fixture
def failing(service: Service) -> Service:
    """A service that is not started, with a schedule whose handler prints and fails."""
    _application(service).write_text(_application(service).read_text() + _FAILS)
    service.psched("add", "f1", "fails", "* * * * * *", "{}")
    return service


def _application(service: Service) -> Path:
    return service.machine.root / "srv/app.py"


def _config(service: Service) -> Path:
    return service.machine.root / "etc/psched/psched.yml"


def _entries(service: Service) -> list[dict[str, Any]]:
    lines = service.machine.run("journalctl", "-u", "pschedd", "-o", "json", "--all").splitlines()
    return [json.loads(line) for line in lines]


def test_without_log_the_journal_has_priorities_and_a_traceback_as_one_entry(failing: Service) -> None:
    _config(failing).write_text(_config(failing).read_text().replace(_LOG, ""))
    failing.systemctl("start")
    found = wait_for(lambda: [e for e in _entries(failing) if "type=fails failed" in e["MESSAGE"]], failing.explain)[0]
    lines = found["MESSAGE"].splitlines()
    assert lines[0].startswith("psched.runs: key=f1 type=fails failed"), "without a second timestamp"
    assert lines[1] == "Traceback (most recent call last):"
    assert lines[-2:] == ["ValueError: two", "lines"]
    assert (found["PRIORITY"], found["_SYSTEMD_UNIT"]) == ("3", "pschedd.service")
    ours = [e for e in _entries(failing) if e["_TRANSPORT"] != "syslog" and e["_COMM"] != "systemd"]
    assert "printed before" in [e["MESSAGE"] for e in ours], "what handlers print is there at once, line by line"
    assert {e["SYSLOG_IDENTIFIER"] for e in ours} == {"pschedd"}
    started = next(e for e in ours if e["MESSAGE"].startswith("psched.supervisor.run_master: starting;"))
    assert started["PRIORITY"] == "6"
    assert not [e for e in ours if e["MESSAGE"].startswith(("Traceback", "ValueError", "  File"))]


def test_a_new_master_after_an_upgrade_goes_on_in_the_journal(failing: Service) -> None:
    _config(failing).write_text(_config(failing).read_text().replace(_LOG, ""))
    failing.systemctl("start")
    old = failing.machine.main("pschedd")
    old.send_signal(signal.SIGWINCH)
    wait_for(lambda: not old.is_running(), failing.explain)
    new = failing.properties("MainPID")["MainPID"]
    wait_for(lambda: [e for e in _entries(failing) if e["_PID"] == new and e["PRIORITY"] == "6"], failing.explain)
    failing.machine.run("systemctl", "restart", "systemd-journald")
    seen = len(_entries(failing))
    wait_for(lambda: [e for e in _entries(failing)[seen:] if "type=fails failed" in e["MESSAGE"]], failing.explain)


def test_with_log_the_file_has_all_and_the_journal_why_a_start_fails(failing: Service) -> None:
    log = failing.machine.root / "var/log/psched/psched.log"
    failing.systemctl("start")
    wait_for(lambda: "type=fails failed" in log.read_text(), failing.explain)
    assert "\nprinted before\n" in log.read_text()
    failing.systemctl("stop")
    assert "psched.runs" not in str(_entries(failing))
    assert "printed before" not in str(_entries(failing))
    _application(failing).write_text("raise ImportError('no such thing')\n")
    with pytest.raises(AssertionError, match="Job for pschedd.service failed"):
        failing.systemctl("start")
    told = next(e for e in _entries(failing) if "no such thing" in e["MESSAGE"])
    assert told["PRIORITY"] == "3"


def test_what_keeps_a_service_from_starting_or_reloading_is_an_error_of_the_journal(service: Service) -> None:
    config = _config(service)
    good = config.read_text()
    wrong = good.replace("processors: 1", "processors: many")
    service.systemctl("start")
    for text, verb, words in ((wrong, "reload", "was not reloaded"), (wrong, "restart", "processors: expected")):
        config.write_text(text)
        with pytest.raises(AssertionError, match="Job for pschedd.service failed"):
            service.systemctl(verb)
        errors = [e["MESSAGE"] for e in _entries(service) if e["PRIORITY"] == "3"]
        assert [message for message in errors if message.startswith("pschedd") and words in message]
