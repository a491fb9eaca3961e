"""Faults of the network between the database and one host, or all hosts. Runs in the test process."""

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
"""For each store, bytes that occur in requests that change something."""


class NetworkFault(TrialFault):
    """A fault of the network of one node, or of all nodes."""

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
        """Begin or continue the fault at the proxy of one node."""

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
    """The database cannot be reached, mostly for longer than leases last."""

    kind = "network: connections refused"
    lasts = (4.0, 12.0)

    def strike(self, proxy: Proxy) -> None:
        proxy.refuse()
        proxy.cut()


class BlackHole(NetworkFault):
    """Nothing is forwarded, and connections stay open, mostly for longer than leases last."""

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
    """A request is executed and committed, but its answer is lost, a few times a second."""

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
