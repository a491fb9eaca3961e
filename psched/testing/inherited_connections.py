"""Keeps a forked process from using its parent's database connections.

Otherwise each of the two processes would read answers meant for the other.
"""

from __future__ import annotations

import gc
import sys
from typing import Any
from weakref import WeakSet

_kept: list[Any] = []
"""Connections of the parent. They are kept, because freeing one would end the parent's session."""


class InheritedConnections:
    """The connections of SQLAlchemy and Django in this process. Processes that it forks must not use these connections.

    Raw connections of a driver are not found. The application must open those in the process that uses them.
    """

    def __init__(self) -> None:
        self._engines: WeakSet[Any] = WeakSet()

    def start(self) -> None:
        """Record SQLAlchemy's engines: the existing ones, and each one that connects later."""
        from sqlalchemy import Engine, event  # noqa: PLC0415 – a queue on SQL has loaded it

        # `type`, because isinstance would call code of lazy objects and mocks
        self._engines.update(each for each in gc.get_objects() if issubclass(type(each), Engine))
        event.listen(Engine, "engine_connect", self._on_connect)

    def stop(self) -> None:
        from sqlalchemy import Engine, event  # noqa: PLC0415 – as above

        event.remove(Engine, "engine_connect", self._on_connect)

    def _on_connect(self, connection: Any) -> None:
        self._engines.add(connection.engine)

    @staticmethod
    def open_transaction() -> str | None:
        """Return the alias of a Django connection with an open transaction, or None.

        Other processes cannot see the changes of such a transaction.
        """
        return next((each.alias for each in _django_connections() if each.in_atomic_block), None)

    def leave_to_parent(self) -> None:
        """In a forked process, make the engines and Django open new connections when they are used."""
        for engine in list(self._engines):
            _kept.append(engine.pool)
            engine.dispose(close=False)
        for connection in _django_connections():
            _kept.append(connection.connection)
            connection.connection = None


def _django_connections() -> list[Any]:
    """Return the connections that Django has opened. Django may be imported without being configured."""
    database, configuration = sys.modules.get("django.db"), sys.modules.get("django.conf")
    if database is None or configuration is None or not configuration.settings.configured:
        return []
    return list(database.connections.all(initialized_only=True))
