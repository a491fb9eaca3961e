"""scripts/test installs the packages that the selected tests need and the machine lacks, and no other ones."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from faultlab import prerequisites

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
    needed = prerequisites.CollectPrograms()
    options = ["--collect-only", "-qq", "-p", "no:cacheprovider", "-c", "/dev/null", "--rootdir", str(tmp_path)]
    pytest.main([*options, "--import-mode=importlib", "-k", selected, str(tmp_path)], plugins=[needed])
    assert needed.programs == programs


def test_nothing_is_collected_where_nothing_is_missing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(prerequisites, "_locate", lambda name: Path("/bin", name))
    monkeypatch.setattr(pytest, "main", lambda *given, **more: pytest.fail("collected"))
    prerequisites.main()
    assert capsys.readouterr().out == "\n"


def test_what_is_missing_and_not_needed_is_not_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "test_it.py").write_text("def test_without(): pass")
    monkeypatch.setattr(prerequisites, "_locate", lambda name: None)
    monkeypatch.setattr(sys, "argv", ["prerequisites", "-c", "/dev/null", "-p", "no:cacheprovider", str(tmp_path)])
    prerequisites.main()
    assert capsys.readouterr().out == "\n"
