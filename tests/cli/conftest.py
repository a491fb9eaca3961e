"""Fixtures of the command line's tests."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.commands import Commands
from tests.prepared_sqlite import make_tables
from tests.trials import take_turns, tests_below


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Let the suite run each test on SQLite, and on only one of MariaDB and PostgreSQL.

    The other tests become trials.
    """
    here = tests_below(__file__, items)
    take_turns(here, ["mariadb"], ["postgresql"])


@pytest.fixture
def fresh(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Iterator[Commands]:
    """A command line in an empty folder. The local time zone is Tokyo's."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path)
        patch.setenv("TZ", "Asia/Tokyo")
        patch.delenv("PSCHED_ENV", raising=False)
        patch.delenv("RAILS_ENV", raising=False)
        time.tzset()
        path = list(sys.path)
        yield Commands(tmp_path, capsys)
    time.tzset()
    sys.path[:] = path
    forget_modules(tmp_path)


@pytest.fixture
def psched(fresh: Commands) -> Commands:
    """A command line with a SQLite database that has psched's tables."""
    fresh.use("sqlite:///../psched.db")
    make_tables(fresh.folder / "psched.db", ("init",), lambda: fresh.ok("init"))
    return fresh


def forget_modules(folder: Path) -> None:
    """Remove the folder's modules from `sys.modules`, so that another test can import a module of the same name."""
    for name, module in list(sys.modules.items()):
        if str(getattr(module, "__file__", None)).startswith(str(folder)):
            del sys.modules[name]
