"""Sets up Django in a worker. Each child imports this module before the modules of the user.

Around each run of any handler, Django's connections and caches are treated as around a request: connections that are
broken, or older than CONN_MAX_AGE, are closed.
"""

from __future__ import annotations

import os
import threading
from contextlib import suppress
from typing import Any

import django
from asgiref.sync import SyncToAsync
from django.core.cache import close_caches
from django.db import close_old_connections, connections, reset_queries
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.signals import connection_created

from psched.telemetry import Event, attach

_handler_threads: set[int] = set()
_inherited: list[BaseDatabaseWrapper] = []
"""Connections of the parent process. They are never closed here, because that would end the parent's sessions."""
_opened_elsewhere = threading.Event()
"""Set if a thread that runs no handler has a connection. An example is the thread in which `sync_to_async` runs
functions."""


def _run_begins(event: Event, fields: dict[str, Any]) -> None:
    _handler_threads.add(threading.get_ident())
    reset_queries()
    close_old_connections()


def _run_ends(event: Event, fields: dict[str, Any]) -> None:
    close_old_connections()
    close_caches()
    if _opened_elsewhere.is_set():
        SyncToAsync.single_thread_executor.submit(close_old_connections).result()


def _note_thread(**_: Any) -> None:
    if threading.get_ident() not in _handler_threads:
        _opened_elsewhere.set()


def _leave_connections_to_parent() -> None:
    """In a process that a handler forks, detach the parent's connections, and let Django open new ones."""
    left = connections.all(initialized_only=True)
    nowhere = os.open(os.devnull, os.O_RDWR)
    for connection in left:
        with suppress(Exception):  # a closed connection, or one without a descriptor
            os.dup2(nowhere, connection.connection.fileno(), inheritable=False)
        del connections[connection.alias]
    os.close(nowhere)
    _inherited.extend(left)


django.setup()
connection_created.connect(_note_thread)
attach(_run_begins, "run_start")
attach(_run_ends, "run_end")
os.register_at_fork(after_in_child=_leave_connections_to_parent)
