"""What the stores of `rdb` have in common: everything of `LeaseStore`. Used in children and clients."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

from sqlalchemy import MetaData, Table

from psched.backends.rdb.leases import Leases
from psched.backends.rdb.next_due import DueTimes, TypeHeads
from psched.backends.rdb.node_registry import RdbNodes, shared_nodes_table
from psched.backends.rdb.schema_version import HashedSchema, meta_table
from psched.backends.sql.database import Database
from psched.backends.sql.once import cached
from psched.backends.sql.schema import NAMED, unusable
from psched.backends.sql.statement import Executing
from psched.backends.sql.store import SqlStore
from psched.errors import ScheduleError
from psched.model import WORKER_DIED, Claim, Lease, Retry
from psched.store import Accepts, Finding, Wakeup
from psched.store.node_registry import Nodes


def _meta() -> Table:
    return meta_table(MetaData())


class RdbLeaseStore(SqlStore):
    """Due rows with leases in one table; `claimed` makes of a row that was just leased what the engine knows."""

    shows_fence = True
    knows_holders = True
    keeps_types = True

    def __init__(
        self,
        database: Database,
        leases: Leases,
        due_times: DueTimes,
        claimed: Callable[[Sequence[Any]], Claim],
        *tables: Table,
    ) -> None:
        """Connects to nothing yet. `tables`: the one of the rows, and what else belongs to it."""
        super().__init__(database, HashedSchema(database, cached(_meta), *tables, common=(shared_nodes_table(),)))
        self._rows = tables[0]
        self._leases = leases
        self._due_times = due_times
        self.nodes: Nodes | None = RdbNodes(database, self._rows.name)
        self._type_heads = TypeHeads(database, self._rows)
        self._due_types: frozenset[Any] | None = None
        """Types that were due at the last look, at least those of the first rows; None before there was one."""
        self._claimed = claimed

    def prepare(self, types: Collection[str] | None = None) -> None:
        """Compile what every run needs."""
        self._database.run_direct(lambda connection, _: self._compile(connection, types))

    def _compile(self, connection: Executing, types: Collection[str] | None) -> None:
        self._leases.prepare(connection, types)

    def create_tables(self) -> None:
        """Create the tables, their indexes, and what calls idle workers where the database can do that."""
        super().create_tables()
        self._database.install_wakeup(self._rows)

    def diagnose(self) -> Iterator[Finding]:
        """Yield what `psched doctor` shows of this store."""
        yield from super().diagnose()
        if self._layout.problem() is None:
            name, dialect = self._rows.name, self._database.dialect
            yield unusable(self._due_times.never_due(NAMED + 1))
            problem = self._database.run(lambda connection, _: dialect.wakeup_problem(connection, name))
            if problem is not None:
                yield Finding("calls", False, problem)

    def open_wakeup(self, accepts: Accepts | None = None) -> Wakeup | None:
        """Return what rings when rows become due; None where the database calls nobody."""
        return self._database.open_wakeup(self._rows.name, accepts)

    def acquire(
        self,
        limit: int,
        alive_time: float,
        types: Collection[str] | None = None,
        accepts: Accepts | None = None,
        ahead: bool = False,
    ) -> list[Claim]:
        """Lease up to `limit` due rows, earliest first."""
        return [
            self._claimed(row)
            for row in self._leases.acquire(limit, alive_time, types, self._is_crowded(types), ahead=ahead)
        ]

    def next_due(self, types: Collection[str] | None = None, accepts: Accepts | None = None) -> float | None:
        """Return in how many seconds the earliest row is due; None when there is none."""
        found = self._due_times.look(types)
        if types:
            self._due_types = found.first_types
        return found.wait

    def due_by_type(self) -> Mapping[str, float]:
        """Return in how many seconds the earliest row of each type is due."""
        heads = self._type_heads.due_by_type()
        self._due_types = frozenset(type_ for type_, wait in heads.items() if wait == 0)
        return heads

    def _is_crowded(self, types: Collection[str] | None) -> bool:
        """Tell whether rows of other types were due at the last look, or nobody has looked yet.

        A worker looks whenever it finds nothing more to do, and every few seconds while it is busy. Rows that are due
        and not its own are the first ones then, since it has taken those before them.
        """
        due = self._due_types
        return types is not None and (due is None or not due <= frozenset(types))

    def extend(self, leases: Sequence[Lease], alive_time: float, begun: bool = True) -> list[Lease | None]:
        """Make each lease end `alive_time` seconds from now, the runs recorded as `begun`; None where it is lost."""
        return self._leases.extend(leases, alive_time, begun)

    def release(self, lease: Lease, until: float) -> None:
        """Make the row due now, the attempt not counted."""
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
        """Make the row due `wait` seconds from now, and keep the end of `error`."""
        self._leases.retry(lease, wait, error, until, counted, version)

    def retry_many(self, retries: Sequence[Retry], until: float) -> list[ScheduleError | None]:
        """Do for each what `retry` does, some hundreds by one statement."""
        return self._leases.retry_many(retries, until)

    def give_back(self, holder: str, suspects: Collection[str], longest_wait: float, error: str = WORKER_DIED) -> int:
        """Give back what a dead `holder` leases."""
        return self._leases.give_back(holder, suspects, longest_wait, error)
