"""A private PostgreSQL primary with a standby that is promoted when the primary is lost. In the test process."""

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
"""A commit is answered when the standby has it, too: without a standby none is."""
_PATIENCE = 20.0


class PairMember(PostgreSQL):
    """One of the two servers."""

    def _command(self) -> list[str]:
        return [*super()._command(), *(f"--{key}={value}" for key, value in _SETTINGS.items())]

    def follow(self, primary: PostgreSQL) -> None:
        """Start anew as the standby of `primary`, with a copy of what it has; what was here is forgotten."""
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
    """Both: itself one of them, and the `other`; `primary` is which of them serves at this moment."""

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
        """Lose the primary by kill -9 and let the other one take its place; returns the lost one."""
        lost, recovery_child = self.primary, self.other if self.primary is self else self
        lost.kill()
        recovery_child.promote()
        self.primary = recovery_child
        return lost

    def wait_until_followed(self) -> None:
        """Return when the primary has a standby that has everything."""
        end = time.monotonic() + _PATIENCE
        while True:
            with self.primary.admin() as connection:
                found = connection.execute("SELECT 1 FROM pg_stat_replication WHERE sync_state = 'sync'").fetchone()
            if found:
                return
            if time.monotonic() > end:
                raise TimeoutError(f"nobody follows the primary: {self.other.log[-2000:]}")
            time.sleep(0.05)

    def ways(self) -> Iterator[Server]:
        """Yield the primary for every client."""
        while True:
            yield self.primary
