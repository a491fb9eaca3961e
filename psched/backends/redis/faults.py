"""Which errors of redis-py pass by themselves. Used in children and clients."""

from __future__ import annotations

import re

from redis.exceptions import (
    AuthenticationError,
    AuthorizationError,
    ClusterDownError,
    ConnectionError,  # noqa: A004 – redis-py's own
    NoPermissionError,
    OutOfMemoryError,
    ReadOnlyError,
    RedisClusterException,
    RedisError,
    TimeoutError,  # noqa: A004 – redis-py's own
    TryAgainError,
)

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
