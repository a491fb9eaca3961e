"""scripts/test installs those packages that the selected tests need and the machine lacks, and no others."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from faultlab import prerequisites
from tests.programs import ROOT

_TESTS = """
import pytest
from faultlab.postgresql import PostgreSQL

def test_without():
    pass

@pytest.mark.parametrize("database", ["sqlite", "mariadb"])
def test_each(database):
    pass

@pytest.mark.needs("openssl", "no-such-program")
def test_marked(redis):
    pass
"""

_PROGRAM = """
import json
import sys
import pytest
from faultlab.prerequisites import CollectPrograms

def programs(selected):
    needed = CollectPrograms()
    pytest.main([*sys.argv[2:], "-k", selected], plugins=[needed])
    return sorted(needed.programs)

found = {selected: programs(selected) for selected in json.loads(sys.argv[1])}
print()
print(json.dumps(found))
"""


def test_the_programs_of_the_selected_tests_are_known(tmp_path: Path) -> None:
    needed = {
        "test_each and sqlite": [],
        "test_without": ["initdb", "postgres"],  # nothing tells which of the imported servers it starts
        "test_each and mariadb": ["mariadb-install-db", "mariadbd"],
        "test_marked": ["no-such-program", "openssl", "redis-server"],
        "no_test_at_all": [],
    }
    (tmp_path / "test_it.py").write_text(_TESTS)
    options = ["--collect-only", "-qq", "-p", "no:cacheprovider", "-c", "/dev/null", "--rootdir", str(tmp_path)]
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM, json.dumps([*needed]), *options, "--import-mode=importlib", str(tmp_path)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(done.stdout.splitlines()[-1]) == needed


def test_nothing_is_collected_where_nothing_is_missing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(prerequisites, "_locate", lambda name: Path("/bin", name))
    monkeypatch.setattr(pytest, "main", lambda *given, **more: pytest.fail("collected"))
    prerequisites.main()
    assert capsys.readouterr().out == "\n"
