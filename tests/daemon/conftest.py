"""Fixtures for tests that drive a real master."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.daemon.harness import Daemon
from tests.daemon.pschedd import Pschedd, installed


@pytest.fixture
def make_daemon(tmp_path: Path) -> Iterator[Callable[..., Daemon]]:
    """A function that prepares a daemon with keys of the configuration; it is not started yet."""
    with ExitStack() as stack:
        yield lambda **config: stack.enter_context(Daemon(tmp_path, **config))


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
