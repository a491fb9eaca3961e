"""The commands of the tutorial and of docs/django.md, run in a new project, have the documented effects."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.snippets import snippets
from tests.programs import ROOT, install_forked_programs

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


def test_the_five_minutes_lead_to_a_task_that_has_run(tmp_path: Path) -> None:
    install_forked_programs(tmp_path / "bin")
    path = f"{tmp_path / 'bin'}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    work = tmp_path / "work"
    work.mkdir()
    environ = {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT)}
    tutorial, [migration] = (_blocks(ROOT / "docs" / name) for name in ("tutorials/django-site.md", "django.md"))
    assert tutorial[-1].endswith("python manage.py pschedd stop\n")
    try:
        for block in tutorial[:-1]:  # the last but one waits for the task
            _run(block, work, environ)
    finally:
        _run(tutorial[-1], work, environ)
    _run(migration, work, environ)


def _blocks(document: Path) -> list[str]:
    return [block.text for block in snippets(document) if "test_documentation" in block.argument]


def _run(script: str, folder: Path, environ: dict[str, str]) -> None:
    done = subprocess.run(
        ["bash", "-euc", script], cwd=folder, env=environ, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
