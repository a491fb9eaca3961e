"""Base class of faults: a fault begins, may go on, and is healed. In the test process."""

from __future__ import annotations

import random
from typing import ClassVar

from faultlab.trials.environment import STORES, TrialEnvironment
from faultlab.trials.history import Declared
from faultlab.trials.node import TrialNode
from faultlab.trials.submitter import Submitter
from psched.clock import boottime


class TrialFault:
    """One fault, to be begun and healed once. The class says what kind it is, the seed whom it strikes."""

    kind: ClassVar[str]
    subject: ClassVar[str]
    """What it strikes: of one subject there is one fault at a time."""
    lasts: ClassVar[tuple[float, float]] = (2.0, 6.0)
    """Seconds between beginning and healing, from and to."""
    stores: ClassVar[frozenset[str]] = frozenset(STORES)
    """The stores that it can happen to."""
    excuses: ClassVar[bool] = True
    """Whether a run that it touches may be cut off, or lose its lease."""
    froze: ClassVar[bool] = False
    """Whether the processes that it touches stand still meanwhile."""

    def __init__(self, environment: TrialEnvironment, submitter: Submitter, rng: random.Random) -> None:
        self.environment = environment
        self.submitter = submitter
        self.rng = rng
        self.nodes: set[str] = set()
        self.pids: set[int] = set()
        self._begun = boottime()

    def begin(self) -> None:
        """Do it."""
        raise NotImplementedError

    def go_on(self) -> None:
        """Do it again, if it is something that goes on; called a few times a second."""

    def heal(self) -> None:
        """Undo it."""

    def declare(self, until: float) -> Declared:
        """Say what was done, when it was healed at `until` (boottime seconds)."""
        nodes, pids = frozenset(self.nodes), frozenset(self.pids)
        return Declared(self.kind, self._begun, until, nodes, pids, self.excuses, self.froze)

    def some_node(self) -> TrialNode:
        """Return a node, and note that it is touched."""
        node = self.rng.choice(list(self.environment.nodes.values()))
        self.nodes.add(node.name)
        return node

    def all_nodes(self) -> list[TrialNode]:
        """Return all nodes, and note that they are touched."""
        self.nodes.update(self.environment.nodes)
        return list(self.environment.nodes.values())
