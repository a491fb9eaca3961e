"""Fixtures of the command line's tests."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.commands import Commands


@pytest.fixture
def fresh(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Iterator[Commands]:
    """A command line in an empty folder; local time is Tokyo's."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path)
        patch.setenv("TZ", "Asia/Tokyo")
        patch.delenv("PSCHED_ENV", raising=False)
        time.tzset()
        yield Commands(tmp_path, capsys)
    time.tzset()


@pytest.fixture
def psched(fresh: Commands) -> Commands:
    """A command line with a SQLite database whose tables are made."""
    fresh.use("sqlite:///../psched.db")
    fresh.ok("init")
    return fresh
