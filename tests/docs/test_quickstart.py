"""scripts/quickstart works, from making the tables to the clean stop."""

from __future__ import annotations

import http.client
import os
import re
import shlex
import subprocess
from contextlib import closing
from datetime import datetime
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.programs import ROOT, install_forked_programs

pytestmark = pytest.mark.slow


def test_the_quickstart_shows_a_schedule_firing_and_leaves_nothing_running(tmp_path: Path) -> None:
    """The test leaves out the installation, because scripts/install has already done the same for the tests."""
    install_forked_programs(tmp_path / "bin")
    environment = {**os.environ, "PSCHED_VENV": str(tmp_path)}
    done = subprocess.run(
        [ROOT / "scripts/quickstart", str(tmp_path)],
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    told = re.findall(r"hello, world! this is the run for (\S+ \S+)", done.stdout)
    greetings = [int(datetime.fromisoformat(time).timestamp()) for time in told]
    assert len(greetings) >= 2, done.stdout
    assert greetings == list(range(greetings[0], greetings[-1] + 1)), "every second once, in order"
    assert "it works" in done.stdout
    assert not (tmp_path / "psched.pid").exists()
    see_that_it_serves_pages(shlex.split(done.stdout.splitlines()[-1]))


def see_that_it_serves_pages(command: list[str]) -> None:
    with subprocess.Popen([*command, "--listen", "127.0.0.1:0"], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        with closing(http.client.HTTPConnection(urlsplit(process.stdout.readline().split()[-1]).netloc)) as connection:
            connection.request("GET", "/schedules")
            assert "every-second" in connection.getresponse().read().decode()
        process.terminate()
