"""Fixtures for the tests of promises: clusters of masters on each store and each database."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from faultlab.laboratory import Lab
from faultlab.pgbouncer import PgBouncer
from faultlab.redis import Redis
from faultlab.servers import Server
from tests.promises.cluster import Cluster
from tests.stores.databases import KINDS, PGBOUNCER, STORES

MakeCluster = Callable[..., Cluster]

ON_SERVERS = [f"{database}-{store}" for database in KINDS for store in STORES]
SERVERS_AND_STORES = ["mariadb-rdb_compat", "postgresql-rdb"]
"""Parameters for slow tests: each server and each SQL store once. The conformance tests compare all pairs."""
AND_REDIS = [*SERVERS_AND_STORES, "redis-redis"]
"""Parameters for slow tests that depend on the server, its clock or its lease holders. They include Redis."""
SERVERS: dict[str, type[Server]] = {**KINDS, "redis": Redis}


@pytest.fixture
def make_cluster(tmp_path: Path) -> Iterator[MakeCluster]:
    """A function that makes a cluster with a configuration. It starts no master."""
    with ExitStack() as stack:
        yield lambda **config: stack.enter_context(Cluster(tmp_path, **config))


@pytest.fixture
def cluster_on(
    request: pytest.FixtureRequest, lab: Lab, tmp_path: Path, make_cluster: MakeCluster
) -> Iterator[MakeCluster]:
    """A function that makes a cluster on an empty database. The test's parameter names the database and the store.

    An example of the parameter: "mariadb-rdb".
    """
    database, store = request.param.split("-")
    if database == "sqlite":
        yield lambda **config: make_cluster(type=store, url=f"sqlite:///{tmp_path}/psched.db", **config)
        return
    server = lab.shared_pooler(PgBouncer) if database == PGBOUNCER else lab.shared(SERVERS[database])
    with server.database() as url:
        yield lambda **config: make_cluster(type=store, url=url, **config)
