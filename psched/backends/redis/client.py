"""The connection to a Redis server or cluster: runs scripts, retries, and classifies the errors of redis-py."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from redis import Redis, RedisCluster
from redis.backoff import NoBackoff
from redis.connection import ConnectionPool, SSLConnection
from redis.exceptions import (
    AuthenticationError,
    AuthorizationError,
    ClusterDownError,
    ConnectionError,  # noqa: A004 – redis-py's own
    NoPermissionError,
    NoScriptError,
    OutOfMemoryError,
    ReadOnlyError,
    RedisClusterException,
    RedisError,
    ResponseError,
    TimeoutError,  # noqa: A004 – redis-py's own
    TryAgainError,
)
from redis.retry import Retry

from psched import fork_safety as forks
from psched.backends.common.errors import Fault
from psched.backends.common.retries import LoginBackoff, Retries
from psched.backends.redis.scripts import Script
from psched.backends.redis.url import Location
from psched.clock import Clock, boottime

DriverError: tuple[type[Exception], ...] = (RedisError, RedisClusterException)
"""The base classes of redis-py's errors."""

_REFUSED = (AuthenticationError, AuthorizationError, NoPermissionError)
_UNANSWERED = (ConnectionError, TimeoutError, RedisClusterException)  # the last may wrap others
_PASSING = (*_UNANSWERED, ClusterDownError, OutOfMemoryError, ReadOnlyError, TryAgainError)
_PASSING_WORDS = re.compile(
    r"\b(LOADING|READONLY|MASTERDOWN|OOM|CLUSTERDOWN|TRYAGAIN|MISCONF|NOREPLICAS|BUSY|MOVED|ASK)\b"
    r"|max number of clients|maxmemory|read only replica|instance unblocked"
)


def passes(error: Exception) -> bool:
    """Return whether `error` is temporary: the server is away, overloaded, full or read-only."""
    if not isinstance(error, DriverError) or is_refused(error):
        return False
    if "Cluster mode is not enabled" in str(error):
        return False
    return isinstance(error, _PASSING) or _PASSING_WORDS.search(str(error)) is not None


def is_refused(error: BaseException) -> bool:
    """Return whether the server refuses the user (WRONGPASS, NOAUTH, NOPERM), also when a cluster's client wraps it."""
    return isinstance(error, _REFUSED) or isinstance(error.__cause__, _REFUSED)


def is_unanswered(error: Exception) -> bool:
    """Return whether `error` leaves open if the server has executed the command."""
    return isinstance(error, _UNANSWERED)


T = TypeVar("T")
Argument = str | int | bytes
Client = Any
"""A Redis or a RedisCluster of redis-py, whose commands are the same."""

_NO_LIMIT = 2**31
"""Connections of one pool; the number of threads is the only limit."""


class RedisServer:
    """Runs scripts on one Redis. Thread-safe; after a fork the child opens its own connections."""

    def __init__(
        self, location: Location, clock: Clock = boottime, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        """Connects to nothing yet."""
        self.location = location
        self._clock = clock
        self._sleep = sleep
        self._logins = LoginBackoff()
        self._parents: list[Client] = []
        self._client: Client | None = None
        self._lock = threading.Lock()
        forks.register_for_fork(self)

    def run(self, work: Callable[[bool], T], until: float | None = None) -> T:
        """Return `work(uncertain)`; repeat it when the connection is lost or the server is not ready.

        With `until` (boottime seconds) it is repeated until then. `uncertain` is true when the server may have
        executed an earlier attempt. `work` must be safe to execute twice.
        """
        retries = Retries(until, self._clock)
        uncertain = False
        while True:
            try:
                return work(uncertain)
            except DriverError as error:
                pause = retries.pause(Fault.LOST if passes(error) else None)
                if is_refused(error) and (left := self._logins.pause()):
                    pause = retries.pause_of_login(left)
                if passes(error):
                    self._drop_idle()
                if pause is None:
                    raise
                uncertain = uncertain or is_unanswered(error)
            self._sleep(pause)

    def call(self, script: Script, keys: Sequence[str], arguments: Sequence[Argument]) -> Any:
        """Run `script` once by EVALSHA and return its answer, in bytes; by EVAL when the server does not know it."""
        client = self.client()
        try:
            return client.evalsha(script.digest, len(keys), *keys, *arguments)
        except NoScriptError:
            return client.eval(script.text, len(keys), *keys, *arguments)

    def call_on(self, key: str, *words: Argument) -> Any:
        """Send one command to the server that has `key`, and return its answer."""
        client: Client = Redis(connection_pool=self.pool_for(key))
        return client.execute_command(*words)

    def names(self, key: str, prefix: str) -> list[bytes]:
        """Return the keys that begin with `prefix` on the server that has `key`."""
        client: Client = Redis(connection_pool=self.pool_for(key))
        return list(client.scan_iter(f"{prefix}*", count=1000))

    def client(self) -> Client:
        """Return the redis-py client, which the first call creates."""
        with self._lock:
            if self._client is None:
                self._client = self._made()
            return self._client

    def pool_for(self, key: str) -> ConnectionPool:
        """Return the connection pool of the server that has `key`. Asks a cluster."""
        client: Client = self.client()
        if isinstance(client, RedisCluster):
            return _pool_of(client, key)
        pool: ConnectionPool = client.connection_pool
        return pool

    def new_connection(self, key: str) -> Any:
        """Return a new connection to the server that has `key`, not connected yet. Asks a cluster."""
        pool = self.pool_for(key)
        return pool.connection_class(**pool.connection_kwargs)

    def is_same(self, other: RedisServer) -> bool:
        """Return whether `other` has the same location."""
        return self.location == other.location

    def begin_anew(self) -> None:
        """Forget the parent's client and its locks. Called in a child after a fork."""
        self._parents.append(self._client)
        self._client = None
        self._lock = threading.Lock()

    def close(self) -> None:
        """Close all connections; idempotent."""
        with self._lock:
            client, self._client = self._client, None
        if client is not None:
            _closed(client)

    def _made(self) -> Client:
        single = Redis(
            connection_pool=ConnectionPool(
                retry=Retry(NoBackoff(), 0),
                max_connections=_NO_LIMIT,
                redis_connect_func=lambda connection: self._log_in(connection.on_connect),
                **self.location.options,
            )
        )
        cluster = self.location.cluster
        try:
            if cluster is None:
                cluster = _is_cluster(single)
        except BaseException:
            _closed(single)
            raise
        if not cluster:
            return single
        _closed(single)
        options = {name: value for name, value in self.location.options.items() if name != "db"}  # a cluster has only 0
        if options.pop("connection_class", None) is SSLConnection:
            options["ssl"] = True
        # No retries of its own: `run` must know which attempts are uncertain. It follows a slot that has moved.
        return _Cluster(self._log_in, retry=Retry(NoBackoff(), 0), require_full_coverage=False, **options)

    def _log_in(self, connect: Callable[[], None]) -> None:
        """Log in on a new connection by `connect`, with a pause after refusals. Raises redis-py's errors."""
        self._logins.log_in(connect, is_refused)

    def _drop_idle(self) -> None:
        """Close idle connections, which may be dead or lead to a former primary."""
        client = self._client
        if isinstance(client, Redis):
            client.connection_pool.disconnect(inuse_connections=False)


class _Cluster(RedisCluster):
    """A cluster's client whose connections log in by `log_in`."""

    def __init__(self, log_in: Callable[[Callable[[], None]], None], **options: Any) -> None:
        self._log_in = log_in
        super().__init__(**options)

    def on_connect(self, connection: Any) -> None:
        """Log in on a new connection. Called by redis-py."""
        self._log_in(lambda: super(_Cluster, self).on_connect(connection))  # type: ignore[no-untyped-call]


def _pool_of(cluster: Client, key: str) -> ConnectionPool:
    pool: ConnectionPool = cluster.get_redis_connection(cluster.get_node_from_key(key)).connection_pool
    return pool


def _is_cluster(client: Redis) -> bool:
    try:
        found: Any = client.info("cluster")
    except ResponseError as error:
        if passes(error):
            raise
        return False  # the user may not ask
    return bool(found.get("cluster_enabled"))


def _closed(client: Client) -> None:
    client.close()
    pool = getattr(client, "connection_pool", None)
    if pool is not None:
        pool.disconnect()
