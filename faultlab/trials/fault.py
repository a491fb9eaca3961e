"""The base class of faults: a fault begins, may go on, and is healed. Runs in the test process."""

from __future__ import annotations

import random
from typing import ClassVar

from faultlab.trials.environment import STORES, TrialEnvironment
from faultlab.trials.history import Declared
from faultlab.trials.node import TrialNode
from faultlab.trials.submitter import Submitter
from psched.clock import boottime


class TrialFault:
    """One fault, which begins once and is healed once.

    The class decides the kind of fault; the seed decides what it touches.
    """

    kind: ClassVar[str]
    subject: ClassVar[str]
    """The kind of thing that the fault touches. At any time, a subject has at most one fault."""
    lasts: ClassVar[tuple[float, float]] = (2.0, 6.0)
    """The minimum and the maximum number of seconds from beginning to healing."""
    stores: ClassVar[frozenset[str]] = frozenset(STORES)
    """The stores to which the fault can happen."""
    excuses: ClassVar[bool] = True
    """Whether the fault may cut off runs that it touches, or let them lose their lease."""
    froze: ClassVar[bool] = False
    """Whether the processes that the fault touches are frozen until the healing."""

    def __init__(self, environment: TrialEnvironment, submitter: Submitter, rng: random.Random) -> None:
        self.environment = environment
        self.submitter = submitter
        self.rng = rng
        self.nodes: set[str] = set()
        self.pids: set[int] = set()
        self._begun = boottime()

    def begin(self) -> None:
        """Begin the fault."""
        raise NotImplementedError

    def go_on(self) -> None:
        """Continue the fault. Called a few times a second; does nothing if the fault continues by itself."""

    def heal(self) -> None:
        """End the fault."""

    def declare(self, until: float) -> Declared:
        """Return the record of the fault, which was healed at `until` (boottime seconds)."""
        nodes, pids = frozenset(self.nodes), frozenset(self.pids)
        return Declared(self.kind, self._begun, until, nodes, pids, self.excuses, self.froze)

    def some_node(self) -> TrialNode:
        """Return a node, and record that the fault touches it."""
        node = self.rng.choice(list(self.environment.nodes.values()))
        self.nodes.add(node.name)
        return node

    def all_nodes(self) -> list[TrialNode]:
        """Return all nodes, and record that the fault touches them."""
        self.nodes.update(self.environment.nodes)
        return list(self.environment.nodes.values())
