"""Fixtures for embedded schedulers on each store. Each test has a prefix of its own."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

from faultlab.laboratory import Lab
from faultlab.mariadb import MariaDB
from faultlab.postgresql import PostgreSQL
from faultlab.redis import Redis
from faultlab.servers import Server
from tests.scheduler.site import Launcher, Site
from tests.trials import in_suite_on, take_turns, tests_below

KINDS: dict[str, type[Server]] = {"mariadb": MariaDB, "postgresql": PostgreSQL, "redis": Redis}
STORES = ["sqlite", *KINDS]

_numbers = itertools.count()


@pytest.fixture(scope="session")
def urls(lab: Lab) -> dict[str, str]:
    """The URLs of these tests' databases, by kind of server. A URL is added when a test first needs it."""
    return {}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Let the suite run each test on one database only. The tests in tests/stores run on all databases."""
    here = tests_below(__file__, items)
    take_turns(here, ["sqlite"], ["postgresql"], ["redis"])


@pytest.fixture(scope="session")
def launcher(lab: Lab) -> Iterator[Launcher]:
    """Starts processes with schedulers, for all tests."""
    with Launcher() as launcher:
        yield launcher


@pytest.fixture
def site(launcher: Launcher, tmp_path: Path) -> Iterator[Site]:
    """Unused tables on SQLite, with schedulers for them."""
    with Site(f"sqlite:///{tmp_path}/psched.db", "test:", tmp_path, launcher) as site:
        yield site


@pytest.fixture(params=in_suite_on(["postgresql", "redis"], STORES))
def each_site(
    request: pytest.FixtureRequest, lab: Lab, urls: dict[str, str], launcher: Launcher, tmp_path: Path
) -> Iterator[Site]:
    """Unused tables on each store, with schedulers for them."""
    yield from _site(request.param, lab, urls, launcher, tmp_path)


@pytest.fixture(params=["sqlite", "redis"])
def sqlite_and_redis(
    request: pytest.FixtureRequest, lab: Lab, urls: dict[str, str], launcher: Launcher, tmp_path: Path
) -> Iterator[Site]:
    """Unused tables on SQLite and on Redis, with schedulers for them. For slow tests."""
    yield from _site(request.param, lab, urls, launcher, tmp_path)


@pytest.fixture
def redis_site(lab: Lab, urls: dict[str, str], launcher: Launcher, tmp_path: Path) -> Iterator[Site]:
    """Unused tables on Redis, with schedulers for them."""
    yield from _site("redis", lab, urls, launcher, tmp_path)


def _site(kind: str, lab: Lab, urls: dict[str, str], launcher: Launcher, tmp_path: Path) -> Iterator[Site]:
    if kind not in urls and kind in KINDS:
        server = lab.shared(KINDS[kind])
        urls[kind] = server.url(server.create_database())
    url = f"sqlite:///{tmp_path}/psched.db" if kind == "sqlite" else urls[kind]
    with Site(url, f"test_{next(_numbers)}:", tmp_path, launcher) as site:
        yield site
