"""The store `rdb_compat`: the table of PerfectSched, shared with its clients and workers. Children and clients."""

from __future__ import annotations

from psched.backends.rdb_compat.schedules import CompatScheduleStore
from psched.dialects import open_database
from psched.store import Stores, StoreSettings


def open_stores(settings: StoreSettings) -> Stores:
    """Return a store for each table that is named. Raises ConfigError."""
    schedules = None
    if settings.schedules is not None:
        schedules = CompatScheduleStore(open_database(settings.url, settings.tls), settings.schedules)
    return Stores(schedules)
