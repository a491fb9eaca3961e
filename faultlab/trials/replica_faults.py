"""Faults of a replicated database: one server is lost, and the others continue. Runs in the test process."""

from __future__ import annotations

from faultlab.galera import Galera, GaleraMember
from faultlab.postgresql_pair import Pair
from faultlab.trials.fault import TrialFault


class ClusterFault(TrialFault):
    """A fault of one member of a Galera cluster.

    The other members stop for seconds, until they have given up this member.
    """

    subject = "database"
    stores = frozenset({"galera"})

    def begin(self) -> None:
        self.all_nodes()
        assert isinstance(self.environment.server, Galera)
        self.members = self.environment.server.members
        self.member = self.rng.choice(self.members)
        self.strike(self.member)

    def strike(self, member: GaleraMember) -> None:
        """Begin the fault."""
        raise NotImplementedError


class KillMember(ClusterFault):
    """A member is killed by SIGKILL. Its clients are immediately led to another member, as by a load balancer.

    At the healing, the member joins the cluster again.
    """

    kind = "cluster: a member killed"

    def strike(self, member: GaleraMember) -> None:
        member.kill()
        others = [other for other in self.members if other is not member]
        for node in self.environment.nodes.values():
            if node.proxy is not None and node.proxy.target == member.port:
                node.proxy.lead_to(self.rng.choice(others).port)

    def heal(self) -> None:
        self.member.start()


class FreezeMember(ClusterFault):
    """A member is frozen, and its clients wait.

    The cluster gives up the member, and takes it back when it is thawed.
    """

    kind = "cluster: a member frozen"
    lasts = (3.0, 9.0)

    def strike(self, member: GaleraMember) -> None:
        member.pause()

    def heal(self) -> None:
        self.member.resume()


class FailOver(TrialFault):
    """The primary is killed, and its standby promoted. Nothing can be committed until the new primary has a standby."""

    kind = "database: the standby promoted"
    subject = "database"
    stores = frozenset({"postgresql-pair"})
    lasts = (0.5, 3.0)

    def begin(self) -> None:
        self.all_nodes()
        assert isinstance(self.environment.server, Pair)
        self.pair = self.environment.server
        self.lost = self.pair.fail_over()
        for node in self.environment.nodes.values():
            if node.proxy is not None:
                node.proxy.lead_to(self.pair.primary.port)

    def heal(self) -> None:
        self.lost.follow(self.pair.primary)
        self.pair.wait_until_followed()
