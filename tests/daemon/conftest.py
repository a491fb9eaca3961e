"""Fixtures for tests that drive a real master."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from faultlab.forkserver_client import SOCKET
from faultlab.laboratory import Lab
from tests.daemon.harness import Daemon
from tests.daemon.pschedd import Pschedd, installed
from tests.trials import take_turns, tests_below

_SENTRY = (
    "sentry_sdk", "sentry_sdk.integrations.asyncpg", "sentry_sdk.integrations.celery",
    "sentry_sdk.integrations.django", "sentry_sdk.integrations.fastapi", "sentry_sdk.integrations.flask",
    "sentry_sdk.integrations.httpx", "sentry_sdk.integrations.litestar", "sentry_sdk.integrations.redis",
    "sentry_sdk.integrations.sqlalchemy", "sentry_sdk.integrations.starlette", "psched.contrib.sentry",
)  # fmt: skip
"""What an application imports that reports to Sentry, which tries to integrate all of these."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave to the suite each test on one database: a store's own promises are held by tests/stores on all of them."""
    here = tests_below(__file__, items)
    take_turns(here, ["sqlite"], ["mariadb"], ["postgresql"], ["redis"])


@pytest.fixture
def make_daemon(tmp_path: Path) -> Iterator[Callable[..., Daemon]]:
    """A function that prepares a daemon with keys of the configuration; it is not started yet."""
    with ExitStack() as stack:
        yield lambda **config: stack.enter_context(Daemon(tmp_path, **config))


@pytest.fixture
def forked_off_with_sentry(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fork masters off a process that has imported what would take each of their children two seconds."""
    monkeypatch.setenv(SOCKET, str(lab.fork_server(_SENTRY)))


@pytest.fixture
def daemon(make_daemon: Callable[..., Daemon]) -> Daemon:
    """A running daemon with one worker."""
    prepared: Any = make_daemon()
    return prepared.start()  # type: ignore[no-any-return]


@pytest.fixture
def pschedd(tmp_path: Path) -> Iterator[Pschedd]:
    """The command `pschedd` in a folder with a configuration and a table; no daemon is started yet."""
    with installed(tmp_path) as pschedd:
        yield pschedd
