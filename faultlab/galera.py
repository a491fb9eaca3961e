"""A private Galera cluster of three MariaDB servers, each with all data. Runs in the test process."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from faultlab import prerequisites
from faultlab.mariadb import MariaDB
from faultlab.ports import HOST, free_port
from faultlab.servers import Server

SIZE = 3
_TIMES = "evs.keepalive_period=PT0.5S;evs.suspect_timeout=PT2S;evs.install_timeout=PT4S;evs.inactive_timeout=PT6S"
"""Timeouts of some seconds, after which the cluster continues without a lost member."""
_PROVIDERS = ("/usr/lib/galera/libgalera_smm.so", "/usr/lib64/galera-4/libgalera_smm.so")


class GaleraMember(MariaDB):
    """One server of a cluster.

    `peers`: the addresses of all members. A new member copies the data of another one (rsync).
    """

    name = "Galera"

    def __init__(self, *, template: Path | None = None, durable: bool = False) -> None:
        super().__init__(template=template, durable=durable)
        self.group_port, self._state_port, self._copy_port = free_port(), free_port(), free_port()
        self.peers: Sequence[str] = ()
        self.founds = False
        """Whether the next start of this member begins a new cluster."""

    @property
    def address(self) -> str:
        """The address at which the other members reach this one."""
        return f"{HOST}:{self.group_port}"

    def _command(self) -> list[str]:
        provider = next((path for path in _PROVIDERS if Path(path).exists()), None)
        if provider is None:
            prerequisites.not_run("Galera is missing, install with: apt-get install galera-4")
        options = (
            f"gmcast.listen_addr=tcp://{self.address};ist.recv_addr={HOST}:{self._state_port};gcache.size=32M;{_TIMES}"
        )
        command = [word for word in super()._command() if word != "--skip-log-bin"]
        return [
            *command, "--wsrep-on=ON", f"--wsrep-provider={provider}", f"--wsrep-provider-options={options}",
            f"--wsrep-cluster-address=gcomm://{'' if self.founds else ','.join(self.peers)}",
            f"--wsrep-node-address={self.address}", f"--wsrep-node-incoming-address={HOST}:{self.port}",
            "--wsrep-sst-method=rsync", f"--wsrep-sst-receive-address={HOST}:{self._copy_port}",
            "--binlog-format=ROW", "--innodb-autoinc-lock-mode=2",
        ]  # fmt: skip


class Galera(GaleraMember):
    """The cluster. This object is also its first member; `members` has all of them."""

    def __init__(self, *, template: Path | None = None, durable: bool = False) -> None:
        super().__init__(template=template, durable=durable)
        self.members: list[GaleraMember] = [
            self, *(GaleraMember(template=template, durable=durable) for _ in range(SIZE - 1))
        ]  # fmt: skip
        for member in self.members:
            member.peers = [one.address for one in self.members]

    def __enter__(self) -> Galera:
        try:
            self.founds = True
            for member in self.members:
                member.start()
                self.founds = False
        except BaseException:
            self.close()
            raise
        return self

    def close(self) -> None:
        for member in self.members[1:]:
            member.close()
        super().close()

    def ways(self) -> Iterator[Server]:
        """Yield the members in turn, one for each client."""
        while True:
            yield from self.members
