"""Fixtures of the promises' tests: clusters of masters on each store and each database."""

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
"""For what takes its time: each server and each store once. That all agree is the conformance suite's affair."""
AND_REDIS = [*SERVERS_AND_STORES, "redis-redis"]
"""The same for what has to do with the server, its clock and its holders."""
SERVERS: dict[str, type[Server]] = {**KINDS, "redis": Redis}


@pytest.fixture
def make_cluster(tmp_path: Path) -> Iterator[MakeCluster]:
    """A function that makes a cluster, with its configuration; no master is started."""
    with ExitStack() as stack:
        yield lambda **config: stack.enter_context(Cluster(tmp_path, **config))


@pytest.fixture
def cluster_on(
    request: pytest.FixtureRequest, lab: Lab, tmp_path: Path, make_cluster: MakeCluster
) -> Iterator[MakeCluster]:
    """The same in the place that the test's parameter names ("mariadb-rdb"), on an empty database."""
    database, store = request.param.split("-")
    if database == "sqlite":
        yield lambda **config: make_cluster(type=store, url=f"sqlite:///{tmp_path}/psched.db", **config)
        return
    server = lab.shared_pooler(PgBouncer) if database == PGBOUNCER else lab.shared(SERVERS[database])
    with server.database() as url:
        yield lambda **config: make_cluster(type=store, url=url, **config)
