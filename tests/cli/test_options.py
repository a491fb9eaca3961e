"""The common options: before or after the command, their defaults, the originals' spellings."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.commands import Commands


def test_options_may_stand_before_or_after_the_command(fresh: Commands) -> None:
    other = fresh.folder / "other.yml"
    other.write_text("staging: {type: rdb, url: 'sqlite:///staging.db'}")
    for arguments in (
        ("-e", "staging", "-c", str(other), "--json", "init"),
        ("init", "-e", "staging", "-c", str(other)),
        ("--environment=staging", "list", "--config", str(other), "--json"),
    ):
        assert fresh(*arguments).code == 0
    assert (fresh.folder / "staging.db").exists()


def test_what_stands_after_the_command_wins(psched: Commands) -> None:
    assert psched("-c", "/none.yml", "-e", "none", "list", "-c", "etc/psched.yml", "-e", "development").code == 0


def test_the_environment_defaults_to_the_variable(psched: Commands, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PSCHED_ENV", "staging")
    assert "there is no environment 'staging'" in psched.fault("list")
    psched.ok("list", "-e", "development")


def test_folders_and_modules_before_and_after_the_command_add_up(psched: Commands, tmp_path: Path) -> None:
    psched.use("sqlite:///../psched.db", "  app: [first:app, second:app]\n")
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        (tmp_path / name / f"{name}.py").write_text("import psched\napp = psched.App()\napp.task('t')(print)\n")
    assert psched("-I", "first", "-r", "first", "doctor", "-I", "second").code == 0


def test_help_and_an_empty_command_line_show_the_commands(fresh: Commands) -> None:
    assert "doctor" in fresh.ok("--help").out
    assert "--delay" in fresh.ok("add", "-h").out
    empty = fresh()
    assert empty.code == 2
    assert "Commands:" in empty.err
