"""Schedulers on each store, each test with a prefix of its own."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.lab.laboratory import Lab
from tests.lab.mariadb import MariaDB
from tests.lab.postgresql import PostgreSQL
from tests.lab.redis import Redis
from tests.lab.servers import Server
from tests.scheduler.site import Site

KINDS: dict[str, type[Server]] = {"mariadb": MariaDB, "postgresql": PostgreSQL, "redis": Redis}
STORES = ["sqlite", *KINDS]

_numbers = itertools.count()


@pytest.fixture(scope="session")
def urls(lab: Lab) -> dict[str, str]:
    """The databases that were made for these tests, by kind."""
    return {}


@pytest.fixture
def site(lab: Lab, tmp_path: Path) -> Iterator[Site]:
    """A place on SQLite that no scheduler has used."""
    with Site(f"sqlite:///{tmp_path}/psched.db", "test:", tmp_path) as site:
        yield site


@pytest.fixture(params=STORES)
def each_site(request: pytest.FixtureRequest, lab: Lab, urls: dict[str, str], tmp_path: Path) -> Iterator[Site]:
    """A place on each store that no scheduler has used."""
    kind = request.param
    if kind not in urls and kind in KINDS:
        server = lab.shared(KINDS[kind])
        urls[kind] = server.url(server.create_database())
    url = f"sqlite:///{tmp_path}/psched.db" if kind == "sqlite" else urls[kind]
    with Site(url, f"test_{next(_numbers)}:", tmp_path) as site:
        yield site
