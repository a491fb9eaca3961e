"""The commands of docs/django.md do what they say, in a new project."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.daemon.harness import wait_for
from tests.docs.snippets import snippets
from tests.programs import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


def test_the_five_minutes_lead_to_a_task_that_has_run(tmp_path: Path) -> None:
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environ = {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT)}
    log = tmp_path / "psched.log"
    blocks = [block.text for block in snippets(ROOT / "docs/django.md") if "test_documentation" in block.argument]
    *starting, stopping = blocks[0].splitlines()
    assert stopping == "python manage.py pschedd stop"
    try:
        _run("\n".join(starting), tmp_path, environ)
        wait_for(lambda: "hello, world!" in log.read_text(), log.read_text)
    finally:
        _run(stopping, tmp_path, environ)
    _run(blocks[1], tmp_path, environ)


def _run(script: str, folder: Path, environ: dict[str, str]) -> None:
    done = subprocess.run(
        ["bash", "-euc", script], cwd=folder, env=environ, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
