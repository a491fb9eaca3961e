"""The contract between the engine and a database: the methods of every store.

A store holds rows that are due at a time. Holding a row means having written a due time in the future together with a
fence. Only the database's clock decides what is due and when a lease ends, and each statement reads the clock itself.
Every write under a lease compares the fence and checks the row count. No method waits for work.

Errors: a method raises the exceptions that its docstring names, or the driver's own error (wrapped by SQLAlchemy, or
redis-py's). Transient faults raise only after a bounded number of retries; the store's `is_unavailable` tells whether
an error is transient.

Writes under a lease take `until`, a deadline on `psched.clock.boottime`. Until then, lost connections and deadlocks are
retried. If the answer to a commit was lost, the retry recognises the commit by its fence and does not settle twice.

Methods may be called from any thread of the process that opened the store; a store must not cross a fork.
"""

from __future__ import annotations

import secrets
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from psched.payload import MAX_DATA_SIZE
from psched.store.lease_store import Accepts, AcquireOptions, Finding, FindingLevel, LeaseStore, Wakeup, only
from psched.store.schedule_store import RowChange, ScheduleStore
from psched.store.task_store import NO_RESULTS, NO_TRANSACTION, TaskStore

__all__ = [
    "NO_RESULTS",
    "NO_TRANSACTION",
    "Accepts",
    "AcquireOptions",
    "Finding",
    "FindingLevel",
    "LeaseStore",
    "RowChange",
    "ScheduleStore",
    "StoreSettings",
    "Stores",
    "TaskStore",
    "Wakeup",
    "holder_name",
    "only",
]


@dataclass(frozen=True, slots=True)
class StoreSettings:
    """The parameters of a backend's `open_stores(settings) -> Stores`. A table that is None is not opened.

    `holder` names one incarnation of one process (`host/pid/random`, at most 255 characters) and is written with each
    lease, so that a successor can release the leases of a dead process. `tls` has the keys ca, cert, key and verify.
    `max_data_size`: the most bytes of JSON in a row. More is a problem when read, and raises ValueError when written.
    `connections`: the most idle connections that a store keeps open, one for each thread of its process. `reckoning`:
    the cron dialect and tz database of this process, for the ledger. `ledger`: the ledger's table where a store keeps
    one only on request. `problem` returns the error of a schedule that psched cannot run, or None: a store whose table
    is shared with other programs (`rdb_compat`) acquires no such row. `pooler`: what a connection pooler before the
    database gives a client: `session` (its own), `transaction` (any, for each transaction), or `auto` to find out
    whether there is a pooler (PostgreSQL), and then assume `transaction`.
    `disable_resource_limit` and `use_connection_pooling` are PerfectQueue's, for a queue that is shared with it.
    `keeps_failures`: runs that fail for good are kept until they were reported. `keeps_endings`: the end of each queue
    task is put into the outbox.
    `database`: makes the object by which a store on SQL reaches its database, of its dialect (None: a `Database` with
    connections of its own).
    `read_only`: for `psched.insight`: the store never writes, its sessions refuse writes, and no statement takes longer
    than 2 s. `long_reads`: such a store may take as long for a statement as one that writes.
    """

    url: str
    holder: str
    schedules: str | None = None
    queue: str | None = None
    tls: Mapping[str, Any] = field(default_factory=dict)
    reckoning: str = ""
    connections: int = 1
    max_data_size: int = MAX_DATA_SIZE
    ledger: str | None = None
    pooler: str = "auto"
    problem: Callable[[Any], str | None] | None = None
    disable_resource_limit: bool = False
    use_connection_pooling: bool = False
    keeps_failures: bool = False
    keeps_endings: bool = False
    database: Callable[[Any], Any] | None = None
    read_only: bool = False
    long_reads: bool = False


class Stores(NamedTuple):
    """The result of `open_stores`: a store for each table that was named."""

    schedules: ScheduleStore | None = None
    queue: TaskStore | None = None


def holder_name(role: str) -> str:
    """Return `host/role/random`, at most 255 characters; `role` names the process on the host."""
    return f"{socket.gethostname()[:120]}/{role[:100]}/{secrets.token_hex(8)}"
