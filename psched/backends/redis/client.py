"""Which errors of redis-py pass by themselves. Used in children and clients."""

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
"""What redis-py raises."""

_REFUSED = (AuthenticationError, AuthorizationError, NoPermissionError)
_UNANSWERED = (ConnectionError, TimeoutError, RedisClusterException)  # the last after one of the others, it may be
_PASSING = (*_UNANSWERED, ClusterDownError, OutOfMemoryError, ReadOnlyError, TryAgainError)
_PASSING_WORDS = re.compile(
    r"\b(LOADING|READONLY|MASTERDOWN|OOM|CLUSTERDOWN|TRYAGAIN|MISCONF|NOREPLICAS|BUSY|MOVED|ASK)\b"
    r"|max number of clients|maxmemory|read only replica|instance unblocked"
)


def passes(error: Exception) -> bool:
    """Tell whether `error` means the server is away, overloaded, full or read-only, and will pass by itself."""
    if not isinstance(error, DriverError) or is_refused(error):
        return False
    if "Cluster mode is not enabled" in str(error):
        return False
    return isinstance(error, _PASSING) or _PASSING_WORDS.search(str(error)) is not None


def is_refused(error: BaseException) -> bool:
    """Tell whether the server refuses our user: WRONGPASS, NOAUTH or NOPERM. A cluster's client wraps it."""
    return isinstance(error, _REFUSED) or isinstance(error.__cause__, _REFUSED)


def is_unanswered(error: Exception) -> bool:
    """Tell whether nobody knows if what was asked for was done."""
    return isinstance(error, _UNANSWERED)


T = TypeVar("T")
Argument = str | int | bytes
Client = Any
"""A Redis or a RedisCluster of redis-py, whose commands are the same."""

_NO_LIMIT = 2**31
"""Connections; whoever has that many threads asking at once shall have them."""


class RedisServer:
    """Runs scripts on one Redis.

    Safe to use from several threads, and after a fork in both processes: the new one makes connections of its own.
    """

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
        """Return `work(uncertain)`, done again when the connection was lost or the server is not ready.

        With `until` (boottime seconds) that goes on up to then. The flag says whether an earlier attempt may have been
        done without our knowing. `work` must bear being done twice.
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
        """Run `script` once and return its answer, in bytes; a server that has forgotten the script is told it anew."""
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
        """Return the keys that begin with `prefix` on the server that has `key`, found a thousand at a time."""
        client: Client = Redis(connection_pool=self.pool_for(key))
        return list(client.scan_iter(f"{prefix}*", count=1000))

    def client(self) -> Client:
        """Return the redis-py client, made when it is first needed."""
        with self._lock:
            if self._client is None:
                self._client = self._made()
            return self._client

    def pool_for(self, key: str) -> ConnectionPool:
        """Return the connections to the server that has `key`. Asks a cluster."""
        client: Client = self.client()
        if isinstance(client, RedisCluster):
            return _pool_of(client, key)
        pool: ConnectionPool = client.connection_pool
        return pool

    def new_connection(self, key: str) -> Any:
        """Return a connection of the caller's own to the server that has `key`, not connected yet. Asks a cluster."""
        pool = self.pool_for(key)
        return pool.connection_class(**pool.connection_kwargs)

    def is_same(self, other: RedisServer) -> bool:
        """Tell whether `other` is the same database, reached in the same way."""
        return self.location == other.location

    def begin_anew(self) -> None:
        """In a process that was forked off: leave the client to the parent, with its pool's locks and a cluster's."""
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
        options = {name: value for name, value in self.location.options.items() if name != "db"}  # it has one
        if options.pop("connection_class", None) is SSLConnection:
            options["ssl"] = True
        # It follows a slot that has moved; but what it sent again by itself would not be known to be `uncertain`.
        return _Cluster(self._log_in, retry=Retry(NoBackoff(), 0), require_full_coverage=False, **options)

    def _log_in(self, connect: Callable[[], None]) -> None:
        """Log in on a connection that was just made, by `connect`. Raises redis-py's errors."""
        self._logins.log_in(connect, is_refused)

    def _drop_idle(self) -> None:
        """Close what may be dead, or lead to a primary that is none any more."""
        client = self._client
        if isinstance(client, Redis):
            client.connection_pool.disconnect(inuse_connections=False)


class _Cluster(RedisCluster):
    """A client of a cluster; `log_in` calls what logs in on a new connection."""

    def __init__(self, log_in: Callable[[Callable[[], None]], None], **options: Any) -> None:
        self._log_in = log_in
        super().__init__(**options)

    def on_connect(self, connection: Any) -> None:
        """Log in on a connection that was just made."""
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
        return False  # it may not be asked
    return bool(found.get("cluster_enabled"))


def _closed(client: Client) -> None:
    client.close()
    pool = getattr(client, "connection_pool", None)
    if pool is not None:
        pool.disconnect()
