"""Schedulers on each store, each test with a prefix of its own."""

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
from tests.scheduler.site import Farm, Site

KINDS: dict[str, type[Server]] = {"mariadb": MariaDB, "postgresql": PostgreSQL, "redis": Redis}
STORES = ["sqlite", *KINDS]

_numbers = itertools.count()


@pytest.fixture(scope="session")
def urls(lab: Lab) -> dict[str, str]:
    """The databases that were made for these tests, by kind."""
    return {}


@pytest.fixture(scope="session")
def farm(lab: Lab) -> Iterator[Farm]:
    """Where processes with schedulers come from."""
    with Farm() as farm:
        yield farm


@pytest.fixture
def open_section(farm: Farm, tmp_path: Path) -> Iterator[Site]:
    """A place on SQLite that no scheduler has used."""
    with Site(f"sqlite:///{tmp_path}/psched.db", "test:", tmp_path, farm) as open_section:
        yield open_section


@pytest.fixture(params=STORES)
def each_site(
    request: pytest.FixtureRequest, lab: Lab, urls: dict[str, str], farm: Farm, tmp_path: Path
) -> Iterator[Site]:
    """A place on each store that no scheduler has used."""
    yield from _site(request.param, lab, urls, farm, tmp_path)


@pytest.fixture(params=["sqlite", "redis"])
def file_and_server(
    request: pytest.FixtureRequest, lab: Lab, urls: dict[str, str], farm: Farm, tmp_path: Path
) -> Iterator[Site]:
    """The same on two stores only, for what takes its time."""
    yield from _site(request.param, lab, urls, farm, tmp_path)


@pytest.fixture
def redis_site(lab: Lab, urls: dict[str, str], farm: Farm, tmp_path: Path) -> Iterator[Site]:
    """The same on Redis."""
    yield from _site("redis", lab, urls, farm, tmp_path)


def _site(kind: str, lab: Lab, urls: dict[str, str], farm: Farm, tmp_path: Path) -> Iterator[Site]:
    if kind not in urls and kind in KINDS:
        server = lab.shared(KINDS[kind])
        urls[kind] = server.url(server.create_database())
    url = f"sqlite:///{tmp_path}/psched.db" if kind == "sqlite" else urls[kind]
    with Site(url, f"test_{next(_numbers)}:", tmp_path, farm) as open_section:
        yield open_section
