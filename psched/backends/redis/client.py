"""The connection to a Redis server or cluster: its URL, scripts and retries, and the meaning of redis-py's errors.

No message shows a URL, because a URL may hold a password.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar
from urllib.parse import parse_qsl, urlsplit

from redis import Redis, RedisCluster, connection
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
from psched.backends.common.connection_options import Timeouts, Tls, encryption_finding
from psched.backends.common.retries import LoginBackoff, Retries, RetryReason
from psched.backends.redis.script_composer import Script
from psched.clock import boottime
from psched.descriptor_shortage import is_shortage
from psched.errors import ConfigError
from psched.store import Finding

DriverError: tuple[type[Exception], ...] = (RedisError, RedisClusterException)
"""The base classes of redis-py's errors."""
_RAISED: tuple[type[Exception], ...] = (*DriverError, OSError)
"""The errors that redis-py may raise. An OSError is one of a file that redis-py reads before it connects."""

_REFUSED = (AuthenticationError, AuthorizationError, NoPermissionError)
_UNANSWERED = (ConnectionError, TimeoutError, RedisClusterException)  # RedisClusterException may wrap one of the others
"""Errors after which it is unknown whether the server executed the command."""
_TEMPORARY = (*_UNANSWERED, ClusterDownError, OutOfMemoryError, ReadOnlyError, TryAgainError)
_TEMPORARY_WORDS = re.compile(
    r"\b(LOADING|READONLY|MASTERDOWN|OOM|CLUSTERDOWN|TRYAGAIN|MISCONF|NOREPLICAS|BUSY|MOVED|ASK)\b"
    r"|max number of clients|maxmemory|read only replica|instance unblocked"
)


def is_temporary(error: Exception) -> bool:
    """Return whether `error` is temporary: the server is unreachable, overloaded, full or read-only.

    Also true if this process has no free file descriptor, because redis-py reads a file before it connects.
    """
    if isinstance(error, OSError):
        return is_shortage(error)
    if not isinstance(error, DriverError) or is_refused(error):
        return False
    if "Cluster mode is not enabled" in str(error):
        return False
    return isinstance(error, _TEMPORARY) or _TEMPORARY_WORDS.search(str(error)) is not None


def is_refused(error: BaseException) -> bool:
    """Return whether the server refuses the user (WRONGPASS, NOAUTH, NOPERM).

    An error of a cluster's client may wrap the server's error.
    """
    return isinstance(error, _REFUSED) or isinstance(error.__cause__, _REFUSED)


_OPTIONS = ("connect_timeout", "read_timeout", "cluster", "db")
_CLUSTER = {"auto": None, "true": True, "false": False}
_EXPECTED = "expected for example redis://:password@host:6379/0, rediss://… or unix:///run/redis.sock?db=0"
_ENCODED = "write / ? # @ in a password as %2F %3F %23 %40 (and % as %25)"
_parse_url: Callable[[str], dict[str, Any]] = connection.parse_url
_IDLE = 30
"""Seconds after which an idle connection is checked before use."""


@dataclass(frozen=True, slots=True)
class Location:
    """The address of a Redis database or cluster, parsed from its URL.

    `options`: arguments of redis-py's connections, including the password. `cluster`: whether it is a cluster; None:
    ask the server.
    """

    options: Mapping[str, Any] = field(repr=False)
    timeouts: Timeouts
    cluster: bool | None
    tls: Tls | None

    def encryption(self) -> Finding:
        encrypted = self.options.get("connection_class") is SSLConnection
        verified = "full" if self.options.get("ssl_check_hostname") else "ca"
        verify = verified if self.options.get("ssl_cert_reqs") == "required" else "none"
        host = str(self.options.get("host", ""))
        return encryption_finding(encrypted, verify, host, self.tls, "write rediss:// in `url:`")


def located(url: str, tls: Mapping[str, Any], short_reads: bool = False) -> Location:
    """Parse a URL and the configuration's `tls` mapping. Raises ConfigError.

    `short_reads`: wait at most 2.5 s for a connection, and again for each answer.
    """
    try:
        parts = urlsplit(url)
    except ValueError:
        raise ConfigError(f"url: not a URL of Redis; {_EXPECTED}; {_ENCODED}") from None
    if parts.scheme not in ("redis", "rediss", "unix"):
        raise ConfigError(f"url: {parts.scheme}:// is not a scheme of Redis; {_EXPECTED}")
    if "@" in parts.path + parts.query + parts.fragment:
        raise ConfigError(f"url: {_ENCODED}; {_EXPECTED}")  # an @ after the host belongs to a password
    given = dict(parse_qsl(parts.query, keep_blank_values=True))
    unknown = next((name for name in given if name not in _OPTIONS), None)
    if unknown is not None:
        raise ConfigError(f"url: unknown option {unknown!r}; the known options are {', '.join(_OPTIONS)}")
    timeouts, cluster, database = Timeouts.of(given), given.get("cluster", "auto"), given.get("db", "")
    if short_reads:
        timeouts = timeouts.for_readers()
    if cluster not in _CLUSTER:
        raise ConfigError(f"url: cluster must be auto, true or false, got {cluster!r}")
    try:
        plain: dict[str, Any] = _parse_url(url.partition("?")[0])
    except ValueError:
        raise ConfigError(f"url: not a URL of Redis; {_EXPECTED}") from None
    options = {
        **plain,
        "db": _database(database if database or plain.get("path") else parts.path.removeprefix("/")),
        "socket_timeout": timeouts.read,
        "socket_connect_timeout": timeouts.connect,
        "health_check_interval": _IDLE,
        "protocol": 2,
        **_encryption(parts.scheme, tls),
    }
    return Location(options, timeouts, _CLUSTER[cluster], Tls.of(tls))


def _database(text: str) -> int:
    if text and not (text.isascii() and text.isdigit() and len(text) < 9):
        raise ConfigError(f"url: the database must be a number, as in redis://host:6379/0; got {text!r}")
    return int(text or 0)


def _encryption(scheme: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    tls = Tls.of(settings)
    if scheme != "rediss":
        if tls is not None:
            raise ConfigError(f"tls: {scheme}:// is not encrypted; write rediss:// in `url:`, or remove `tls:`")
        return {}
    tls = tls or Tls()
    return {
        "ssl_ca_certs": tls.ca,
        "ssl_certfile": tls.cert,
        "ssl_keyfile": tls.key,
        "ssl_cert_reqs": "none" if tls.verify == "none" else "required",
        "ssl_check_hostname": tls.verify == "full",
    }


T = TypeVar("T")
Argument = str | int | bytes
Client = Any
"""A Redis or a RedisCluster of redis-py. Both have the same commands."""

_NO_LIMIT = 2**31
"""A number of connections that no pool reaches. Each thread uses only one connection."""


class RedisServer:
    """Runs scripts on one Redis. Thread-safe; after a fork the child opens its own connections."""

    def __init__(self, location: Location) -> None:
        self.location = location
        self._logins = LoginBackoff()
        self._parents: list[Client] = []
        self._client: Client | None = None
        self._lock = threading.Lock()
        forks.register_for_fork(self)

    def run(self, work: Callable[[bool], T], until: float | None = None) -> T:
        """Return `work(uncertain)`. Repeats the call if the connection is lost or the server is not ready.

        `until`: repeat until this time (boottime seconds). `uncertain` is true if the server may have executed an
        earlier attempt. `work` must be safe to execute twice.
        """
        retries = Retries(boottime(), until, boottime, self._logins)
        uncertain = False
        while True:
            try:
                return work(uncertain)
            except _RAISED as error:
                pause = retries.pause(RetryReason.LOST if is_temporary(error) else None, is_refused(error))
                if is_temporary(error):
                    self._drop_idle()
                if pause is None:
                    raise
                uncertain = uncertain or isinstance(error, _UNANSWERED)
            time.sleep(pause)

    def call(self, script: Script, keys: Sequence[str], arguments: Sequence[Argument]) -> Any:
        """Run `script` once and return its answer as bytes.

        Uses EVALSHA, or EVAL if the server does not know the script.
        """
        client = self.client()
        try:
            return client.evalsha(script.digest, len(keys), *keys, *arguments)
        except NoScriptError:
            return client.eval(script.text, len(keys), *keys, *arguments)

    def client(self) -> Client:
        with self._lock:
            if self._client is None:
                self._client = self._new_client()
            return self._client

    def node(self, key: str) -> Client:
        """Return a client of the server that holds `key`. In a cluster, looks up that server."""
        client = self.client()
        if isinstance(client, Redis):
            return client
        return client.get_redis_connection(client.get_node_from_key(key))

    def new_connection(self, key: str) -> Any:
        """Return a new connection object for the server that holds `key`. Does not connect yet."""
        pool = self.node(key).connection_pool
        return pool.connection_class(**pool.connection_kwargs)

    def reset_after_fork(self) -> None:
        """Forget the parent's client, and the locks of that client. Called in a child after a fork."""
        self._parents.append(self._client)
        self._client = None
        self._lock = threading.Lock()

    def close(self) -> None:
        with self._lock:
            client, self._client = self._client, None
        if client is not None:
            _close(client)

    def _new_client(self) -> Client:
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
            _close(single)
            raise
        if not cluster:
            return single
        _close(single)
        # a cluster has only database 0
        options = {name: value for name, value in self.location.options.items() if name != "db"}
        if options.pop("connection_class", None) is SSLConnection:
            options["ssl"] = True
        # The client must not retry: `run` must know which attempts are uncertain. The client still follows a slot that
        # moved.
        return _Cluster(self._log_in, retry=Retry(NoBackoff(), 0), require_full_coverage=False, **options)

    def _log_in(self, connect: Callable[[], None]) -> None:
        """Call `connect` to log in on a new connection. While logins are paused, raise the last refusal again.

        Raises redis-py's errors.
        """
        self._logins.log_in(connect, is_refused)

    def _drop_idle(self) -> None:
        """Close idle connections, because they may be dead or lead to a former primary."""
        client = self._client
        if isinstance(client, Redis):
            client.connection_pool.disconnect(inuse_connections=False)


class _Cluster(RedisCluster):
    """A cluster's client. Its new connections log in by `log_in`."""

    def __init__(self, log_in: Callable[[Callable[[], None]], None], **options: Any) -> None:
        self._log_in = log_in
        super().__init__(**options)

    def on_connect(self, connection: Any) -> None:
        """Log in on a new connection. Called by redis-py."""
        self._log_in(lambda: super(_Cluster, self).on_connect(connection))  # type: ignore[no-untyped-call]


def _is_cluster(client: Redis) -> bool:
    try:
        found: Any = client.info("cluster")
    except ResponseError as error:
        if is_temporary(error):
            raise
        return False  # the user may not read this setting
    return bool(found.get("cluster_enabled"))


def _close(client: Client) -> None:
    client.close()
    pool = getattr(client, "connection_pool", None)
    if pool is not None:
        pool.disconnect()
