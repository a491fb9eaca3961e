"""What a test leaves behind is found, named and killed, and what is not run is reported.

These tests run pytest as a process.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

_ROOT = Path(__file__).parents[2]

_CONFTEST = """
import tests.conftest
from tests.conftest import *

tests.conftest._PATIENCE = 0.2
"""

_LEAKS = """
import os, subprocess, sys, threading, time

def test_process():
    subprocess.Popen(["sleep", "60"])

def test_zombie():
    os.fork() or os._exit(0)

def test_daemon():
    subprocess.run([sys.executable, "-c", "import subprocess; subprocess.Popen(['sleep', '61'])"])

def test_thread():
    threading.Thread(target=time.sleep, args=(9,), name="lazy", daemon=True).start()

def test_descriptor():
    os.open("/dev/null", os.O_RDONLY)

def test_failing():
    child = subprocess.Popen(["sleep", "62"])
    print("child", child.pid)
    assert not child.pid

def test_neighbour():
    pass
"""

_NAMES = {
    "test_process": r"process \d+ \(sleep 60\)",
    "test_zombie": r"process \d+ \(not reaped\)",
    "test_daemon": r"process \d+ \(sleep 61\)",
    "test_thread": r"thread 'lazy'",
    "test_descriptor": r"descriptor \d+ → /dev/null",
}

_ABSENT = """
import pytest

@pytest.fixture(autouse=True)
def nothing_is_installed(monkeypatch):
    monkeypatch.setattr("faultlab.prerequisites._locate", lambda name: None)

def test_stores(database):
    pass

@pytest.mark.needs("no-such-program")
def test_needs():
    pass
"""

_SKIPS = """
import pytest

def test_skip():
    pytest.skip("first")

@pytest.mark.skipif(True, reason="second")
def test_skipif():
    pass

@pytest.mark.xfail(reason="third")
def test_xfail():
    assert False

@pytest.mark.xfail(reason="fourth", strict=False)
def test_xpass():
    pass
"""

_LEFT_OUT = [
    "MariaDB: mariadb-install-db not found", "PostgreSQL: initdb not found", "no-such-program not",
    "first", "second", "expected to fail: third", "expected to fail: fourth", "as a whole",
]  # fmt: skip


def _pytest(folder: Path, tests: str, *more: str, require_all: str = "") -> subprocess.CompletedProcess[str]:
    """Run tests with the fixtures, the plugin and the settings of this suite. Return the ended process."""
    (folder / "conftest.py").write_text(_CONFTEST)
    (folder / "test_it.py").write_text(tests)
    options = ["--rootdir", str(folder), "-c", str(_ROOT / "pyproject.toml"), "-W", "ignore", *more]
    return subprocess.run(
        [sys.executable, "-m", "pytest", *options, str(folder)],
        env={**os.environ, "PSCHED_REQUIRE_ALL": require_all, "PYTHONPATH": str(_ROOT)},
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )


def test_a_leak_fails_the_test_that_left_it_and_is_named(tmp_path: Path) -> None:
    done = _pytest(tmp_path, _LEAKS)
    assert done.returncode == 1, done.stdout
    assert f"1 failed, {len(_NAMES) + 1} passed, {len(_NAMES)} errors" in done.stdout, "the neighbour is not to blame"
    for test, name in _NAMES.items():
        assert re.search(rf"ERROR at teardown of {test} .*\nthe test left behind: {name}", done.stdout), done.stdout
    child = re.search(r"^child (\d+)", done.stdout, re.MULTILINE)
    assert child is not None
    assert not Path(f"/proc/{child[1]}").exists(), "what a failing test left is killed too"


def test_what_is_missing_is_not_run_by_name_and_reason(tmp_path: Path) -> None:
    done = _pytest(tmp_path, _ABSENT)
    assert done.returncode == 0
    assert "1 passed, 3 skipped" in done.stdout, "SQLite is always there"
    for reason, test in {
        "MariaDB: mariadb-install-db not found, install with": "test_stores[mariadb]",
        "PostgreSQL: initdb not found, install with": "test_stores[postgresql]",
        "no-such-program not found": "test_needs",
    }.items():
        assert re.search(rf"NOT RUN: 1 test – {reason}.*\n +test_it.py::{re.escape(test)}", done.stdout), done.stdout


def test_nothing_is_left_out_where_everything_must_run(tmp_path: Path) -> None:
    """Elsewhere tests are left out that lack a program, skip themselves or are expected to fail, and a whole module."""
    (tmp_path / "test_skips.py").write_text(_SKIPS)
    (tmp_path / "test_module.py").write_text("import pytest\n\npytest.skip('as a whole', allow_module_level=True)\n")
    done = _pytest(tmp_path, _ABSENT, "--continue-on-collection-errors", require_all="1")
    assert done.returncode == 1
    assert "skipped" not in done.stdout
    assert "xfailed" not in done.stdout
    for reason in _LEFT_OUT:
        assert f"NOT RUN, but PSCHED_REQUIRE_ALL=1: {reason}" in done.stdout
