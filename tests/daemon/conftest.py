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
"""Modules that an application with Sentry imports. Sentry tries to integrate all of them."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Let the suite run each test on one database only. The tests in tests/stores run on all databases."""
    here = tests_below(__file__, items)
    take_turns(here, ["sqlite"], ["mariadb"], ["postgresql"], ["redis"])


@pytest.fixture
def make_daemon(tmp_path: Path) -> Iterator[Callable[..., Daemon]]:
    """A function that prepares a daemon, but does not start it. Its arguments: keys of the configuration."""
    with ExitStack() as stack:
        yield lambda **config: stack.enter_context(Daemon(tmp_path, **config))


@pytest.fixture
def forked_off_with_sentry(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fork masters from a process that has already imported Sentry.

    Otherwise each child would spend two seconds on that.
    """
    monkeypatch.setenv(SOCKET, str(lab.fork_server(_SENTRY)))


@pytest.fixture
def daemon(make_daemon: Callable[..., Daemon]) -> Daemon:
    """A running daemon with one worker."""
    prepared: Any = make_daemon()
    return prepared.start()  # type: ignore[no-any-return]


@pytest.fixture
def pschedd(tmp_path: Path) -> Iterator[Pschedd]:
    """The command `pschedd`, in a folder with a configuration and a database with tables. No daemon runs yet."""
    with installed(tmp_path) as pschedd:
        yield pschedd
