"""Faults of the network between one host, or all, and the database. In the test process."""

from __future__ import annotations

from typing import ClassVar

from faultlab.proxy import Proxy, Trap
from faultlab.trials.fault import TrialFault

_SERVERS = frozenset({"mariadb", "postgresql", "redis"})
_WRITES = {
    "mariadb": (b"COMMIT", b"UPDATE"),
    "postgresql": (b"COMMIT", b"UPDATE"),
    "redis": (b"EVALSHA",),
}
"""What to look for in requests that change something."""


class NetworkFault(TrialFault):
    """Strikes the network of one node or of all."""

    subject = "network"
    stores = _SERVERS
    everybody: ClassVar[bool] = False

    def begin(self) -> None:
        nodes = self.all_nodes() if self.rng.random() < 0.4 else [self.some_node()]
        self.proxies = [node.proxy for node in nodes if node.proxy is not None]
        self.go_on()

    def go_on(self) -> None:
        for proxy in self.proxies:
            self.strike(proxy)

    def strike(self, proxy: Proxy) -> None:
        """Do it to the network of one node."""

    def heal(self) -> None:
        for proxy in self.proxies:
            proxy.pass_on()


class Cut(NetworkFault):
    """All connections are reset, a few times a second."""

    kind = "network: connections reset, again and again"
    excuses = False

    def strike(self, proxy: Proxy) -> None:
        proxy.cut()


class Gone(NetworkFault):
    """The database cannot be reached, mostly for longer than the leases last."""

    kind = "network: connections refused"
    lasts = (4.0, 12.0)

    def strike(self, proxy: Proxy) -> None:
        proxy.refuse()
        proxy.cut()


class BlackHole(NetworkFault):
    """Nothing passes, and nobody is told, mostly for longer than the leases last."""

    kind = "network: black hole"
    lasts = (4.0, 12.0)

    def strike(self, proxy: Proxy) -> None:
        proxy.black_hole()


class Delay(NetworkFault):
    """Each request takes half a second longer."""

    kind = "network: slow"
    lasts = (4.0, 8.0)
    excuses = False

    def strike(self, proxy: Proxy) -> None:
        proxy.delay(0.5)


class LostAnswers(NetworkFault):
    """What was asked for is done and committed, and the answer is lost, a few times a second."""

    kind = "network: committed, and the answer lost"
    lasts = (4.0, 8.0)
    excuses = False

    def begin(self) -> None:
        self.traps: dict[Proxy, Trap] = {}
        super().begin()

    def strike(self, proxy: Proxy) -> None:
        trap = self.traps.get(proxy)
        if trap is None or trap.sprung:
            self.traps[proxy] = proxy.lose_answer(self.rng.choice(_WRITES[self.environment.store]))

    def heal(self) -> None:
        for proxy in self.proxies:
            proxy.forget_traps()
        super().heal()
