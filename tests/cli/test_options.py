"""The common options: their places before and after the command, their defaults, and the originals' spellings."""

from __future__ import annotations

from pathlib import Path

import click
import pytest

from psched.cli.main import LazyCommands
from psched.cli.main import psched as commands
from psched.cli.options_before_command import options_of, takes_value
from psched.cli.schedules_as_code import plan_
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


def test_a_commands_own_options_may_stand_before_it(psched: Commands) -> None:
    psched.ok("-d", "5", "--timezone=Asia/Tokyo", "-s1893456000", "add", "key", "type", "@daily", "{}")
    [schedule] = psched.ok("--json", "list").json
    assert (schedule["delay"], schedule["timezone"], schedule["next_time"]) == (5, "Asia/Tokyo", 1893510000)
    psched.ok("--max_attempts", "2", "modify", "key")
    psched.ok("queue", "init")
    psched.ok("-u", "joe", "queue", "--max-running", "3", "submit", "task", "type", "{}", "-t", "2026-12-01T08:00Z")
    [task] = psched.ok("queue", "-u", "joe", "--json", "list").json
    assert (task["user"], task["max_running"], task["run_at"]) == ("joe", 3, 1796112000)


def test_an_option_of_another_command_is_refused_by_name(psched: Commands) -> None:
    refused = psched("-d", "5", "list")
    assert refused.code == 2
    assert "No such option '-d'" in refused.err
    assert "-d" in psched("-d", "5").err


def test_an_option_before_the_command_is_read_as_that_command_has_it(psched: Commands) -> None:
    psched.ok("--late", "list")  # a flag
    assert "the ledger has no schedule" in psched.fault("--late", "60", "--from", "1d", "audit")
    psched.ok("-t", "UTC", "--start", "1893456000", "add", "add", "list", "@daily", "{}")
    psched.ok("--prefix", "add", "list")  # the value is the name of a command


@pytest.mark.parametrize("command", commands.commands.values(), ids=lambda command: command.name)
def test_an_option_takes_a_value_in_each_command_of_a_group_or_in_none(command: click.Command) -> None:
    values: dict[str, set[bool]] = {}
    for name, option in options_of(command):
        values.setdefault(name, set()).add(takes_value(option))
    assert [name for name, found in values.items() if len(found) > 1] == []


def test_the_environment_defaults_to_the_variable(psched: Commands, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PSCHED_ENV", "staging")
    monkeypatch.setenv("RAILS_ENV", "test")
    assert "there is no environment 'staging'" in psched.fault("list")
    psched.ok("list", "-e", "development")
    monkeypatch.setenv("PSCHED_ENV", "")
    assert "there is no environment 'test'" in psched.fault("list")


def test_the_configuration_defaults_to_the_variable(psched: Commands, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PSCHED_CONFIG", "another.yml")
    assert "another.yml: there is no such file" in psched.fault("list")
    psched.ok("list", "-c", "etc/psched.yml")


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


def test_a_command_is_imported_when_it_is_first_read() -> None:
    found = LazyCommands({"plan": "psched.cli.schedules_as_code:plan_", "broken": "psched.cli.nowhere:broken"})
    assert list(found) == ["plan", "broken"]
    assert found.get("other") is None
    assert found.get("plan") is found["plan"] is plan_
    with pytest.raises(ImportError, match="nowhere"):
        list(found.values())


def test_each_command_has_the_name_by_which_the_group_knows_it() -> None:
    assert [command.name for command in commands.commands.values()] == list(commands.commands)
