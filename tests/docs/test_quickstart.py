"""scripts/quickstart does what it says, from the tables to the clean stop."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from tests.programs import ROOT, install_programs

pytestmark = pytest.mark.slow


def test_the_quickstart_shows_a_schedule_firing_and_leaves_nothing_running(tmp_path: Path) -> None:
    """All but the installation, which is the same as scripts/install does for these tests."""
    install_programs(tmp_path / "bin")
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
    greetings = [int(time) for time in re.findall(r"hello, world! this is the run for (\d+)", done.stdout)]
    assert len(greetings) >= 2, done.stdout
    assert greetings == list(range(greetings[0], greetings[-1] + 1)), "every second once, in order"
    assert "it works" in done.stdout
    assert not (tmp_path / "psched.pid").exists()
