"""The environment of a trial: a database, and masters, each with its own proxy. Runs in the test process."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import psutil
import sqlalchemy as sa

from faultlab.galera import Galera
from faultlab.laboratory import Lab
from faultlab.mariadb import MariaDB
from faultlab.postgresql import PostgreSQL
from faultlab.postgresql_pair import Pair
from faultlab.proxy import Proxy
from faultlab.redis import Redis
from faultlab.servers import Server
from faultlab.small_disk import SmallDisk
from faultlab.trials.history import ONLY, REFILLED, Every, Recorded, RecordsOfPsched, only_node
from faultlab.trials.node import STARTS_WITHIN, TrialNode
from faultlab.trials.optioned_schedules import Changed, Optioned, Settled, calendars, draw
from faultlab.trials.server_control import (
    TABLES,
    MariaDBControl,
    PostgreSQLControl,
    RedisControl,
    ServerControl,
    SQLiteControl,
)
from psched import cron
from psched.queue.queue import Queue, open_queue
from psched.schedules.audit_result import Kind
from psched.store import holder_name
from psched.store.ledger import FINISHED
from tests.compat.unchecked_rules import rules_unchecked
from tests.daemon.harness import Daemon
from tests.stores.rows import DRIVERS

STORES: dict[str, type[Server] | None] = {
    "sqlite": None,
    "mariadb": MariaDB,
    "postgresql": PostgreSQL,
    "redis": Redis,
    "galera": Galera,
    "postgresql-pair": Pair,
}
ALONE = frozenset({"sqlite", "mariadb", "postgresql", "redis"})
"""The stores that use one server, or no server."""
ALIVE_TIME = 8.0
"""Seconds of a lease in a trial: much longer than a transaction with requests that each take half a second."""

_CONFIG: dict[str, Any] = {
    "app": "handlers:Handlers",
    "include": str(Path(__file__).parent),
    "schedules": {"table": TABLES[0]},
    "queue": {"table": TABLES[1]},
    "alive_time": ALIVE_TIME,
    "child_heartbeat_limit": 1.5,
    "poll_interval": 0.3,
    "retry_wait": 5,
    "retention_time": 7200,
    "processors": 3,
    "pid_file": "psched.pid",
}
_COMPAT: dict[str, Any] = {"schedules": {"table": TABLES[0], "ledger": "psched_trial"}}
"""Additional settings for `rdb_compat`, which keeps a ledger only if the key `ledger` is given."""
Schedules = Mapping[str, tuple[int, dict[str, Any]]]
"""For each key, the seconds between two occurrences, and the data."""
SECOND_BY_SECOND: Schedules = {
    f"second-{number}": (1, {"seconds": number / 40, "together": number % 2 == 0}) for number in range(6)
}
OF_ONE_NODE: Schedules = {f"{ONLY}{name}": (2, {"seconds": 0.05}) for name in "ab"}
"""Schedules with types of their own. Each of these types is routed by one node only."""
OPERATED: Schedules = {f"operated-{number}": (5, {"seconds": 0.05, "together": number == 0}) for number in range(3)}
"""Schedules that an operator pauses, resumes and runs."""
SHORT: Schedules = {**SECOND_BY_SECOND, **OF_ONE_NODE, **OPERATED}
SCHEDULES: Schedules = {
    **SHORT,
    "long": (20, {"seconds": 10.0}),
    "stubborn": (30, {"seconds": 14.0, "stubborn": True}),
}
"""The schedules of a trial, except those with drawn options. Runs of `long` and `stubborn` take longer than a lease."""


class TrialEnvironment:
    """A context manager. Within the context, the server and the masters run, and the tables and schedules exist."""

    def __init__(
        self,
        lab: Lab,
        store: str,
        folder: Path,
        type_: str | None = None,
        nodes: int = 2,
        schedules: Schedules = SCHEDULES,
        small_disk: bool = False,
        seed: int | None = None,
    ) -> None:
        """`small_disk`: the database is on its own small disk, `disk`.

        `seed`: adds schedules whose options this seed draws.
        """
        self.optioned: dict[str, Optioned] = {}
        self._drawn = {} if seed is None or type_ == "rdb_compat" else draw(seed)
        self.store = store
        self.type = ("redis" if store == "redis" else "rdb") if type_ is None else type_
        self.folder = folder
        self.records = folder / "records"
        self.nodes: dict[str, TrialNode] = {}
        self.server: Server | None = None
        self.disk = SmallDisk() if small_disk else None
        self._lab = lab
        self._names = "abcdefgh"[:nodes]
        self._wanted = {key: what for key, what in schedules.items() if (only_node(key) or "a") in self._names}
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as stack:
            self._stack = stack
            if self.disk is not None:
                stack.enter_context(self.disk)
            self.server = self._started()
            self.database = "" if self.server is None else self.server.create_database()
            self.server_control = self._sabotage()
            ways = None if self.server is None else self.server.ways()
            for name in self._names:
                self.nodes[name] = self._node(name, None if ways is None else next(ways))
            self.queue = self._open_queue()
            self.schedules = self._add_schedules()
            self.collection = stack.enter_context(next(iter(self.nodes.values())).daemon.schedules())
            self.begin()
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        for node in self.nodes.values():
            for process in node.processes():
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
        self._stack.close()

    def begin(self) -> None:
        """Start all masters, and wait until their workers are up."""
        for node in self.nodes.values():
            node.start()
        for node in self.nodes.values():
            node.daemon.wait_for((node.daemon.folder / "ready").exists, STARTS_WITHIN)

    def url(self, proxy: Proxy | None = None) -> str:
        """Return the URL of the database, by way of a proxy if given."""
        if self.server is None:
            return f"sqlite:///{self.file}"
        return self.server.url(self.database, None if proxy is None else proxy.port)

    @property
    def file(self) -> Path:
        """The file of the SQLite database."""
        return (self.folder if self.disk is None else self.disk.path) / "psched.db"

    @property
    def key_column(self) -> str:
        """The name of the column with the key."""
        return "id" if self.type == "rdb_compat" else "key"

    @property
    def operated(self) -> list[str]:
        """The keys of the schedules that an operator changes; empty if the store's schedules cannot be paused."""
        return [] if self.type == "rdb_compat" else [key for key in self.schedules if key in OPERATED]

    @property
    def longest(self) -> float:
        """The number of seconds that the longest run takes."""
        return max(float(data["seconds"]) for _, data in self._wanted.values())

    def stored_fences(self) -> dict[str, int]:
        """Return the stored fence of each finished task; empty if the table has no fences."""
        if self.type != "rdb":
            return {}
        engine = direct_engine(self)
        with engine.connect() as connection:
            rows = connection.exec_driver_sql("SELECT * FROM psched_queue WHERE status = 'finished'").mappings()
            fences = {row["key"]: row["fence"] for row in rows}
        engine.dispose()
        return fences

    def proof(self, until: float) -> RecordsOfPsched | None:
        """Return psched's records of the schedules, and what psched's audit finds up to `until` (unix seconds).

        None if the store keeps no ledger.
        """
        with next(iter(self.nodes.values())).daemon.schedules() as schedules:
            store = schedules.store
            if store.ledger is None:
                return None
            entries = [
                Recorded(row.key, row.scheduled_time, row.fence if store.shows_fence else None)
                for row in schedules.history()
                if row.outcome == FINISHED
            ]
            refilled = schedules.audit(0, int(until), keys=[REFILLED] if self.has_backfill else [])
            since = min(every.first for every in self.schedules.values())
            verdicts = schedules.audit(since, int(until), keys=self.schedules.keys() | self.optioned.keys())
            complaints = [
                (one.key, str(found))
                for one in (*verdicts, *refilled)
                for found in one.violations
                if one.key not in self.optioned or found.kind != Kind.FAILED
            ]
            settled = [
                Settled(row.key, row.scheduled_time, row.end, row.outcome, row.detail, row.started, row.ended)
                for key in self.optioned
                for row in schedules.history(key)
            ]
            changes = [
                Changed(key, change.at, change.action)
                for key in self.optioned
                for change in schedules.ledger.changes(key)
            ]
            return RecordsOfPsched(entries, complaints, settled, changes)

    def has_due_options(self, until: float) -> bool:
        """Return whether a schedule with drawn options still has to run an occurrence due at `until` (unix seconds).

        Also True while the backfill has occurrences left.
        """
        with next(iter(self.nodes.values())).daemon.schedules() as schedules:
            if self.has_backfill and any(each.left for each in schedules.backfills.list(REFILLED)):
                return True
            rows = (schedules[key].metadata() for key in self.optioned)
            return any(not row.paused and row.next_time + row.delay <= until for row in rows)

    @property
    def has_backfill(self) -> bool:
        """Whether there is a backfill. It has more occurrences than any trial runs."""
        return bool(self._drawn)

    def end_backfill(self) -> None:
        """Cancel the backfill, so that it begins no more runs."""
        if self.has_backfill:
            self.collection.backfills.cancel(REFILLED)

    def _node(self, name: str, server: Server | None) -> TrialNode:
        proxy = None if server is None else self._stack.enter_context(Proxy(server.port))
        clock = self._lab.wall_clock() if sys.platform == "linux" else None
        folder = self.folder / name
        folder.mkdir()
        config = {**_CONFIG, **(_COMPAT if self.type == "rdb_compat" else {})}
        daemon = Daemon(folder, **{**config, "type": self.type, "url": self.url(proxy)})
        environ: Mapping[str, str] = {} if clock is None else clock.environment
        daemon.environ = {**environ, "PSCHED_TRIAL_RECORDS": str(self.records), "PSCHED_TRIAL_NODE": name}
        return TrialNode(name, self._stack.enter_context(daemon), proxy, clock)

    def _open_queue(self) -> Queue:
        settings = next(iter(self.nodes.values())).daemon.settings()
        assert settings.queue is not None
        queue = self._stack.enter_context(open_queue(settings.queue, holder_name("trial")))
        queue.store.create_tables()
        return queue

    def _add_schedules(self) -> dict[str, Every]:
        every: dict[str, Every] = {}
        with next(iter(self.nodes.values())).daemon.schedules() as schedules:
            now = int(schedules.store.now())
            for key, (seconds, data) in self._wanted.items():
                rule = f"*/{seconds} * * * * *"
                with rules_unchecked():
                    schedules.add(key, key if only_node(key) else "work", cron=rule, next_time=now + 1, data=data)
                every[key] = Every(cron.first_time(rule, now + 1, "UTC"), seconds, float(data["seconds"]))
            for name, days in calendars(now).items() if self._drawn else ():
                schedules.calendars.set(name, days)
            for key, drawn in self._drawn.items():
                rule = f"@every {drawn.seconds}s"
                schedules.add(key, "moody", cron=rule, next_time=now + 1, data=drawn.data, **drawn.options)
                row = schedules[key].metadata()
                self.optioned[key] = replace(
                    drawn, first=-(-(now + 1) // drawn.seconds) * drawn.seconds, offset=row.delay
                )
            if self.has_backfill:
                schedules.add(REFILLED, "work", cron="@hourly", next_time=now + 10**8, data={"seconds": 0.1})
                schedules.backfills.start(REFILLED, now - 10**9, now, max_running=3)
        return every

    def _started(self) -> Server | None:
        kind = STORES[self.store]
        if kind is None:
            return None
        server = self._lab.private(kind)
        server.place = None if self.disk is None else self.disk.path
        return self._stack.enter_context(server)

    def _sabotage(self) -> ServerControl:
        if isinstance(self.server, MariaDB):
            return MariaDBControl(self.server, self.database)
        if isinstance(self.server, PostgreSQL):
            return PostgreSQLControl(self.server, self.database)
        if isinstance(self.server, Redis):
            return RedisControl(self.server)
        return SQLiteControl(self.file)


def direct_engine(environment: TrialEnvironment) -> sa.Engine:
    """Return an engine that connects to the environment's database directly, without psched and without a proxy."""
    url = sa.make_url(environment.url())
    isolation = "SERIALIZABLE" if environment.server is None else "READ COMMITTED"
    return sa.create_engine(url.set(drivername=DRIVERS[url.get_backend_name()]), isolation_level=isolation)
