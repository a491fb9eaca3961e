"""The contract between the engine and a database: the methods of every store.

A store holds rows, each with the time at which it is due. A worker holds a row by writing a due time in the future,
together with a fence. Only the database's clock decides what is due and when a lease ends; each statement reads that
clock itself. Every write under a lease compares the fence and checks the row count. No method waits for work.

Errors: a method raises the exceptions named in its docstring, or the driver's own error (wrapped by SQLAlchemy, or an
error of redis-py). A transient fault is raised only after a bounded number of retries. The store's `is_unavailable`
tells whether an error is transient.

Writes under a lease take `until`, a deadline on `psched.clock.boottime`. Until then, the write is repeated after lost
connections and deadlocks. If the answer to a commit was lost, the retry recognises the commit by its fence and does not
settle twice. A write under a lease that no longer holds changes nothing. It raises PreemptedError; NotFoundError if the
row is gone; AlreadyFinishedError if this lease was settled before; OutcomeUnknownError if the answer to an earlier
write was lost and the row no longer shows the outcome.

Methods may be called from any thread of the process that opened the store. A store must not be used across a fork.
"""

from __future__ import annotations

import secrets
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from psched.payload import MAX_DATA_SIZE
from psched.store.doctor_finding import Finding, FindingLevel
from psched.store.lease_store import Accepts, AcquireOptions, LeaseStore, only
from psched.store.schedule_store import RowChange, ScheduleStore, UnreadRow
from psched.store.task_store import NO_RESULTS, NO_TRANSACTION, TaskStore
from psched.store.wakeup import Wakeup

__all__ = [
    "CONNECTIONS",
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
    "UnreadRow",
    "Wakeup",
    "holder_name",
    "only",
]

CONNECTIONS = 5
"""The maximum number of idle connections that a client keeps open. A client opens another connection when all of its
open connections are in use.
"""


@dataclass(frozen=True, slots=True)
class StoreSettings:
    """The parameters of a backend's `open_stores(settings) -> Stores`. A table that is None is not opened.

    - `holder`: names one run of one process (`host/process/random`, at most 255 characters). The name is written with
      each lease, so that a successor can release the leases of a dead process.
    - `tls`: has the keys ca, cert, key and verify.
    - `max_data_size`: the maximum number of bytes of JSON in a row. Larger data raises ValueError when written, and is
      a problem of the row when read.
    - `connections`: the maximum number of idle connections that a store keeps open.
    - `reckoning`: the cron dialect and tz database of this process, for the ledger.
    - `ledger`: the table of the ledger on `rdb_compat`; None: no ledger.
    - `problem`: returns why psched cannot run a schedule, or None. `rdb_compat` does not acquire schedules with a
      problem, because it shares its table with other programs.
    - `pooler`: the kind of connection pooler. `session`: each client keeps a database session. `transaction`: each
      transaction may get another session. `auto`, only for PostgreSQL: find out whether there is a pooler, and if so
      assume `transaction`.
    - `disable_resource_limit`, `use_connection_pooling`: options of PerfectQueue, for a queue that is shared with it.
    - `keeps_failures`: whether runs that fail for good are kept until they are reported.
    - `keeps_endings`: whether the end of each queue task is put into the outbox.
    - `database`: creates the object through which a store on SQL uses its database. None: a `Database` with its own
      connections.
    - `read_only`: for `psched.insight`, which never writes. On SQL the sessions refuse writes, and no statement takes
      longer than 2 s. On Redis the store waits at most 2.5 s for an answer.
    - `long_reads`: whether a read-only store may take as long for a statement as other stores. On PostgreSQL the
      planner may then choose any plan.
    """

    url: str
    holder: str
    schedules: str | None = None
    queue: str | None = None
    tls: Mapping[str, Any] = field(default_factory=dict)
    reckoning: str = ""
    connections: int = CONNECTIONS
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
    """The result of `open_stores`. A store is None if the settings do not name its table."""

    schedules: ScheduleStore | None = None
    queue: TaskStore | None = None


def holder_name(role: str) -> str:
    """Return `host/role/random`, at most 255 characters. `role`: names the process on its host."""
    return f"{socket.gethostname()[:120]}/{role[:100]}/{secrets.token_hex(8)}"
