"""The base class of both `rdb_compat` stores."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from psched.backends.rdb_compat.leases import CompatLeases
from psched.backends.sql.database import Database
from psched.backends.sql.schema import Schema
from psched.backends.sql.store import SqlStore
from psched.errors import NotSupportedError, ScheduleError
from psched.model import WORKER_DIED, Claim, Lease, Retry
from psched.store import Accepts
from psched.store.alerts import UnreportedFailures
from psched.store.node_registry import Nodes


class CompatLeaseStore(SqlStore):
    """Due rows with leases in a table of PerfectSched or PerfectQueue. Implements `LeaseStore`."""

    shows_fence = False
    failures: UnreportedFailures | None = None
    knows_holders = False
    keeps_types = False
    nodes: Nodes | None = None

    def __init__(self, database: Database, layout: Schema, leases: CompatLeases) -> None:
        """Connects to nothing yet."""
        super().__init__(database, layout)
        self._leases = leases

    def acquire(
        self,
        limit: int,
        alive_time: float,
        types: Collection[str] | None = None,
        accepts: Accepts | None = None,
        ahead: bool = False,
    ) -> list[Claim]:
        """Lease up to `limit` due rows that can be run here, and write to no other row, which Ruby workers may run.

        `ahead` is ignored, as no attempts are counted. Raises NotSupportedError for `types`, which are no column.
        """
        _refuse(types)
        return self._leases.acquire(limit, alive_time, accepts)

    def next_due(self, types: Collection[str] | None = None, accepts: Accepts | None = None) -> float | None:
        """Return the seconds until a row is due, other than rows that only Ruby can run; None without such a row."""
        _refuse(types)
        return self._leases.next_due(accepts)

    def due_by_type(self) -> Mapping[str, float]:
        raise NotSupportedError("rdb_compat cannot look for rows of some types only; type: rdb can")

    def extend(self, leases: Sequence[Lease], alive_time: float, begun: bool = True) -> list[Lease | None]:
        return self._leases.extend(leases, alive_time)

    def release(self, lease: Lease, until: float) -> None:
        self._leases.release(lease, until)

    def retry(
        self,
        lease: Lease,
        wait: float,
        error: str | None,
        until: float,
        counted: bool = True,
        version: int | None = None,
    ) -> None:
        """As `LeaseStore.retry`, but the table has no columns for `error`, `counted` and `version`."""
        self._leases.retry(lease, wait, until)

    def retry_many(self, retries: Sequence[Retry], until: float) -> list[ScheduleError | None]:
        return self._leases.retry_many(retries, until)

    def give_back(self, holder: str, suspects: Collection[str], longest_wait: float, error: str = WORKER_DIED) -> int:
        """Return 0: the table does not record holders."""
        return 0


def _refuse(types: Collection[str] | None) -> None:
    if types is not None:
        raise NotSupportedError("rdb_compat cannot look for rows of some types only; type: rdb can")
