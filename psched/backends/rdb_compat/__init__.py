"""The store `rdb_compat`: the tables of PerfectSched and PerfectQueue, shared with Ruby workers."""

from __future__ import annotations

from psched.backends.rdb_compat.schedule_store import CompatScheduleStore
from psched.backends.rdb_compat.task_store import CompatTaskStore
from psched.backends.sql import open_database
from psched.backends.sql.database import Database
from psched.store import Stores, StoreSettings


def open_stores(settings: StoreSettings) -> Stores:
    """Return a store for each table that `settings` name. Raises ConfigError."""

    def database() -> Database:
        return open_database(
            settings.url,
            settings.tls,
            pooler=settings.pooler,
            database=settings.database,
            read_only=settings.read_only,
            long_reads=settings.long_reads,
        )

    stores = Stores()
    if settings.schedules is not None:
        stores = stores._replace(schedules=CompatScheduleStore(database(), settings.schedules, settings))
    if settings.queue is not None:
        stores = stores._replace(queue=CompatTaskStore(database(), settings.queue, settings))
    return stores
