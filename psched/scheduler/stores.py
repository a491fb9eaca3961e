"""Who uses something at the moment that another thread may want to close. In the host's process."""

from __future__ import annotations

import hashlib
import os
import re
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from psched.backends import open_stores
from psched.backoff import Backoff
from psched.config import Settings, from_mapping
from psched.cron import tz_database
from psched.errors import ConfigError
from psched.queue.retire import Retire
from psched.scheduler.local_wakeup import LocalWakeup
from psched.schedules.advance import Keeping
from psched.schedules.collection import Defaults, ScheduleCollection
from psched.source.source import Source
from psched.store import StoreSettings, TaskStore, holder_name
from psched.task import LeaseTimes


class UseCount:
    """Counts users, and tells the last one that it is to be closed. Any thread, signal handlers too."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._open = 0
        self._called_in = False

    def begin(self) -> None:
        """Use it from now on."""
        with self._lock:
            self._open += 1

    def end(self) -> bool:
        """Use it no more; True when the caller is to close it."""
        with self._lock:
            self._open -= 1
            return self._called_in and self._open == 0

    def call_in(self) -> bool:
        """Have it closed; True when nobody uses it, so that the caller is to do so."""
        with self._lock:
            self._called_in = True
            return self._open == 0


TICK_LEASE = 3.0
"""Seconds for which an instance that dies in the middle of it delays an occurrence."""
TASK_LEASE = 10.0
"""Seconds of lease on a task unless it has a retry_timeout to go by."""
_MENDING = Backoff()
"""How long a row is left alone of which nothing can be made."""

_LEDGER = Keeping(retention=7 * 86400.0, count=1000)
"""How much is kept of which occurrence became a task when, where the store has a ledger."""

_MOST = 10
"""Connections that are kept open however many threads there are."""
_LONGEST_PREFIX = 36
_REDIS = ("redis", "rediss", "unix")


@dataclass(frozen=True, slots=True)
class StoreLocation:
    """A database, and the tables in it."""

    settings: Settings
    retention: float

    def open(self, threads: int = 1) -> OpenStores:
        """Return its stores, opened for so many threads; nothing is connected yet. Raises ConfigError."""
        schedules, queue = self.settings.schedules, self.settings.queue
        assert schedules is not None and queue is not None
        reckoning = f"{schedules.cron_dialect} {tz_database()}"
        holder = holder_name(str(os.getpid()))
        stores = open_stores(
            schedules.type,
            StoreSettings(
                schedules.url,
                holder,
                schedules.table,
                queue.table,
                schedules.tls,
                reckoning,
                min(threads, _MOST),
                pooler=schedules.pooler,
            ),
        )
        if stores.schedules is None or stores.queue is None:
            raise ConfigError(f"the store type {schedules.type!r} keeps no schedules or no queue")
        defaults = Defaults(schedules.timezone, schedules.cron_dialect, _LEDGER)
        collection = ScheduleCollection(stores.schedules, LeaseTimes(TICK_LEASE, _MENDING, TICK_LEASE), defaults)
        collection.feed(stores.queue)
        completion = Retire(stores.queue, self.retention, None, failed_retention=self.retention)
        times = LeaseTimes(TASK_LEASE, _MENDING, TASK_LEASE)
        tasks = Source(stores.queue, completion, times)
        chime = LocalWakeup(stores.queue)
        tasks.open_wakeup = chime.open_wakeup
        return OpenStores(collection, stores.queue, tasks, chime)


@dataclass(frozen=True, slots=True)
class OpenStores:
    """The open stores of one process. Any thread; not across a fork."""

    schedules: ScheduleCollection
    queue: TaskStore
    tasks: Source
    chime: LocalWakeup
    """Rung when this process has made a task."""
    loans: UseCount = field(default_factory=UseCount)

    def make_tables(self) -> bool:
        """Make what tables are missing, and tell whether any was; several processes may do so at once.

        Raises ConfigError for foreign ones.
        """
        made = False
        for store in (self.schedules.store, self.queue):
            try:
                store.check_tables()
            except ConfigError:
                store.create_tables()
                made = True
        return made

    def is_unavailable(self, error: Exception) -> bool:
        """Tell whether `error` means that the database is away, and will pass by itself."""
        return self.queue.is_unavailable(error)

    def borrow(self) -> None:
        """Let nobody close the connections before `give_back`."""
        self.loans.begin()

    def give_back(self) -> None:
        """Need the connections no more: who is last closes them, if they are to be closed."""
        if self.loans.end():
            self._close()

    def close(self) -> None:
        """Close every connection, now or when nobody uses them any more; idempotent."""
        if self.loans.call_in():
            self._close()

    def _close(self) -> None:
        self.schedules.close()
        self.queue.close()


def place_of(
    url: str, prefix: str, timezone: str, tls: Mapping[str, Any], retention: float, pooler: str | None = None
) -> StoreLocation:
    """Return where a scheduler with this URL and prefix keeps its rows. Raises ConfigError."""
    if not isinstance(tls, Mapping):
        raise ConfigError(f"tls: expected a mapping, got {tls!r}")
    kind = "redis" if str(url).partition("://")[0] in _REDIS else "rdb"
    stem = table_stem(prefix)
    settings = from_mapping(
        {
            "type": kind,
            "url": url,
            "timezone": timezone,
            "tls": dict(tls),
            "pooler": pooler,
            "retention_time": retention,
            "schedules": {"table": f"{stem}_schedules"},
            "queue": {"table": f"{stem}_queue"},
        }
    )
    return StoreLocation(settings, retention)


def table_stem(prefix: object) -> str:
    """Return what the names of the tables of a prefix begin with; different ones for different prefixes.

    `_schedule_mq:` gives `_schedule_mq`. What no table can be named like is replaced, and told apart by a digest.
    Raises ConfigError unless the prefix is text.
    """
    if not isinstance(prefix, str) or not prefix.strip(":"):
        raise ConfigError(f"prefix: expected text, got {prefix!r}")
    plain = prefix.removesuffix(":")
    if re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", plain) and len(plain) <= _LONGEST_PREFIX:
        return plain
    digest = hashlib.sha256(prefix.encode(errors="surrogatepass")).hexdigest()[:8]
    words = re.sub(r"[^A-Za-z0-9_]", "_", plain)[: _LONGEST_PREFIX - len(digest) - 1]
    return f"{words if not words[0].isdigit() else '_' + words[1:]}_{digest}"
