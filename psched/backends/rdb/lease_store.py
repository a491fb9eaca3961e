"""The base class of the two `rdb` stores: acquires, extends, settles and releases leases on one table.

lease_statements.py has the SQL. acquire.py chooses the due rows.
"""

from __future__ import annotations

import math
import secrets
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any, ClassVar

from sqlalchemy import Connection, RowMapping, Table

from psched import fork_safety
from psched.backends.common import layout_version
from psched.backends.common.ended_leases import RELEASED, RETRIED, LostRow, refusal
from psched.backends.common.rows import AHEAD, BATCH, RUNNING, storable
from psched.backends.rdb.acquire import AcquireStrategy, WantedTypes, ordered_acquire
from psched.backends.rdb.alert_store import RdbFailures
from psched.backends.rdb.delivery_watermarks import RdbWatermarks, watermarks_table
from psched.backends.rdb.lease_statements import LeaseStatements
from psched.backends.rdb.next_due import DueTimes
from psched.backends.rdb.node_registry import RdbNodes, nodes_table
from psched.backends.rdb.outbox import RdbOutbox, outbox_table
from psched.backends.rdb.run_stats import RdbRunStats, stats_table
from psched.backends.rdb.schema import failures_table
from psched.backends.rdb.visitor_actions import RdbVisitorActions, actions_table
from psched.backends.sql.bulk_statements import BulkUpdate
from psched.backends.sql.compiled_statements import cached, table_named
from psched.backends.sql.database import Database
from psched.backends.sql.host_wakeup import HostWakeup, WalWatch
from psched.backends.sql.listen_notify import ListenWakeup, create_triggers, has_triggers, send_notification
from psched.backends.sql.schema_setup import NAMED, RecordedSchema, unusable
from psched.backends.sql.store import SqlStore
from psched.clock import boottime
from psched.errors import ConfigError, IdempotentAlreadyFinishedError, PreemptedError, ScheduleError
from psched.model import WORKER_DIED, Claim, Lease, Retry
from psched.payload import MAX_BATCH_SIZE
from psched.store import Accepts, AcquireOptions, Finding, StoreSettings, Wakeup


class RdbLeaseStore(SqlStore):
    _kind: ClassVar[str]
    """The kind of the rows: `schedules` or `queue`."""

    def __init__(
        self,
        database: Database,
        settings: StoreSettings,
        read_claim: Callable[[str, int, Sequence[Any]], Claim],
        read: Callable[[Mapping[Any, Any], int], Any],
        table: Table,
        *others: Table,
        strategy: AcquireStrategy | None = None,
    ) -> None:
        """`others`: the tables that this kind of store has in addition to `table` and the tables of every store.

        `read_claim` returns the claim of a leased row. Its arguments are the holder, the maximum number of bytes of
        data, and the columns `LeaseStatements.claimed`. `read` returns the schedule or task of a row. Its arguments are
        the row and the maximum number of bytes of data. `strategy`: chooses and leases due rows; None: the earliest
        first.
        """
        of_each = (failures_table, watermarks_table, outbox_table)
        failures, watermarks, outbox = (table_named(make, table.name) for make in of_each)
        tables = (table, *others, failures, watermarks, outbox)
        common = (nodes_table(), stats_table(), actions_table())
        self._layout = RecordedSchema(self._kind, database, *tables, common=common)
        super().__init__(database, self._layout)
        dialect = type(database.dialect)
        self._table = table
        self._holder = settings.holder
        self.max_data_size = settings.max_data_size
        self.lease_statements = cached(LeaseStatements, dialect, table)
        self._strategy = strategy or ordered_acquire(dialect, table, self.lease_statements)
        self._due_times = DueTimes(database, table)
        self.nodes = self._nodes = RdbNodes(database, table.name)
        self.stats = RdbRunStats(database, table.name)
        self.actions = RdbVisitorActions(database, table.name)
        self.failures: RdbFailures = RdbFailures(database, failures, settings.holder)
        self.watermarks = RdbWatermarks(database, watermarks)
        self.outbox: RdbOutbox = RdbOutbox(database, outbox)
        self._keeps_failures = settings.keeps_failures
        self._read: Callable[[Mapping[Any, Any]], Any] = lambda row: read(row, settings.max_data_size)
        self._read_claim = partial(read_claim, settings.holder, settings.max_data_size)
        self.reset_after_fork()
        fork_safety.register_for_fork(self)

    def reset_after_fork(self) -> None:
        """Forget acquires whose answers were lost. Only the parent process may undo its own acquires."""
        self._lock = threading.Lock()
        self._unanswered: dict[int, float] = {}

    def prepare(self, types: Collection[str] | None = None) -> None:
        self._database.run(lambda connection, _: self._compile(connection, types))

    def _compile(self, connection: Connection, types: Collection[str] | None) -> None:
        if types is None or types:
            self._strategy.prepare(connection, WantedTypes(None if types is None else tuple(set(types))))

    def create_tables(self) -> None:
        behind = self._layout.layouts_to_go()
        if behind > 1 and (alive := self._nodes.alive()):
            name, found = f"the table {self._table.name} has", layout_version.LAYOUT - behind
            raise ConfigError(layout_version.skips_layouts(name, found, len(alive)))
        super().create_tables()
        if self._database.dialect.notifies:
            create_triggers(self._database, self._table)

    def diagnose(self, writing: bool = True) -> Iterator[Finding]:
        found = list(super().diagnose(writing))
        yield from found
        if all(finding.ok for finding in found if finding.subject == "table"):
            yield unusable(self._due_times.never_due(NAMED + 1))
            name = self._table.name
            if self._database.dialect.notifies and not has_triggers(self._database, name):
                message = f"the triggers of {name} that wake idle workers are missing"
                yield Finding("calls", False, message, remedy="run psched init")

    def open_wakeup(self, accepts: Accepts | None = None) -> Wakeup | None:
        if self._database.dialect.can_listen:
            return ListenWakeup(self._database, self._table.name, accepts)
        file = self._database.dialect.wal_file
        if file is not None:
            return WalWatch(file)
        name = self._database.dialect.host_socket(self._table.name)
        return None if name is None else HostWakeup(name)

    def notify(self, channel: str, text: str) -> None:
        if not self._database.dialect.notifies:
            super().notify(channel, text)
        send_notification(self._database, channel, text)

    def _acquire(self, limit: int, options: AcquireOptions, callers: int = 1) -> list[Claim]:
        """Acquire rows for `callers` threads.

        Each thread gets at least one row if enough are due, and up to `MAX_BATCH_SIZE` bytes of data.

        Each acquire writes its own number into its rows. If the answer to an acquire is lost, the next acquire finds
        the rows by this number and restores them.
        """
        types = options.types
        asked = boottime()
        self._undo_unanswered(asked)
        number = new_number()
        values = {
            "claim_number": number,
            "claimer": self._holder,
            "alive": math.ceil(options.alive_time * 1000),
            "ahead": AHEAD if options.ahead else 0,
            "limit": limit,
            "budget": MAX_BATCH_SIZE * callers,
            "least": callers,
        }
        wanted = WantedTypes() if types is None else WantedTypes(types, self._due_times.others_may_be_due(types))
        begun = False

        def work(connection: Connection, uncertain: bool) -> Sequence[Sequence[Any]]:
            nonlocal begun
            if begun:  # the first attempt may have executed some of its statements
                connection.execute(self.lease_statements.undo, self._undo_values([number]))
            begun = True
            return self._strategy.acquire(connection, values, wanted)

        try:
            rows = self._database.run(work)
        except BaseException:
            with self._lock:
                self._unanswered[number] = asked + options.alive_time
            raise
        return list(map(self._read_claim, rows))

    def next_due(self, types: Collection[str] | None = None, accepts: Accepts | None = None) -> float | None:
        return self._due_times.next_due(types)

    def due_by_type(self) -> Mapping[str, float]:
        return self._due_times.by_type()

    def extend(self, leases: Sequence[Lease], alive_time: float, begun: bool = True) -> list[Lease | None]:
        renewed: dict[tuple[str, int, int], Lease] = {}
        for start in range(0, len(leases), BATCH):
            rows = self._extend(leases[start : start + BATCH], math.ceil(alive_time * 1000), begun)
            renewed.update(((row["key"], row["fence"], row["claim"]), lease_of(row)) for row in rows)
        return [renewed.get((lease.key, lease.fence, lease.claim)) for lease in leases]

    def _extend(self, leases: Sequence[Lease], alive: int, begun: bool) -> Sequence[RowMapping]:
        extend = self.lease_statements.extend_begun if begun else self.lease_statements.extend
        held = [(lease.key, lease.fence, lease.claim) for lease in leases]
        values = {"alive": alive, "keys": [lease.key for lease in leases], "leases": held, "lease_holder": self._holder}

        def work(connection: Connection, uncertain: bool) -> Sequence[RowMapping]:
            changed = connection.execute(extend, values)
            if not self._database.dialect.returning:
                changed = connection.execute(self.lease_statements.held, values)
            return changed.mappings().all()

        return self._database.run(work)

    def get(self, key: str) -> Any:
        row = self._database.run(lambda connection, _: self._row(connection, key))
        return None if row is None else self._read(row)

    def release_many(self, leases: Sequence[Lease], until: float, begun: bool = True) -> list[ScheduleError | None]:
        values = {"begun": int(begun)}
        return self._settle_many(self.lease_statements.release, RELEASED, leases, until, values=values)

    def retry_many(self, retries: Sequence[Retry], until: float) -> list[ScheduleError | None]:
        rows = [
            {
                **lease_values(retry.lease),
                "wait": math.ceil(retry.wait * 1000),
                "error": storable(retry.error),
                "seen_version": retry.version,
                "uncounted": 0 if retry.counted else 1,
            }
            for retry in retries
        ]
        leases = [retry.lease for retry in retries]
        return self._settle_many(self.lease_statements.retry, RETRIED, leases, until, rows)

    def held_claims(self, holder: str) -> dict[str, int]:
        def work(connection: Connection, uncertain: bool) -> dict[str, int]:
            rows = connection.execute(self.lease_statements.held_claims, {"dead": holder})
            return {row.key: row.claim for row in rows}

        return self._database.run(work)

    def give_back(
        self,
        holder: str,
        suspects: Collection[str],
        longest_wait: float,
        error: str = WORKER_DIED,
        claims: Mapping[str, int] | None = None,
    ) -> int:
        longest = math.ceil(longest_wait * 1000)
        values = {"dead": holder, "suspects": list(suspects), "longest": longest, "error": error}
        if claims is None:
            return self._database.change(self.lease_statements.give_back, values)
        listed, give_back = list(claims.items()), self.lease_statements.give_back_claims
        parts = [listed[start : start + BATCH] for start in range(0, len(listed), BATCH)]
        return sum(
            self._database.change(give_back, {**values, "given_back": [key for key, _ in part], "claims": part})
            for part in parts
        )

    def _settle_many(
        self,
        statement: BulkUpdate,
        outcome: str | None,
        leases: Sequence[Lease],
        until: float,
        rows: Sequence[Mapping[str, Any]] | None = None,
        values: Mapping[str, Any] = MappingProxyType({}),
    ) -> list[ScheduleError | None]:
        """Execute `statement` on leases, in transactions of `BATCH` rows. Return an error or None for each lease.

        `outcome`: how the statement ends the leases; None: it does not end them. `rows`: the values of each row,
        including its `lease_values`. `values`: the values that all rows share.
        """
        answers: list[ScheduleError | None] = []
        values = {**values, "lease_holder": self._holder}
        for start in range(0, len(leases), BATCH):
            part = leases[start : start + BATCH]
            given = [lease_values(lease) for lease in part] if rows is None else rows[start : start + BATCH]
            settle = partial(statement.execute, rows=given, values=values)
            found, _ = self._settle(part, settle, outcome, until)
            answers += map(refused, part, found) if found else [None] * len(part)
        return answers

    def _settle(
        self,
        leases: Sequence[Lease],
        settle: Callable[[Connection], int],
        outcome: str | None,
        until: float,
        uncertain: bool = False,
    ) -> tuple[Sequence[RowMapping | ScheduleError | None], bool]:
        """End `leases` with `outcome` by calling `settle`, which returns the number of changed rows.

        Returns an empty sequence if all leases were ended. Otherwise returns for each lease: None if it was ended, the
        row if the lease still holds, else the error. Also returns whether the answer to an attempt of this call was
        lost; always True if `uncertain`. `uncertain`: whether the answer to an earlier call was lost.
        """

        def work(connection: Connection, lost: bool) -> tuple[int, dict[str, RowMapping], bool]:
            done = settle(connection)
            if done == len(leases):
                return done, {}, lost
            keys = {"keys": [lease.key for lease in leases]}
            rows = connection.execute(self.lease_statements.read_many, keys).mappings()
            return done, {row["key"]: row for row in rows}, lost

        done, rows, lost = self._database.run(work, until)
        uncertain = uncertain or lost
        if done == len(leases):
            return (), uncertain
        answers = [self._answer(lease, rows.get(lease.key), outcome, uncertain) for lease in leases]
        if done:  # the rows do not show whether this call or an earlier one has settled them
            answers = [None if isinstance(one, IdempotentAlreadyFinishedError) else one for one in answers]
        return answers, uncertain

    def _answer(
        self, lease: Lease, row: RowMapping | None, outcome: str | None, uncertain: bool
    ) -> RowMapping | ScheduleError | None:
        if row is None:
            return refusal(lease, None, outcome, uncertain)
        is_running = row["status"] == RUNNING
        is_leased = (row["fence"], row["claim"]) == (lease.fence, lease.claim) and row["holder"] == self._holder
        if is_running and is_leased:
            return row
        owner = f"{row['node']} holds it now" if is_running else "no worker holds it now"
        return refusal(lease, LostRow(str(row["endings"]), row["nonce"], owner), outcome, uncertain)

    def _row(self, connection: Connection, key: str, locked: bool = False) -> RowMapping | None:
        read = self.lease_statements.read
        return connection.execute(read.with_for_update() if locked else read, {"lease_key": key}).mappings().first()

    def _undo_unanswered(self, now: float) -> None:
        """Restore the rows of acquires whose answers were lost.

        Repeats this until their leases end, because the statement of such an acquire may arrive late.
        """
        with self._lock:
            self._unanswered = {number: end for number, end in self._unanswered.items() if end > now}
            numbers = list(self._unanswered)
        if numbers:
            self._database.change(self.lease_statements.undo, self._undo_values(numbers))

    def _undo_values(self, numbers: list[int]) -> dict[str, Any]:
        return {"claimer": self._holder, "claims": numbers}


def new_number() -> int:
    """Return a random number that marks the rows of a call.

    If the answer is lost, the call finds its rows by this number.
    """
    return secrets.randbits(62)


def lease_of(row: RowMapping) -> Lease:
    cancelled = bool(row.get("cancel_requested", False))
    paused = row.get("paused_from") is not None and row.get("paused_until") is None
    return Lease(row["key"], row["fence"], row["due"] / 1000, cancelled, row["claim"], row["nonce"], paused=paused)


def refused(lease: Lease, answer: RowMapping | ScheduleError | None) -> ScheduleError | None:
    """Return the error of a lease that `_settle` did not end; None if `_settle` ended the lease."""
    if answer is None or isinstance(answer, ScheduleError):
        return answer
    return PreemptedError(f"{lease.key!r}: this run could not be settled")


def lease_values(lease: Lease) -> dict[str, Any]:
    """Return the values of a lease for the statements that settle it."""
    return {"key": lease.key, "fence": lease.fence, "claim": lease.claim}
