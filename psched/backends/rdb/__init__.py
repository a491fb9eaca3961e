"""The store `rdb`: psched's own tables on SQLite, MariaDB, MySQL or PostgreSQL."""

from __future__ import annotations

from psched.backends.rdb.queue import RdbTaskStore
from psched.backends.rdb.schedules import RdbScheduleStore
from psched.backends.sql import open_database
from psched.store import Stores, StoreSettings

SCHEDULES_TABLE = "psched_schedules"
"""The default name of the table of schedules."""


def open_stores(settings: StoreSettings) -> Stores:
    """Return a store for each table that is named. Raises ConfigError."""
    stores = Stores()
    if settings.schedules is not None:
        database = open_database(settings.url, settings.tls, settings.connections, settings.pooler)
        stores = stores._replace(schedules=RdbScheduleStore(database, settings.schedules, settings))
    if settings.queue is not None:
        database = open_database(settings.url, settings.tls, settings.connections, settings.pooler)
        stores = stores._replace(queue=RdbTaskStore(database, settings.queue, settings))
    return stores
