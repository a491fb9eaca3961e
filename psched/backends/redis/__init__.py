"""The backend `redis`: schedules and queue on Redis 6 or later. Each operation is one Lua script.

All keys begin with `{psched}:`. In a Redis Cluster they are therefore in one slot, and one script can advance a
schedule and submit a task of the queue. docs/redis.md describes the keys.
"""

from __future__ import annotations

from psched.backends.redis.client import RedisServer, located
from psched.backends.redis.schedule_store import RedisScheduleStore
from psched.backends.redis.task_store import RedisTaskStore
from psched.store import Stores, StoreSettings


def open_stores(settings: StoreSettings) -> Stores:
    """Return a store for each table that `settings` name. Opens no connection. Raises ConfigError."""
    stores = Stores()
    location = located(settings.url, settings.tls, settings.read_only and not settings.long_reads)
    if settings.schedules is not None:
        store = RedisScheduleStore(RedisServer(location), settings.schedules, settings)
        stores = stores._replace(schedules=store)
    if settings.queue is not None:
        queue = RedisTaskStore(RedisServer(location), settings.queue, settings)
        stores = stores._replace(queue=queue)
    return stores
