"""The store `rdb`: psched's own tables on SQLite, MariaDB, MySQL or PostgreSQL."""

from __future__ import annotations

from psched.backends.rdb.schedule_store import RdbScheduleStore
from psched.backends.rdb.task_store import RdbTaskStore
from psched.backends.sql import open_database
from psched.backends.sql.database import Database
from psched.store import Stores, StoreSettings


def open_stores(settings: StoreSettings) -> Stores:
    """Return a store for each table that `settings` name. Raises ConfigError."""

    def database() -> Database:
        return open_database(
            settings.url,
            settings.tls,
            settings.connections,
            settings.pooler,
            settings.database,
            settings.read_only,
            settings.long_reads,
        )

    return Stores(
        None if settings.schedules is None else RdbScheduleStore(database(), settings.schedules, settings),
        None if settings.queue is None else RdbTaskStore(database(), settings.queue, settings),
    )
