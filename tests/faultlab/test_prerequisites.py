"""scripts/test installs the packages that the selected tests need and the machine lacks, and no other ones."""

from __future__ import annotations

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
import sys
import pytest
from faultlab.prerequisites import CollectPrograms

needed = CollectPrograms()
pytest.main(sys.argv[1:], plugins=[needed])
print()
print(*needed.programs)
"""


@pytest.mark.parametrize(
    ("selected", "programs"),
    [
        ("test_each and sqlite", set()),
        ("test_without", {"postgres", "initdb"}),  # nothing tells which of the imported servers it starts
        ("test_each and mariadb", {"mariadbd", "mariadb-install-db"}),
        ("test_marked", {"openssl", "no-such-program", "redis-server"}),
        ("no_test_at_all", set()),
    ],
)
def test_the_programs_of_the_selected_tests_are_known(selected: str, programs: set[str], tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(_TESTS)
    options = ["--collect-only", "-qq", "-p", "no:cacheprovider", "-c", "/dev/null", "--rootdir", str(tmp_path)]
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM, *options, "--import-mode=importlib", "-k", selected, str(tmp_path)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert set(done.stdout.splitlines()[-1].split()) == programs


def test_nothing_is_collected_where_nothing_is_missing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(prerequisites, "_locate", lambda name: Path("/bin", name))
    monkeypatch.setattr(pytest, "main", lambda *given, **more: pytest.fail("collected"))
    prerequisites.main()
    assert capsys.readouterr().out == "\n"
