"""Fixtures of the promises' tests: clusters of masters on each store and each database server."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.lab.servers import Server
from tests.promises.cluster import Cluster

MakeCluster = Callable[..., Cluster]


@pytest.fixture(params=["rdb", "rdb_compat"])
def store_type(request: pytest.FixtureRequest) -> str:
    """Each kind of store."""
    kind: str = request.param
    return kind


@pytest.fixture
def make_cluster(tmp_path: Path) -> Iterator[MakeCluster]:
    """A function that makes a cluster, with its configuration; no master is started."""
    with ExitStack() as stack:
        yield lambda **config: stack.enter_context(Cluster(tmp_path, **config))


@pytest.fixture
def on_server(server: Server, store_type: str, make_cluster: MakeCluster) -> Iterator[MakeCluster]:
    """The same on each kind of store on each database server."""
    with server.database() as url:
        yield lambda **config: make_cluster(type=store_type, url=url, **config)


@pytest.fixture
def on_database(database: str, store_type: str, make_cluster: MakeCluster) -> MakeCluster:
    """The same on each kind of store on each database, SQLite included."""
    return lambda **config: make_cluster(type=store_type, url=database, **config)
