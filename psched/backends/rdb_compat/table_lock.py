"""The lock that PerfectQueue's workers hold while they claim: one for each table, on MySQL and MariaDB. In children.

A Ruby worker selects a batch, then updates it, and drops the whole batch when it has updated fewer rows than it has
selected. So nobody else may claim between the two. The lock belongs to the session: when that ends, it is free.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sqlalchemy import Connection, text
from sqlalchemy.exc import DBAPIError

from psched.dialects.base import Fault
from psched.dialects.database import Database

log = logging.getLogger(__name__)

_WAIT = 2.0
"""Seconds to wait for the lock, at the most; then nothing is claimed until the next poll."""

_GET = text("SELECT GET_LOCK(:name, :wait)")
_RELEASE = text("DO RELEASE_LOCK(:name)")


class TableLock:
    """Lets one worker claim at a time. Safe to use from several threads, each with a connection of its own."""

    def __init__(self, database: Database, table: str) -> None:
        self._database = database
        self._values: dict[str, Any] = {"name": table, "wait": min(_WAIT, database.dialect.timeouts.statement / 2)}
        self._missed = False

    @contextmanager
    def held(self, connection: Connection) -> Iterator[bool]:
        """Hold the lock within it; yield False when others have held it for too long, and nothing may be claimed."""
        obtained = connection.execute(_GET, self._values).scalar() == 1
        if not obtained and not self._missed:
            log.warning(
                "table=%s other workers have held its lock for %g s; nothing is claimed until it is free",
                self._values["name"],
                self._values["wait"],
            )
        self._missed = not obtained
        if not obtained:
            yield False
            return
        try:
            yield True
        except DBAPIError as error:
            if self._database.fault(error) is not Fault.LOST:
                self._release(connection)
            raise
        self._release(connection)

    def _release(self, connection: Connection) -> None:
        """Release the lock; a session that is lost has released it, and what was committed before stays so."""
        try:
            connection.execute(_RELEASE, self._values)
        except DBAPIError as error:
            if self._database.fault(error) is not Fault.LOST:
                raise
            connection.invalidate()
