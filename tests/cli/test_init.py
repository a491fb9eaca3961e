"""psched init makes, upgrades or checks tables."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator

import pytest

from faultlab import next_layout
from tests.cli.commands import Commands


@pytest.fixture
def both(fresh: Commands) -> Commands:
    """A command line with schedules and a queue in one database file, which has no tables yet."""
    url = "  type: rdb\n    url: sqlite:///../psched.db"
    fresh.configure(f"development:\n  schedules:\n  {url}\n  queue:\n  {url}\n")
    return fresh


@pytest.fixture
def patch() -> Iterator[pytest.MonkeyPatch]:
    """A patch by which this process becomes a version of psched with another layout, until it is undone."""
    with pytest.MonkeyPatch.context() as patch:
        yield patch


def test_check_tells_what_init_would_do(both: Commands, patch: pytest.MonkeyPatch) -> None:
    missing = both("init", "--check")
    assert (missing.code, missing.out) == (1, "")
    assert "psched init" in missing.err
    both.ok("init")
    assert both("init", "--check") == both("queue", "init", "--check")
    assert both("init", "--check").code == 0
    next_layout.install(patch)
    for command in (("list",), ("queue", "list")):
        refused = both(*command)
        assert refused.code == 1
        assert "have the layout 1, but this version of psched needs 2; upgrade them with: psched init" in refused.err
    found = both("init", "--check")
    assert found.code == 3
    lines = found.out.splitlines()
    assert lines[0] == "-- schedules"
    assert "-- queue" in lines
    assert "ALTER TABLE psched_schedules ADD COLUMN note VARCHAR(64);" in lines
    assert both("init", "--check", "--json").json[0]["section"] == "schedules"
    both.ok("init")
    assert both("init", "--check").code == 0
    patch.undo()
    assert both("init", "--check").code == 0, "the version before uses these tables, too"


def test_check_refuses_a_layout_that_was_never_released(both: Commands) -> None:
    both.ok("init")
    with sqlite3.connect(both.folder / "psched.db") as connection:
        connection.execute("UPDATE psched_meta SET schema_hash = 'another'")
    connection.close()
    found = both("init", "--check")
    assert found.code == 1
    assert "created by another version of psched" in found.err
