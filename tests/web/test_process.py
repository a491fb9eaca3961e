"""`psched web` as a process: its address, its stream of changes, and its stop."""

from __future__ import annotations

import http.client
import os
import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from psched.config import Settings
from psched.schedules.collection import ScheduleCollection
from tests.cli.commands import Commands
from tests.programs import ROOT, install_forked_programs

pytestmark = pytest.mark.slow


@pytest.fixture
def served(settings: Settings, url: str, tmp_path: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """The process of `psched web`, and the address that it prints."""
    (tmp_path / "psched.yml").write_text(f"test: {{type: rdb, url: '{url}', schedules: {{}}, queue: {{}}}}")
    install_forked_programs(tmp_path / "bin")
    command = [tmp_path / "bin/psched", "-c", tmp_path / "psched.yml", "-e", "test", "web", "--listen", "127.0.0.1:0"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout is not None
        found = re.match(r"psched web: http://(127\.0\.0\.1:\d+)/$", process.stdout.readline())
        assert found is not None
        yield process, found[1]
        process.send_signal(signal.SIGTERM)


def test_changes_are_streamed_until_the_process_is_stopped(
    served: tuple[subprocess.Popen[str], str], schedules: ScheduleCollection
) -> None:
    process, address = served
    connection = http.client.HTTPConnection(address, timeout=20)
    connection.request("GET", "/changes")
    stream = connection.getresponse()
    assert stream.getheader("content-type", "").startswith("text/event-stream")
    first = mark_in(stream)
    schedules.add("k", "a", cron="0 0 1 1 *")
    assert mark_in(stream) != first
    process.send_signal(signal.SIGTERM)
    assert process.wait(20) == 0
    connection.close()


def mark_in(stream: http.client.HTTPResponse) -> str:
    """Return the next line of the stream that contains a change mark."""
    while True:
        line = stream.readline().decode()
        assert line, "the stream has ended"
        if line.startswith("data: ") and line.strip() != "data:":
            return line


def test_an_address_that_is_taken_or_wrong_is_an_error_in_one_line(
    served: tuple[subprocess.Popen[str], str], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    commands = Commands(tmp_path, capfd)
    config = ["-c", str(tmp_path / "psched.yml"), "-e", "test"]
    taken = commands(*config, "web", "--listen", served[1])
    assert (taken.code, taken.err) == (1, f"psched: cannot listen on {served[1]}: Address already in use\n")
    wrong = commands(*config, "web", "--listen", "9808")
    assert wrong.code == 2
    assert "expected HOST:PORT such as 127.0.0.1:9808 or [::1]:9808, got '9808'" in wrong.err
    outside = commands(*config, "web", "--listen", "192.0.2.7:9808")
    assert (outside.code, outside.err.count("\n")) == (1, 1)
    assert outside.err.startswith("psched: web.listen: other hosts can reach 192.0.2.7")
