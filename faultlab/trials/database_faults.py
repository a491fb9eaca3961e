"""Faults of the database server, and of its other users. Runs in the test process."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from contextlib import ExitStack

import sqlalchemy as sa

from faultlab.servers import Server
from faultlab.trials.environment import ALONE, SECOND_BY_SECOND, direct_engine
from faultlab.trials.fault import TrialFault
from faultlab.trials.server_control import TABLES

_SERVERS = frozenset({"mariadb", "postgresql", "redis"})
SECONDS = list(SECOND_BY_SECOND)


class DatabaseFault(TrialFault):
    """A fault of the server, which touches all nodes."""

    subject = "database"
    stores = _SERVERS

    def begin(self) -> None:
        self.all_nodes()
        self.strike(self.server)

    @property
    def server(self) -> Server:
        """The database server."""
        assert self.environment.server is not None
        return self.environment.server

    def strike(self, server: Server) -> None:
        """Begin the fault."""
        raise NotImplementedError


class KillServer(DatabaseFault):
    """The server is killed by SIGKILL, and started again."""

    kind = "database: kill -9"
    lasts = (0.5, 3.0)

    def strike(self, server: Server) -> None:
        server.kill()

    def heal(self) -> None:
        self.server.start()


class StopServer(DatabaseFault):
    """The server is stopped in an orderly way, and started again."""

    kind = "database: restarted"
    lasts = (0.5, 3.0)

    def strike(self, server: Server) -> None:
        if self.environment.store == "postgresql":
            os.kill(server.pid, signal.SIGINT)  # the server then does not wait for the end of sessions
        server.stop()

    def heal(self) -> None:
        self.server.start()


class Away(StopServer):
    """The server is stopped for longer than leases last."""

    kind = "database: away for longer than the leases"
    lasts = (10.0, 15.0)


class FreezeServer(DatabaseFault):
    """All processes of the server are frozen: connections stay open, but nothing answers."""

    kind = "database: frozen"
    lasts = (3.0, 12.0)

    def strike(self, server: Server) -> None:
        server.pause()

    def heal(self) -> None:
        self.server.resume()


class EndSessions(DatabaseFault):
    """All sessions are ended, a few times a second."""

    kind = "database: all connections killed, again and again"
    excuses = False

    def strike(self, server: Server) -> None:
        self.environment.server_control.end_sessions()

    def go_on(self) -> None:
        self.environment.server_control.end_sessions()


class ReadOnly(DatabaseFault):
    """The server refuses all writes, as a demoted primary does."""

    kind = "database: read-only"
    lasts = (3.0, 10.0)

    def strike(self, server: Server) -> None:
        server.set_read_only()

    def heal(self) -> None:
        self.server.set_writable()


class Taken(DatabaseFault):
    """All connections are in use."""

    kind = "database: no connection left"
    lasts = (3.0, 8.0)

    def strike(self, server: Server) -> None:
        self.stack = ExitStack()
        self.stack.enter_context(self.environment.server_control.taken())

    def heal(self) -> None:
        self.stack.close()


class Deadlocks(DatabaseFault):
    """Other clients change several rows in each transaction, some in one order and some in the opposite order."""

    kind = "database: deadlocks with other clients"
    stores = frozenset({"mariadb", "postgresql"})
    lasts = (4.0, 8.0)
    excuses = False

    def strike(self, server: Server) -> None:
        self.over = threading.Event()
        self.engine = direct_engine(self.environment)
        orders = [SECONDS, list(reversed(SECONDS))] * 2
        self.threads = [threading.Thread(target=self._change, args=(keys,)) for keys in orders]
        for thread in self.threads:
            thread.start()

    def heal(self) -> None:
        self.over.set()
        for thread in self.threads:
            thread.join()
        self.engine.dispose()

    def _change(self, keys: list[str]) -> None:
        schedules = sa.table(
            TABLES[0], sa.column(self.environment.key_column), sa.column("delay_ms"), sa.column("delay")
        )
        delay = schedules.c["delay_ms" if self.environment.type == "rdb" else "delay"]
        while not self.over.wait(0.05):
            # An error means that this client was a deadlock's victim, or was disconnected.
            with contextlib.suppress(sa.exc.DBAPIError), self.engine.begin() as connection:
                for key in keys:
                    row = schedules.c[self.environment.key_column] == key
                    connection.execute(schedules.update().where(row).values({delay.name: delay}))


class Locked(TrialFault):
    """Another client locks all tables, mostly for longer than leases last."""

    kind = "database: tables locked by another client"
    subject = "database"
    stores = ALONE
    lasts = (6.0, 12.0)

    def begin(self) -> None:
        self.all_nodes()
        self.stack = ExitStack()
        self.stack.enter_context(self.environment.server_control.locked())

    def heal(self) -> None:
        self.stack.close()
