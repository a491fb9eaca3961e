"""The shell completes commands, and keys and types from the database."""

from __future__ import annotations

import pytest
from click.shell_completion import ShellComplete

from psched.cli.main import psched as group
from tests.cli.commands import Commands


def completed(*words: str) -> list[str]:
    *arguments, incomplete = words
    found = ShellComplete(group, {}, "psched", "_PSCHED_COMPLETE").get_completions(arguments, incomplete)
    return [item.value for item in found]


@pytest.fixture
def rows(psched: Commands) -> None:
    psched.ok("add", "night.report", "reports.report", "0 9 * * *", "{}")
    psched.ok("add", "noon", "mail", "0 12 * * *", "{}")
    psched.ok("queue", "init")
    psched.ok("queue", "submit", "task-1", "video", "{}")


@pytest.mark.usefixtures("rows")
def test_keys_and_types_are_completed_from_the_database() -> None:
    assert completed("show", "ni") == ["night.report"]
    assert completed("delete", "") == completed("explain", "--key", "") == ["night.report", "noon"]
    assert completed("add", "new", "") == completed("list", "--type", "") == ["mail", "reports.report"]
    assert completed("queue", "show", "") == ["task-1"]
    assert completed("queue", "submit", "new", "v") == ["video"]
    assert completed("-c", "etc/psched.yml", "show", "no") == ["noon"]


def test_without_a_database_there_are_no_words_and_no_message(
    fresh: Commands, capsys: pytest.CaptureFixture[str]
) -> None:
    assert completed("show", "x") == []
    assert capsys.readouterr() == ("", "")
