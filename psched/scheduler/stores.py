"""The two tables of a scheduler. Makes their settings from a URL and a table prefix, and opens their stores."""

from __future__ import annotations

import hashlib
import os
import re
import threading
from collections.abc import Mapping
from typing import Any

from psched.acquisition.task_source import TaskSource
from psched.config import Section, Settings, from_mapping
from psched.errors import ConfigError
from psched.queue.queue import Queue, open_queue
from psched.scheduler.local_wakeup import LocalWakeup
from psched.schedules.collection import ScheduleCollection, open_schedules
from psched.store import CONNECTIONS, LeaseStore, TaskStore, holder_name

_OCCURRENCE_LEASE = 3.0
"""Seconds of lease on an occurrence. If an instance dies before it has submitted the occurrence's task, another
instance does so when the lease has ended.
"""
_TASK_LEASE = 10.0
"""Seconds of lease on a task without retry."""
STATS_RETENTION = 7 * 86400.0
"""How many seconds the statistics of runs and the entries of the ledger are kept. The ledger keeps at most 1,000
entries of each schedule."""
_LEDGER = {"ledger_retention": 7 * 86400, "ledger_count": 1000}
_MAX_CONNECTIONS = 10
"""The maximum number of connections of each table that stay open, however many threads there are."""
_MAX_STEM = 36
_REDIS = ("redis", "rediss", "unix")


class OpenStores:
    """The open stores of one process. Usable from any thread, but not across a fork."""

    def __init__(self, schedules: ScheduleCollection, queue: TaskStore, tasks: TaskSource, wakeup: LocalWakeup) -> None:
        """`wakeup`: its `wake_one` must be called for each task that this process submits."""
        self.schedules = schedules
        self.queue = queue
        self.tasks = tasks
        self.wakeup = wakeup
        self._lock = threading.RLock()
        self._users = 0
        self._close_requested = False

    def create_tables(self) -> bool:
        """Create missing tables. Return whether any was missing. Safe to call in several processes.

        Raises ConfigError.
        """
        created = [create_missing_table(store) for store in (self.schedules.store, self.queue)]
        return any(created)

    def begin_use(self) -> None:
        with self._lock:
            self._users += 1

    def end_use(self) -> None:
        """End one use. If `close` was called meanwhile, the end of the last use closes the connections."""
        with self._lock:
            self._users -= 1
        self._close_if_unused()

    def close(self) -> None:
        """Close every connection: now, or at the end of the last use. May be called repeatedly."""
        self._close_requested = True
        self._close_if_unused()

    @property
    def is_closed(self) -> bool:
        with self._lock:
            return self._close_requested and self._users == 0

    def _close_if_unused(self) -> None:
        if self.is_closed:
            self.schedules.close()
            self.queue.close()


def create_missing_table(store: LeaseStore) -> bool:
    """Create the table of `store` if it is missing. Return whether it was missing. Raises ConfigError."""
    try:
        store.check_tables()
    except ConfigError:
        store.create_tables()
        return True
    return False


def open_scheduler_stores(settings: Settings, threads: int = 1) -> OpenStores:
    """Return the stores for this number of threads. Opens no connection. Raises ConfigError."""
    assert settings.schedules is not None and settings.queue is not None
    holder, connections = holder_name(str(os.getpid())), min(threads, _MAX_CONNECTIONS)
    schedules = open_schedules(settings.schedules, holder, connections=connections)
    queue = open_scheduler_queue(settings.queue, connections)
    schedules.submit_to(queue.store)
    wakeup = LocalWakeup(queue.store)
    queue.source.open_wakeup = wakeup.open_wakeup
    return OpenStores(schedules, queue.store, queue.source, wakeup)


def open_scheduler_queue(section: Section, connections: int = CONNECTIONS) -> Queue:
    """Return the queue of a scheduler. Opens no connection."""
    holder = holder_name(str(os.getpid()))
    return open_queue(section, holder, connections=connections)


def scheduler_settings(
    url: str,
    prefix: str,
    timezone: str,
    tls: Mapping[str, Any] | None,
    retention: float,
    pooler: str = "auto",
    **reports: Any,
) -> Settings:
    """Return the settings of a scheduler. Raises ConfigError.

    `retention`: how many seconds finished tasks are kept. `reports`: further keys of the configuration, with their
    values.
    """
    stem = table_stem(prefix)
    return from_mapping(
        {
            "type": "redis" if str(url).partition("://")[0] in _REDIS else "rdb",
            "url": url,
            "timezone": timezone,
            "tls": dict(tls) if isinstance(tls, Mapping) else tls,
            "pooler": pooler,
            "retention_time": retention,
            "failed_retention_time": retention,
            "stats_retention": STATS_RETENTION,
            "retry_wait": {"first": 1},
            **reports,
            "schedules": {"table": f"{stem}_schedules", "alive_time": _OCCURRENCE_LEASE, **_LEDGER},
            "queue": {"table": f"{stem}_queue", "alive_time": _TASK_LEASE},
        }
    )


def table_stem(prefix: object) -> str:
    """Return the beginning of the table names for a prefix, such as `_schedule_mq` for `_schedule_mq:`.

    Characters that are not allowed in table names are replaced, and long prefixes are cut. In both cases a digest is
    appended, so that different prefixes have different names. Raises ConfigError if the prefix is not text, or has no
    character other than `:`.
    """
    if not isinstance(prefix, str) or not prefix.strip(":"):
        raise ConfigError(f"prefix: expected text with a character other than ':', got {prefix!r}")
    plain = prefix.removesuffix(":")
    if re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", plain) and len(plain) <= _MAX_STEM:
        return plain
    digest = hashlib.sha256(prefix.encode(errors="surrogatepass")).hexdigest()[:8]
    words = re.sub(r"[^A-Za-z0-9_]", "_", plain)[: _MAX_STEM - len(digest) - 1]
    return f"{words if not words[0].isdigit() else '_' + words[1:]}_{digest}"
