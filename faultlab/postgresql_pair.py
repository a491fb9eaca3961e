"""A private PostgreSQL primary with a standby, which tests promote when the primary is lost.

Runs in the test process.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from pathlib import Path

from faultlab import prerequisites
from faultlab.ports import HOST
from faultlab.postgresql import SUPERUSER, PostgreSQL
from faultlab.servers import PASSWORD, Server
from faultlab.unprivileged import run_as_server_user

_SETTINGS = {
    "wal_level": "replica",
    "max_wal_senders": 5,
    "hot_standby": "on",
    "wal_keep_size": "64MB",
    "synchronous_standby_names": "*",
}
"""With these settings, a commit is only answered when the standby has it, too. Without a standby no commit is answered.
"""
_PATIENCE = 20.0


class PairMember(PostgreSQL):
    """One of the two servers."""

    def _command(self) -> list[str]:
        return [*super()._command(), *(f"--{key}={value}" for key, value in _SETTINGS.items())]

    def follow(self, primary: PostgreSQL) -> None:
        """Become the standby of `primary`: replace this server's data by a copy of the primary's, and start."""
        if self.data.exists():
            shutil.rmtree(self.data)
        source = f"host={HOST} port={primary.port} user={SUPERUSER} password={PASSWORD}"
        run_as_server_user([
            prerequisites.find("pg_basebackup"), "--no-sync", "--checkpoint=fast", "--wal-method=stream",
            "--write-recovery-conf", f"--pgdata={self.data}", f"--dbname={source}",
        ])  # fmt: skip
        self.start()

    def promote(self) -> None:
        """Become the primary."""
        with self.admin() as connection:
            connection.execute("SELECT pg_promote()")


class Pair(PairMember):
    """The pair.

    This object is also one of its servers; `other` is the second. `primary`: the server that is primary now.
    """

    def __init__(self, *, template: Path | None = None, durable: bool = False) -> None:
        super().__init__(template=template, durable=durable)
        self.other = PairMember(template=template, durable=durable)
        self.primary: PairMember = self

    def __enter__(self) -> Pair:
        try:
            self.start()
            self.other.follow(self)
            self.wait_until_followed()
        except BaseException:
            self.close()
            raise
        return self

    def close(self) -> None:
        self.other.close()
        super().close()

    def url(self, database: str, port: int | None = None) -> str:
        return super().url(database, self.primary.port if port is None else port)

    def fail_over(self) -> PairMember:
        """Kill the primary by SIGKILL, and promote the other server. Return the killed server."""
        lost, recovery_child = self.primary, self.other if self.primary is self else self
        lost.kill()
        recovery_child.promote()
        self.primary = recovery_child
        return lost

    def wait_until_followed(self) -> None:
        """Wait until the primary has a synchronous standby. Raises TimeoutError after 20 s."""
        end = time.monotonic() + _PATIENCE
        while True:
            with self.primary.admin() as connection:
                found = connection.execute("SELECT 1 FROM pg_stat_replication WHERE sync_state = 'sync'").fetchone()
            if found:
                return
            if time.monotonic() > end:
                raise TimeoutError(f"the primary has no standby: {self.other.log[-2000:]}")
            time.sleep(0.05)

    def ways(self) -> Iterator[Server]:
        """Yield the present primary, for each client."""
        while True:
            yield self.primary
